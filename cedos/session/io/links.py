"""Which local interfaces lead to an address, and when that changes: rtnetlink, asked and heard.

Every connection of a session is bound to one interface, so the routing table's own preference does
not count: an interface is a way if a route leads through it, whatever its metric. Where the kernel
itself would go through a tunnel (a VPN) or stay inside the host, that is the only way: a session
never goes around a VPN.
"""

import asyncio
import errno
import os
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Final

from cedos.errors import HostError
from cedos.kernel.netlink import (
    NLM_F_DUMP,
    NLM_F_REQUEST,
    NLMSG_DONE,
    NLMSG_ERROR,
    NetlinkListener,
    NetlinkMessage,
    attribute,
    attributes,
    message,
    messages,
    unsigned,
)
from cedos.model import Address

# linux/rtnetlink.h, linux/if_link.h, linux/if_addr.h
_NETLINK_ROUTE: Final = 0
_RTM_NEWLINK, _RTM_GETLINK = 16, 18
_RTM_NEWADDR, _RTM_GETADDR = 20, 22
_RTM_NEWROUTE, _RTM_GETROUTE = 24, 26
_GROUPS: Final = (1, 5, 7, 9, 11)  # links, and addresses and routes of IPv4 and IPv6
_LINK = struct.Struct("=BxHiII")
_ADDRESS = struct.Struct("=BBBBI")
_ROUTE = struct.Struct("=BBBBBBBBI")
_IFLA_IFNAME, _IFLA_LINKINFO, _IFLA_INFO_KIND = 3, 18, 1
_IFA_ADDRESS, _IFA_LOCAL, _IFA_FLAGS = 1, 2, 8
_RTA_DST, _RTA_OIF = 1, 4
_ROUTE_TYPE, _RTN_LOCAL, _LOOPBACK_INDEX = 7, 2, 1
_FIB_MATCH: Final = 0x2000  # answer with the table's entry; without one, refuse
# IFF_UP and IFF_LOWER_UP, without IFF_DORMANT (Wi-Fi that has not authenticated yet). Not IFF_RUNNING:
# it follows the carrier up to a second late.
_STATE: Final = 0x1 | 0x10000 | 0x20000
_CARRIES: Final = 0x1 | 0x10000
_LOOPBACK: Final = 0x8
_UNUSABLE: Final = 0x08 | 0x40  # duplicate address detection failed, or has not ended
_TUNNELS: Final = frozenset(
    {b"tun", b"wireguard", b"ovpn", b"ipip", b"sit", b"gre", b"ip6gre", b"ip6tnl", b"vti", b"vti6"}
    | {b"xfrm"}
)


@dataclass(frozen=True, slots=True)
class Egress:
    """An interface that leads somewhere, with the own addresses that packets may come from there.

    `came_s` is when its link came up, by the loop's clock; of one that was up before, long ago.
    """

    interface: str
    index: int
    addresses: frozenset[str]
    came_s: float = float("-inf")


@dataclass(frozen=True, slots=True)
class _Interface:
    name: str
    index: int
    flags: int
    kind: bytes


class EgressReader:
    """Asks the kernel of the calling thread's network namespace; answers come at once.

    Raises:
        HostError: the kernel has no rtnetlink.
    """

    def __init__(self) -> None:
        try:
            self._socket = socket.socket(
                socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_ROUTE
            )
        except OSError as error:
            raise HostError(
                f"the kernel has no rtnetlink ({error.strerror}); a kernel with networking would be right"
            ) from error
        self._socket.bind((0, 0))
        self._socket.settimeout(2.0)
        self._sequence = 0

    def egresses(self, destination: Address) -> tuple[Egress, ...]:
        """The interfaces that lead to `destination`; empty where none does.

        Raises:
            HostError: the kernel does not answer.
        """
        try:
            return self._egresses(destination)
        except OSError as error:
            raise HostError(f"rtnetlink does not answer: {error.strerror or error}") from error

    def carrying(self) -> dict[int, bool]:
        """Of each interface, by its index, whether its link carries something; errors as for `ways`."""
        try:
            return {each.index: each.flags & _STATE == _CARRIES for each in self._interfaces()}
        except OSError as error:
            raise HostError(f"rtnetlink does not answer: {error.strerror or error}") from error

    def _egresses(self, destination: Address) -> tuple[Egress, ...]:
        family = socket.AF_INET if destination.version == 4 else socket.AF_INET6
        interfaces = {each.index: each for each in self._interfaces()}
        own = self._addresses(family)
        usual = interfaces.get(self._route(family, destination, None) or 0)
        if usual is not None and (usual.flags & _LOOPBACK or usual.kind in _TUNNELS):
            candidates = [usual]
        else:
            candidates = [each for each in interfaces.values() if not each.flags & _LOOPBACK]
        return tuple(
            Egress(each.name, each.index, frozenset(own.get(each.index, ())))
            for each in candidates
            if each.flags & _STATE == _CARRIES
            and (each.index in own or each.flags & _LOOPBACK)
            and (each is usual or self._route(family, destination, each.index) == each.index)
        )

    def _interfaces(self) -> list[_Interface]:
        found = []
        for answer in self._ask(_RTM_GETLINK, _LINK.pack(0, 0, 0, 0, 0), NLM_F_DUMP):
            if answer.type != _RTM_NEWLINK:
                continue
            _, _, index, flags, _ = _LINK.unpack_from(answer.payload)
            said = attributes(answer.payload, _LINK.size)
            kind = attributes(said.get(_IFLA_LINKINFO, b"")).get(_IFLA_INFO_KIND, b"")
            name = said.get(_IFLA_IFNAME, b"").rstrip(b"\0").decode("utf-8", "surrogateescape")
            found.append(_Interface(name, index, flags, kind.rstrip(b"\0")))
        return found

    def _addresses(self, family: int) -> dict[int, set[str]]:
        found: dict[int, set[str]] = {}
        for answer in self._ask(_RTM_GETADDR, _ADDRESS.pack(family, 0, 0, 0, 0), NLM_F_DUMP):
            if answer.type != _RTM_NEWADDR:
                continue
            of, _, flags, _, index = _ADDRESS.unpack_from(answer.payload)
            said = attributes(answer.payload, _ADDRESS.size)
            flags |= unsigned(said.get(_IFA_FLAGS)) or 0
            own = said.get(_IFA_LOCAL) or said.get(_IFA_ADDRESS)
            if of == family and own and not flags & _UNUSABLE:
                found.setdefault(index, set()).add(socket.inet_ntop(family, own))
        return found

    def _route(self, family: int, destination: Address, through: int | None) -> int | None:
        """The index of the interface a packet would leave by; None where no route leads there."""
        packed = destination.packed
        header = _ROUTE.pack(family, 8 * len(packed), 0, 0, 0, 0, 0, 0, _FIB_MATCH)
        wanted = header + attribute(_RTA_DST, packed)
        if through is not None:
            wanted += attribute(_RTA_OIF, struct.pack("=I", through))
        try:
            answers = self._ask(_RTM_GETROUTE, wanted, 0)
        except OSError as error:
            if error.errno == errno.ETIMEDOUT:
                raise
            return None  # no route: ENETUNREACH, EHOSTUNREACH, EACCES, EINVAL, ENODEV
        for answer in answers:
            if answer.type == _RTM_NEWROUTE:
                if answer.payload[_ROUTE_TYPE] == _RTN_LOCAL:
                    return _LOOPBACK_INDEX  # an own address: told with the interface that has it
                return unsigned(attributes(answer.payload, _ROUTE.size).get(_RTA_OIF))
        return None

    def _ask(self, kind: int, payload: bytes, flags: int) -> list[NetlinkMessage]:
        self._sequence += 1
        self._socket.send(message(kind, NLM_F_REQUEST | flags, self._sequence, payload))
        answers: list[NetlinkMessage] = []
        while True:
            try:
                data = self._socket.recv(1 << 16)
            except TimeoutError as error:
                raise OSError(errno.ETIMEDOUT, "no answer in two seconds") from error
            for answer in messages(data):
                if answer.sequence != self._sequence:
                    continue  # left behind by a question that failed
                if answer.type == NLMSG_DONE:
                    return answers
                if answer.type == NLMSG_ERROR:
                    code = -struct.unpack_from("=i", answer.payload)[0]
                    if code:
                        raise OSError(code, os.strerror(code))
                    return answers
                answers.append(answer)
                if not flags & NLM_F_DUMP:
                    return answers

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()


class EgressTable:
    """Tells when the ways may have changed, and what they are now; of the loop's own namespace.

    Args:
        changed: called once after each burst of the kernel's messages.

    Raises:
        HostError: the kernel has no rtnetlink, or does not answer.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._told = False
        self._known: dict[Address, tuple[Egress, ...]] = {}
        self._came_s: dict[int, float] = {}
        self._kernel = EgressReader()
        self._listener = NetlinkListener(_NETLINK_ROUTE, _GROUPS, self._hear, self._heard, 1 << 20)
        try:
            # Messages tell of any change of a link: what carried before has not come with the first one.
            self._carry = self._kernel.carrying()
        except HostError:
            self.close()
            raise

    def egresses(self, destination: str) -> tuple[Egress, ...]:
        """The ways to `destination` (IPv4 or IPv6, without a scope) at this moment."""
        address = ip_address(destination.partition("%")[0])
        if address not in self._known:
            self._known[address] = tuple(
                replace(way, came_s=self._came_s.get(way.index, way.came_s))
                for way in self._kernel.egresses(address)
            )
        return self._known[address]

    def _hear(self, datagram: bytes) -> None:
        for said in messages(datagram):
            if said.type == _RTM_NEWLINK:
                _, _, index, flags, _ = _LINK.unpack_from(said.payload)
                carries = flags & _STATE == _CARRIES
                if carries and not self._carry.get(index):
                    self._came_s[index] = self._loop.time()
                self._carry[index] = carries
        self._heard()

    def _heard(self) -> None:
        self._known.clear()
        if not self._told:
            self._told = True
            self._loop.call_soon(self._tell)

    def _tell(self) -> None:
        self._told = False
        self._changed()

    def close(self) -> None:
        """Stops listening."""
        self._listener.close()
        self._kernel.close()
