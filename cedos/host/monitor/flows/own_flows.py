"""Connections that this process makes to learn about networks: no program's transfers.

Connection tracking shows them for a minute or two after their sockets have closed.
"""

import asyncio
import socket
from ipaddress import ip_address
from typing import Any, Final

from cedos.model import Address, FlowKey

# The most own flows: two a second over all networks, until connection tracking forgets them.
_MOST = 1024

_known: Final[dict[FlowKey, None]] = {}


def is_own(key: FlowKey) -> bool:
    """Return whether this process made the flow, of late, to learn about a network."""
    return key in _known


def connect(made: socket.socket, peer: Address, port: int, index: int = 0) -> bool:
    """Begin to connect a non-blocking TCP or UDP socket; return whether it is connected (UDP: always).

    Its flow is an own one from its first packet on. `index` is that of a link-local peer's interface.
    """
    try:
        made.connect(_socket_address(peer, port, index))
        done = True
    except BlockingIOError:
        done = False
    near, near_port, *_ = made.getsockname()
    protocol = "udp" if made.type == socket.SOCK_DGRAM else "tcp"
    while len(_known) >= _MOST:
        del _known[next(iter(_known))]
    local = ip_address(near.partition("%")[0])
    _known[FlowKey(local, near_port, peer, port, protocol)] = None
    return done


async def connected(made: socket.socket, peer: Address, port: int, index: int = 0) -> None:
    """Connect a TCP socket as `connect` does, and wait for it."""
    if not connect(made, peer, port, index):
        loop = asyncio.get_running_loop()
        await loop.sock_connect(made, _socket_address(peer, port, index))


def _socket_address(peer: Address, port: int, index: int) -> tuple[Any, ...]:
    scope = (0, index) if peer.version == 6 and peer.is_link_local else ()
    return (str(peer), port, *scope)
