"""The relay's listening sockets: MPTCP where the kernel has it, and transparent ones.

Transparent: packets that the host's own rules divert (TPROXY or REDIRECT) to a port of the relay;
where they were going is asked of the socket. MPTCP goes with TPROXY only, and only to a listener on
the very port that is diverted: the kernel refuses second subflows to another port than the
connection's own, and does not tell the original destination of a redirected MPTCP connection.
"""

import errno
import socket
import struct
from dataclasses import dataclass

from cedos.errors import HostError, PrivilegeError
from cedos.kernel.mptcp_socket import IPPROTO_MPTCP, mptcp_info

_IP_TRANSPARENT, _IPV6_TRANSPARENT = 19, 75
_ORIGINAL_DST = 80  # the same number for IPv4 and IPv6
_BACKLOG = 4096


@dataclass(frozen=True, slots=True)
class RelayAddress:
    """Where to listen; `transparent`: for connections that go somewhere else."""

    address: str
    port: int
    transparent: bool = False

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else (
            f"{self.address}:{self.port}")  # fmt: skip


def open_socket(where: RelayAddress) -> tuple[socket.socket, bool]:
    """A non-blocking socket, and whether it takes MPTCP. HostError or PrivilegeError: it cannot."""
    family = socket.AF_INET6 if ":" in where.address else socket.AF_INET
    try:
        listening, mptcp = socket.socket(family, socket.SOCK_STREAM, IPPROTO_MPTCP), True
    except OSError:
        listening, mptcp = socket.socket(family, socket.SOCK_STREAM), False
    try:
        listening.setblocking(False)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if where.transparent:
            option = (
                (socket.IPPROTO_IPV6, _IPV6_TRANSPARENT)
                if family == socket.AF_INET6
                else (socket.IPPROTO_IP, _IP_TRANSPARENT)
            )
            listening.setsockopt(*option, 1)
        listening.bind((where.address, where.port))
        listening.listen(_BACKLOG)
    except PermissionError as error:
        listening.close()
        needed = "CAP_NET_ADMIN" if where.transparent else "CAP_NET_BIND_SERVICE"
        raise PrivilegeError(f"cannot listen at {where}: {needed} is missing") from error
    except OSError as error:
        listening.close()
        raise HostError(f"cannot listen at {where}: {error.strerror}") from error
    return listening, mptcp


def original_destination(connection: socket.socket) -> tuple[str, int]:
    """Where a diverted connection was going: address and port."""
    six = connection.family == socket.AF_INET6
    level = socket.IPPROTO_IPV6 if six else socket.IPPROTO_IP
    try:
        raw = connection.getsockopt(level, _ORIGINAL_DST, 28 if six else 16)
    except OSError as error:
        # Not redirected but by TPROXY (no such connection there), or MPTCP, which does not say.
        if error.errno not in {errno.ENOENT, errno.EOPNOTSUPP, errno.ENOPROTOOPT}:
            raise
        address, port = connection.getsockname()[:2]
        return address, port
    (port,) = struct.unpack_from("!H", raw, 2)
    packed = raw[8:24] if six else raw[4:8]
    return socket.inet_ntop(connection.family, packed), port


def subflows(connection: socket.socket) -> int | None:
    """How many subflows an MPTCP connection has now; None: it is plain TCP."""
    try:
        info = mptcp_info(connection)
    except OSError:
        return None
    return info.subflows if info else None
