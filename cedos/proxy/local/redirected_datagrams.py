"""Datagrams of redirected users: each destination has an address within this host that stands for it.

The BPF programs (`redirection_programs`) send a datagram to that address, where the proxy receives it.
The proxy finds the destination by the address, and sends answers from there. It has several sockets at
one port, so that one user's datagrams do not fill the buffer in which another one's wait. Questions to
resolvers come here, too, and are answered by `name_stub`.
"""

import asyncio
import socket
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from typing import Any, Final

from cedos.errors import HostError
from cedos.kernel.netlink import NETLINK_ROUTE, NetlinkListener, messages
from cedos.kernel.policy_routing import is_of_host
from cedos.kernel.rtnetlink import GROUP_IPV6_ROUTE, RTM_DELROUTE
from cedos.kernel.socket_owners import UNKNOWN, SocketOwners
from cedos.proxy.gateway.packet_relay import IDLE_S
from cedos.proxy.local.program_packets import MOST_DESTINATIONS, Came, ProgramPackets, Refused
from cedos.proxy.local.redirection import Redirection, SentTo
from cedos.proxy.local.redirection_programs import NAMES_PORT, STRANGERS, LedDatagrams

# The most redirected sockets. A gateway gives one client 512 associations.
MOST_SOCKETS: Final = 384

_MOST_KNOWN: Final = 16_384
_AT_ONCE: Final = 64
_LARGEST: Final = 65_535
_RECEIVE_BYTES: Final = 1 << 18
_CHECK_S: Final = 15.0
_STRANGERS_S: Final = 0.5
_CHECKED_S: Final = 0.1
_PORTS: Final = 8  # so many ports are tried: one has to be free for both families
_LOOPBACK_INDEX: Final = 1
_IP_PKTINFO, _IPV6_FREEBIND = 8, 78
_PKTINFO4, _PKTINFO6 = struct.Struct("=i4s4s"), struct.Struct("=16si")


@dataclass(slots=True)
class _Known:
    """A destination that datagrams were sent to, its ends here, and when the sender was last checked.

    `address` stands for it; `by`: the proxy's socket. `answered_s`: the sender was checked for an answer,
    which does not show that the address stands for the same.
    """

    to: SentTo
    address: str
    sender: Any
    by: socket.socket
    checked_s: float
    answered_s: float = 0.0


class _Sender:
    """A program's socket that sends datagrams, and the carrier of these."""

    def __init__(
        self,
        user: int,
        packets: Callable[[int, Came, Refused], ProgramPackets],
        came: Callable[[_Known, bytes], None],
        refused: Callable[[str, Any], None],
    ) -> None:
        self.user = user
        self.packets = packets(user, self._on_answer, self._not_taken)
        self.destinations: OrderedDict[tuple[str, int], _Known] = OrderedDict()
        self._came, self._refused = came, refused

    def send(self, known: _Known, data: bytes) -> None:
        destination = known.to.address, known.to.port
        self.destinations[destination] = known
        self.destinations.move_to_end(destination)
        while len(self.destinations) > MOST_DESTINATIONS:
            self.destinations.popitem(last=False)
        self.packets.send(*destination, data)

    def _on_answer(self, host: str, port: int, data: bytes) -> None:
        known = self.destinations.get((host, port))
        if known is not None:
            self._came(known, data)

    def _not_taken(self, host: str, port: int) -> None:
        known = self.destinations.get((host, port))
        if known is not None:
            self._refused(known.address, known.sender)


class RedirectedDatagrams:
    """The datagrams of all redirected programs: `open`, then `close`. Made within the event loop.

    All datagrams of one socket leave the gateway from one port, as from a NAT whose mapping is
    independent of the endpoint (RFC 4787, REQ-1), so that the two ends of a call find each other.
    """

    def __init__(
        self,
        redirection: Redirection,
        # Takes a user's question to a resolver, and calls back with the answer.
        question: Callable[[bytes, int, Callable[[bytes], None]], None],
        # Returns the carrier of one socket's packets, which calls back with the answers.
        packets: Callable[[int, Came, Refused], ProgramPackets],
        *,
        most: int = MOST_SOCKETS,
        idle_s: float = IDLE_S,
    ) -> None:
        self._redirection, self._question, self._packets = redirection, question, packets
        self._most, self._idle_s = most, idle_s
        self._loop = asyncio.get_running_loop()
        self._families: list[list[socket.socket]] = []
        self._refusals = Refusals()
        self._owners = SocketOwners()
        self._port = 0
        self._senders: OrderedDict[int, _Sender] = OrderedDict()
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._ending: set[asyncio.Task[None]] = set()
        self._checking: asyncio.TimerHandle | None = None
        self._routes: NetlinkListener | None = None

    def __len__(self) -> int:
        return len(self._senders)

    def open(self) -> LedDatagrams:
        """Listen, and return where datagrams have to be sent. HostError: it cannot listen."""
        try:
            self._families, self._port = _bound()
        except OSError as error:
            raise HostError(f"cannot listen for datagrams: {error.strerror or error}") from error
        six = len(self._families) > 1 and self._redirection.hold_addresses(self._port)
        if six:
            self._routes = NetlinkListener(
                NETLINK_ROUTE, [GROUP_IPV6_ROUTE], self._on_route_change, self._hold_addresses
            )
        for sockets in self._families:
            self._redirection.divide(sockets)
            for one in sockets[:STRANGERS]:
                self._loop.add_reader(one, self._readable, one)
            self._hear_strangers(sockets[STRANGERS])
        self._check()
        return LedDatagrams(self._port, six)

    def _hold_addresses(self) -> None:
        self._redirection.hold_addresses(self._port)

    def _on_route_change(self, events: bytes) -> None:
        """Put the route back that another program has deleted, or datagrams would go into a network."""
        if any(each.type == RTM_DELROUTE and is_of_host(each) for each in messages(events)):
            self._hold_addresses()

    async def close(self) -> None:
        if self._routes is not None:
            self._routes.close()
        if self._checking is not None:
            self._checking.cancel()
        for sockets in self._families:
            for one in sockets:
                self._loop.remove_reader(one)
                one.close()
        self._families.clear()
        self._refusals.close()
        for cookie in list(self._senders):
            self._end(cookie)
        await asyncio.gather(*self._ending, return_exceptions=True)
        self._owners.close()

    def _readable(self, one: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                data, ancillary, _, sender = one.recvmsg(_LARGEST, 128)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                continue
            address = _sent_to(ancillary)
            if address is not None:
                self._take(one, address, sender, data)

    def _hear_strangers(self, one: socket.socket) -> None:
        """Take a few datagrams that were sent to no place, and later more.

        So a connected socket learns that its place was forgotten: its user had too many.
        """
        if self._families:  # not closed
            self._readable(one)
            self._loop.call_later(_STRANGERS_S, self._hear_strangers, one)

    def _take(self, one: socket.socket, address: str, sender: Any, data: bytes) -> None:
        known, now_s = self._known.get(address), self._loop.time()
        # Fast path: the same socket sent to the same address here a moment ago.
        if known is None or known.sender != sender or now_s > known.checked_s + _CHECKED_S:
            known = self._check_sender(one, address, sender, now_s)
            if known is None:
                self._on_refused(address, sender)
                return
        to = known.to
        if to.port == NAMES_PORT:
            self._question(data, to.user, partial(self._on_answer, known))
            return
        program = self._senders.get(to.cookie)
        if program is None:
            self._make_room(to.user)
            program = self._senders[to.cookie] = _Sender(
                to.user, self._packets, self._on_answer, self._on_refused
            )
        self._senders.move_to_end(to.cookie)
        program.send(known, data)

    def _check_sender(
        self, one: socket.socket, address: str, sender: Any, now_s: float
    ) -> _Known | None:
        """Return a datagram's destination if its sender is the socket that the address was made for.

        None: it is another one. Any program could find the address and send to it, and the sender's port
        may belong to another program by now.
        """
        to = self._redirection.place(address)
        if to is None:
            self._redirection.end(sender[:2], (address, self._port))
            return None
        found = _Known(to, address, sender, one, now_s)
        whose = self._is_of(found)
        if whose is None and to.cookie not in self._senders:
            # The program sent a datagram and has ended: send it, but remember nothing for answers.
            found.checked_s = 0.0
            return found
        if not whose:
            return None
        self._known[address] = found
        self._known.move_to_end(address)
        while len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)
        return found

    def _is_of(self, known: _Known) -> bool | None:
        """Tell whether the place's own socket sends from there; None: no socket does."""
        here = known.address, self._port
        owner = self._owners.find(socket.IPPROTO_UDP, known.sender[:2], here)
        return owner and owner.cookie in (known.to.cookie, UNKNOWN.cookie)

    def _make_room(self, user: int) -> None:
        """Drop a socket of the user who has most of them: the one that has been silent for longest."""
        if len(self._senders) < self._most:
            return
        held = Counter(each.user for each in self._senders.values())
        most = max(held.values())
        full = {each for each, number in held.items() if number == most}
        whose = user if user in full else min(full)
        self._end(next(cookie for cookie, each in self._senders.items() if each.user == whose))

    def _on_answer(self, known: _Known, data: bytes) -> None:
        """Hand an answer on, unless the program's port is free, or another one's, by now."""
        now_s = self._loop.time()
        if now_s > max(known.checked_s, known.answered_s) + _CHECKED_S:
            if not self._is_of(known):
                return
            known.answered_s = now_s
        with suppress(OSError):  # the program does not read, or has gone
            known.by.sendmsg([data], [_source_control(known.address)], 0, known.sender)

    def _on_refused(self, address: str, sender: Any) -> None:
        self._refusals.tell(sender[:2], (address, self._port))

    def _end(self, cookie: int) -> None:
        program = self._senders.pop(cookie)
        for known in program.destinations.values():
            self._known.pop(known.address, None)
        task = self._loop.create_task(program.packets.end())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _check(self) -> None:
        self._checking = self._loop.call_later(min(_CHECK_S, self._idle_s), self._check)
        old_s = self._loop.time() - self._idle_s
        for cookie, each in list(self._senders.items()):
            if each.packets.used_s <= old_s:
                self._end(cookie)
        if len(self._families) > 1:
            self._hold_addresses()


def _bound() -> tuple[list[list[socket.socket]], int]:
    """Return the sockets of each family that this host has, IPv4 first, and their common port."""
    for left in reversed(range(_PORTS)):
        with ExitStack() as opened:
            try:
                four = _sockets(opened, socket.AF_INET, "0.0.0.0", 0)  # noqa: S104 (outside: `_sent_to`)
                port: int = four[0].getsockname()[1]
                try:
                    _socket(socket.AF_INET6).close()
                except OSError:
                    families = [four]
                else:
                    families = [four, _sockets(opened, socket.AF_INET6, "::", port)]
            except OSError:
                if not left:
                    raise
            else:
                opened.pop_all()
                return families, port
    raise AssertionError("the last one raises")


def _sockets(
    opened: ExitStack, family: socket.AddressFamily, address: str, port: int
) -> list[socket.socket]:
    """Return sockets at one port: a buffer for each part of the users, and one for strangers."""
    made = []
    for _ in range(STRANGERS + 1):
        made.append(opened.enter_context(_socket(family)))
        made[-1].bind((address, port))
        port = made[-1].getsockname()[1]
    return made


def _socket(family: socket.AddressFamily) -> socket.socket:
    """Return a socket that knows the destination of each datagram, and may answer from there."""
    one = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
    if family is socket.AF_INET:
        one.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
    else:
        one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
        one.setsockopt(socket.IPPROTO_IPV6, _IPV6_FREEBIND, 1)
    return one


def _sent_to(ancillary: Sequence[tuple[int, int, bytes]]) -> str | None:
    """Return the destination of a datagram; None: it came from outside this host."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.IPPROTO_IP, _IP_PKTINFO):
            index, _, address = _PKTINFO4.unpack(data)
        elif (level, kind) == (socket.IPPROTO_IPV6, socket.IPV6_PKTINFO):
            address, index = _PKTINFO6.unpack(data)
        else:
            continue
        if index == _LOOPBACK_INDEX:
            return str(ip_address(address))
    return None


def _source_control(address: str) -> tuple[int, int, bytes]:
    """Return the control message that sends a datagram from an address."""
    packed = ip_address(address).packed
    if len(packed) == 4:
        return socket.IPPROTO_IP, _IP_PKTINFO, _PKTINFO4.pack(0, packed, bytes(4))
    return socket.IPPROTO_IPV6, socket.IPV6_PKTINFO, _PKTINFO6.pack(packed, 0)


_ICMP_FILTER, _SOL_RAW = 1, 255
_UNREACHABLE4, _UNREACHABLE6 = (3, 3), (1, 4)  # type and code: that port (RFC 792, RFC 4443)
_ICMP: Final = struct.Struct("!BBHI")
_IPV4: Final = struct.Struct("!BBHHHBBH4s4s")
_IPV6: Final = struct.Struct("!IHBB16s16s")
_UDP: Final = struct.Struct("!HHHH")


class Refusals:
    """ICMP messages to programs of this host: a port does not take their datagrams.

    Without CAP_NET_RAW nothing is sent, as if the datagram had been lost.
    """

    def __init__(self) -> None:
        self._sockets: dict[int, socket.socket] = {}
        for version, family, protocol, level, nothing in (
            (4, socket.AF_INET, socket.IPPROTO_ICMP, _SOL_RAW, b"\xff" * 4),
            (6, socket.AF_INET6, socket.IPPROTO_ICMPV6, socket.IPPROTO_ICMPV6, b"\xff" * 32),
        ):
            with suppress(OSError):
                one = socket.socket(family, socket.SOCK_RAW | socket.SOCK_NONBLOCK, protocol)
                self._sockets[version] = one
                one.setsockopt(level, _ICMP_FILTER, nothing)

    def tell(self, program: tuple[str, int], receiver: tuple[str, int]) -> None:
        """Tell a program (its address and port) that its datagram was refused at `receiver`."""
        one = self._sockets.get(ip_address(receiver[0]).version)
        if one is not None:
            with suppress(OSError):
                one.sendto(unreachable(program, receiver), (program[0], 0))

    def close(self) -> None:
        for one in self._sockets.values():
            one.close()


def unreachable(sender: tuple[str, int], receiver: tuple[str, int]) -> bytes:
    """Return an ICMP message about a datagram's headers; the kernel adds the checksum for IPv6."""
    source, destination = ip_address(sender[0]).packed, ip_address(receiver[0]).packed
    udp = _UDP.pack(sender[1], receiver[1], _UDP.size, 0)
    if len(source) == 4:
        length = _IPV4.size + _UDP.size
        about = _IPV4.pack(0x45, 0, length, 0, 0, 64, socket.IPPROTO_UDP, 0, source, destination)
        message = _ICMP.pack(*_UNREACHABLE4, 0, 0) + about + udp
        return _ICMP.pack(*_UNREACHABLE4, _checksum(message), 0) + about + udp
    about = _IPV6.pack(6 << 28, _UDP.size, socket.IPPROTO_UDP, 64, source, destination)
    return _ICMP.pack(*_UNREACHABLE6, 0, 0) + about + udp


def _checksum(data: bytes) -> int:
    """Return the Internet checksum of an even number of bytes (RFC 1071)."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF
