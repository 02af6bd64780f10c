"""Sockets bound to one interface, received bytes, and the kernel's time of received packets."""

import asyncio
import os
import socket
import struct
from typing import Final

SO_TIMESTAMPNS: Final = 35
_TIMESPEC: Final = struct.Struct("=qq")
# The ancillary bytes that `recvmsg` needs for a timestamp.
TIMESTAMP_SPACE: Final = socket.CMSG_SPACE(_TIMESPEC.size)


def bind_to_interface(unconnected: socket.socket, interface: str) -> None:
    """Bind a socket to an interface. Any user may do so since Linux 5.7, if it is bound to none.

    OSError: no such interface, or it is bound already.
    """
    unconnected.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, os.fsencode(interface))


def interface_socket(
    interface: str,  # its name (SO_BINDTODEVICE)
    version: int,  # of IP, 4 or 6
    kind: socket.SocketKind,  # of socket
    protocol: int = 0,  # as a socket's
    *,
    timestamps: bool = False,  # whether the kernel says when each datagram arrived (`arrival_ns`)
) -> socket.socket:
    """Return a non-blocking socket; it is neither steered nor rescued.

    OSError: no such interface, or no such socket for us.
    """
    opened = socket.socket(socket.AF_INET if version == 4 else socket.AF_INET6, kind, protocol)
    try:
        opened.setblocking(False)
        bind_to_interface(opened, interface)
        if timestamps:
            opened.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    except OSError:
        opened.close()
        raise
    return opened


async def receive(opened: socket.socket, most_bytes: int) -> bytes:
    """Return the next bytes of a non-blocking socket, after a turn of all other tasks.

    The event loop's own `sock_recv` returns at once while there are bytes: a loop around it leaves no
    turn to others, nor to a time limit, as long as its peer sends. Errors: OSError.
    """
    await asyncio.sleep(0)
    return await asyncio.get_running_loop().sock_recv(opened, most_bytes)


def arrival_ns(ancillary: list[tuple[int, int, bytes]]) -> int:
    """Return when a datagram arrived, in ns by the wall clock; 0: the kernel does not say."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS) and len(data) >= _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack_from(data)
            return int(seconds) * 1_000_000_000 + int(nanoseconds)
    return 0
