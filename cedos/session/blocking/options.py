"""The options of a session's socket."""

import errno
import socket
from enum import IntEnum
from typing import Final

SOL_SESSION: Final = 0xCED05


class SocketOption(IntEnum):
    """Options of level `SOL_SESSION`; those of Cedos' D2TP keep their meaning (Cedos, IV-A)."""

    DEADLINE = (
        1  # seconds: until when everything should be here, and how long to do without a network
    )
    EXPECTED_SIZE = 2  # bytes that the stream will bring
    BUFFER_THRESHOLDS = 3  # (low, high) bytes: when cellular networks are used
    LABEL = 4  # of the stream: a cedos.model.Label
    SERVER_KEY = 5  # 32 bytes, before `connect`
    KEY = 6  # a KeyPair of one's own, before `connect` and `listen`
    SCHEDULER = 7  # a name
    NETWORKS = 8  # a function: whether an interface may be used
    CHOOSER = 9  # who chooses among them: a cedos.session.io.advice.Chooser, before `connect`


(
    SO_DEADLINE,
    SO_ESIZE,
    SO_RCVBUFTH,
    SO_LABEL,
    SO_SERVER_KEY,
    SO_KEY,
    SO_SCHEDULER,
    SO_NETWORKS,
    SO_CHOOSER,
) = SocketOption


# What programs set on every TCP socket. A session does it anyway (it never waits to fill a segment, and
# asks for a silent peer), or leaves it to each path; so it is taken, and changes nothing.
_PLAIN: Final = {
    socket.SOL_SOCKET: {
        socket.SO_KEEPALIVE: 1,
        socket.SO_REUSEADDR: 1,
        socket.SO_RCVBUF: 0,
        socket.SO_SNDBUF: 0,
        socket.SO_PROTOCOL: socket.IPPROTO_TCP,
        socket.SO_TYPE: socket.SOCK_STREAM,
    },
    socket.IPPROTO_TCP: {
        socket.TCP_NODELAY: 1,
        socket.TCP_QUICKACK: 0,
        socket.TCP_CORK: 0,
        socket.TCP_KEEPIDLE: 0,
        socket.TCP_KEEPINTVL: 0,
        socket.TCP_KEEPCNT: 0,
        socket.TCP_USER_TIMEOUT: 0,
    },
}


def plain(level: int, option: int) -> int | None:
    """What a TCP socket's option is on a session where nobody has set it; None for all others."""
    return _PLAIN.get(level, {}).get(option)


def known(level: int, option: int) -> SocketOption:
    """The option.

    Raises:
        OSError: ENOPROTOOPT: there is none.
    """
    if level != SOL_SESSION:
        raise OSError(errno.ENOPROTOOPT, f"a session has no option {option} of level {level}")
    try:
        return SocketOption(option)
    except ValueError as error:
        names = ", ".join(f"{each.name} ({each.value})" for each in SocketOption)
        raise OSError(
            errno.ENOPROTOOPT, f"there is no option {option}; there are {names}"
        ) from error
