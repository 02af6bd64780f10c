"""Ask a program's question again over one network."""

import asyncio
import socket

from cedos.kernel.interface_socket import interface_socket
from cedos.model import Address, Network
from cedos.monitor.flows import own_flows

TIMEOUT_S = 2.0
_LARGEST = 4096


async def ask(
    network: Network, resolver: Address, question: bytes, *, port: int = 53
) -> bytes | None:
    """Return the first answer with the question's number; None without one in time."""
    loop = asyncio.get_running_loop()
    try:
        with interface_socket(network.interface, resolver.version, socket.SOCK_DGRAM) as asker:
            own_flows.connect(asker, resolver, port, network.index)
            async with asyncio.timeout(TIMEOUT_S):
                await loop.sock_sendall(asker, question)
                while True:
                    answer = await loop.sock_recv(asker, _LARGEST)
                    if answer[:2] == question[:2]:
                        return answer
    except OSError:  # TimeoutError is one
        return None
