"""Open a TLS connection to a well-known host over one network: a second opinion beside the test page.

A box in the way can answer for a name, a ping or a web page, but has no certificate of another host.
"""

import asyncio
import socket
import ssl

from cedos.controller.events import TlsAnswer
from cedos.host.monitor.flows import own_flows
from cedos.kernel.interface_socket import interface_socket
from cedos.model import Address, Network

_HTTPS = 443


async def shake_hands(
    network: Network, target: Address, timeout_s: float, port: int = _HTTPS
) -> TlsAnswer:
    """Return what answered for `target`, whose certificate should be for its address; never raises."""
    connected = False
    try:
        async with asyncio.timeout(timeout_s):
            with interface_socket(network.interface, target.version, socket.SOCK_STREAM) as made:
                await own_flows.connected(made, target, port, network.index)
                connected = True
                await _prove(made, str(target))
    except ConnectionRefusedError:
        return TlsAnswer.REFUSED
    except (OSError, TimeoutError):  # (an error of TLS is an OSError)
        return TlsAnswer.ANSWERED if connected else TlsAnswer.SILENT
    return TlsAnswer.PROVEN


async def _prove(made: socket.socket, name: str) -> None:
    """Finish the handshake. OSError: the other end cannot prove to be `name`."""
    loop = asyncio.get_running_loop()
    received, to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(received, to_send, server_hostname=name)
    while True:
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            await loop.sock_sendall(made, to_send.read())
            data = await loop.sock_recv(made, 65536)
            if not data:
                raise ConnectionResetError from None
            received.write(data)
        else:
            return
