"""Connections that this process makes to learn about networks: nobody's transfers, and not shown as such.

Connection tracking shows a look-up for a minute or two after its socket has closed. Whoever lists flows
asks here; following flows costs nothing more.
"""

import asyncio
import socket
from ipaddress import ip_address
from typing import Any, Final

from cedos.model import Address, FlowKey

_MOST = 1024
"""Two a second over all networks, until connection tracking has forgotten them."""

_known: Final[dict[FlowKey, None]] = {}


def is_own(key: FlowKey) -> bool:
    """Whether this process made the flow, of late, to learn about a network."""
    return key in _known


def connect(made: socket.socket, address: tuple[Any, ...]) -> bool:
    """Begins to connect a socket that does not block; its flow is an own one from its first packet on.

    Args:
        made: a TCP or UDP socket.
        address: the peer as sockets name it, by number.

    Returns:
        whether it is connected, as UDP sockets always are.

    Raises:
        OSError: as a socket's `connect`.
    """
    try:
        made.connect(address)
        done = True
    except BlockingIOError:
        done = False
    near, near_port, *_ = made.getsockname()
    far, far_port, *_ = address
    protocol = "udp" if made.type == socket.SOCK_DGRAM else "tcp"
    while len(_known) >= _MOST:
        del _known[next(iter(_known))]
    _known[FlowKey(_number(near), near_port, _number(far), far_port, protocol)] = None
    return done


async def connected(made: socket.socket, address: tuple[Any, ...]) -> None:
    """Connects a socket; see `connect`."""
    if not connect(made, address):
        await asyncio.get_running_loop().sock_connect(made, address)


def _number(host: str) -> Address:
    return ip_address(host.partition("%")[0])
