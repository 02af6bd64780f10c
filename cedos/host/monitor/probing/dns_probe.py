"""Look a name up over a network."""

import asyncio
import os
import secrets
import socket

from cedos.host.monitor import flow_source
from cedos.host.monitor.dns_message import DnsFault, fault, question
from cedos.kernel.interface_socket import interface_socket, receive
from cedos.model import Address, Network

NO_ANSWER = "no answer in time"


async def run(
    network: Network,
    name: str,
    *,
    resolver: Address | None = None,
    port: int = 53,
    timeout_s: float = 2.0,
) -> str:
    """Ask for a name's IPv4 address (`resolver`: None for the network's first).

    Return the problem in words: no answer in time, or none that is honest; empty: there was one. That
    there is no such name is an answer, too. ValueError: no valid name.
    """
    resolver = resolver or next(iter(network.resolvers), None)
    if resolver is None:
        return f"{network.name} has no resolver to ask"
    number = secrets.randbits(16)
    asked = question(number, name)
    try:
        with interface_socket(network.interface, resolver.version, socket.SOCK_DGRAM) as asker:
            # Connected: the kernel lets through what comes from the resolver alone.
            flow_source.connect(asker, resolver, port, network.index)
            async with asyncio.timeout(timeout_s):
                await asyncio.get_running_loop().sock_sendall(asker, asked)
                wrong: DnsFault | None = DnsFault.FOREIGN
                while wrong is DnsFault.FOREIGN:
                    wrong = fault(await receive(asker, 4096), number, name)
        return wrong or ""
    except TimeoutError:
        return NO_ANSWER
    except OSError as error:
        return f"{network.interface}: {os.strerror(error.errno) if error.errno else error}"
