"""The socket of this host that sends from an address, and its owner, by the kernel (sock_diag)."""

import socket
from ipaddress import ip_address
from typing import Final, NamedTuple

from cedos.kernel import sock_diag
from cedos.kernel.netlink import NETLINK_SOCK_DIAG, Requester
from cedos.model import FlowKey

_KINDS: Final = {socket.IPPROTO_TCP: socket.SOCK_STREAM, socket.IPPROTO_UDP: socket.SOCK_DGRAM}

Endpoint = tuple[str, int]


class SocketOwner(NamedTuple):
    """A socket's cookie (SO_COOKIE), and its user."""

    cookie: int
    user: int


# The owner if the kernel cannot tell. No socket has this cookie.
UNKNOWN: Final = SocketOwner(0, -1)


class SocketOwners:
    """Look-ups of sockets, each in some microseconds, until `close`. They need no privilege."""

    def __init__(self) -> None:
        self._asking: Requester | None = None
        self._answers: dict[int, bool] = {}

    def find(
        self,
        protocol: int,
        program: Endpoint,
        to: Endpoint,
        *,
        interface: int = 0,
        living: bool = False,
    ) -> SocketOwner | None:
        """Return the socket that sends from `program` to `to`; None: there is none; `UNKNOWN`.

        `interface`: of its packets; without it, one that is bound to an interface counts as none.
        `living`: one that its program has closed, and that the kernel still serves, does likewise.
        """
        # Without the kernel's module for a protocol, it answers as if there were no socket. So look for a
        # socket of our own first.
        if protocol not in self._answers:
            with socket.socket(socket.AF_INET, _KINDS[protocol]) as own:
                own.bind(("127.0.0.1", 0))
                if protocol == socket.IPPROTO_TCP:
                    own.listen()
                found = self._find(protocol, own.getsockname(), ("127.0.0.1", 9), 0)
                self._answers[protocol] = found not in (None, UNKNOWN)
        known = self._answers[protocol]
        return self._find(protocol, program, to, interface, living=living) if known else UNKNOWN

    def _find(
        self,
        protocol: int,
        program: Endpoint,
        to: Endpoint,
        interface: int,
        *,
        living: bool = False,
    ) -> SocketOwner | None:
        local, remote = (ip_address(each[0].partition("%")[0]) for each in (program, to))
        key = FlowKey(local, program[1], remote, to[1])
        try:
            if self._asking is None:
                self._asking = Requester(NETLINK_SOCK_DIAG)
            request = sock_diag.sender_request(protocol, key, interface)
            answers = self._asking.ask(sock_diag.SOCK_DIAG_BY_FAMILY, request, 0)
        except FileNotFoundError:
            return None
        except OSError:
            return UNKNOWN
        if living and any(map(sock_diag.is_orphan, answers)):
            return None
        found = next(filter(None, map(sock_diag.owner_of, answers)), None)
        return UNKNOWN if found is None else SocketOwner(*found)

    def user_of(self, protocol: int, program: Endpoint, near: socket.socket) -> int:
        """Return the user of the open socket that sends from `program` to `near`, or `UNKNOWN`'s."""
        owner = self.find(protocol, program[:2], near.getsockname()[:2], living=True)
        return (owner or UNKNOWN).user

    def has_left(self, one: socket.socket) -> bool:
        """Return whether a program of this host at a TCP connection's other end has closed it.

        One that has ended only its own half still reads.
        """
        try:
            if one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == sock_diag.ESTABLISHED:
                return False
            ends = one.getpeername()[:2], one.getsockname()[:2]
        except OSError:
            return True  # it was reset
        return self.find(socket.IPPROTO_TCP, *ends, living=True) is None

    def close(self) -> None:
        if self._asking is not None:
            self._asking.close()
            self._asking = None
