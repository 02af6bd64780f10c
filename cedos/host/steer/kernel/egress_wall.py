"""The second wall of barred networks: a filter at the interface, where no packet filter's flush reaches.

After a flush of the first wall (`filter_rules`) the second one drops its packets until it is repaired.
It also drops packets that pass the first one by (packet sockets). Resets, addresses and neighbours go
through. Of guests that have an address of their own upon the interface (macvlan) nothing does: they pass
the first wall by. No program is told why others do not. Incoming packets are not looked at: their bytes
are paid for already, and without an answer the flow ends. See docs/decisions/second-wall.md.

Beside it stands the filter of users' rules (`rule_filter`), which this module puts up, too.

Ours are told by priority and handle. The handle says, too, whether the interface had a `clsact` before.
"""

import errno
import os
import struct
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Final

from cedos.errors import HostError
from cedos.host.steer.kernel import rule_filter
from cedos.host.steer.kernel.filter_rules import (
    HOST_ICMPV6,
    REPORT_BYTES,
    RESET_BYTES,
    SMALL_ICMPV6,
)
from cedos.kernel import bpf, rtnetlink
from cedos.kernel.bpf import BpfMap, MapType, ProgramType
from cedos.kernel.classic_bpf import NETWORK_HEADER, PROTOCOL, Assembler
from cedos.kernel.netlink import (
    NETLINK_ROUTE,
    NLM_F_ACK,
    NLM_F_CREATE,
    NLM_F_EXCL,
    NetlinkMessage,
    Requester,
    attribute,
    attributes,
    build_nested,
    text,
)
from cedos.kernel.rtnetlink import Link

# rtnetlink's messages on filters of what leaves an interface (linux/pkt_cls.h). Ours stand at the qdisc
# `clsact`, which queues nothing; they are classic BPF and decide by themselves (`direct-action`).
RTM_NEWQDISC, RTM_DELQDISC, RTM_GETQDISC = 36, 37, 38
RTM_NEWTFILTER, RTM_DELTFILTER, RTM_GETTFILTER = 44, 45, 46
GROUP_TRAFFIC_CONTROL: Final = 4
# The verdict of a BPF program for packets of others (TC_ACT_UNSPEC).
PASS: Final = 0xFFFFFFFF
# TC_ACT_SHOT.
DROP: Final = 2
# The parents of the filters of a `clsact`.
INGRESS, EGRESS = 0xFFFFFFF2, 0xFFFFFFF3
CLSACT: Final = "clsact"
# A qdisc of the same handle. A filter on what leaves would be put, by the kernel, on what comes in.
_INGRESS_ALONE: Final = "ingress"
_CLSACT_PARENT, _CLSACT_HANDLE = 0xFFFFFFF1, 0xFFFF0000
_MESSAGE: Final = struct.Struct("=BxxxiIII")  # family, interface, handle, parent, information
_KIND, _OPTIONS = 1, 2
_BPF: Final = "bpf"
_BPF_LENGTH, _BPF_CODE, _BPF_FILE, _BPF_NAME, _BPF_FLAGS = 4, 5, 6, 7, 8
_DIRECT_ACTION: Final = 1
_INSTRUCTION_BYTES: Final = 8
_EVERY_PROTOCOL: Final = 0x0300  # ETH_P_ALL in network byte order
# Of the wall, and of users' rules.
_PRIORITY, _OF_RULES = 7300, 7301
_CLSACT_IS_OURS, _CLSACT_WAS_THERE = 0xCED05, 0xCED06
_HANDLES: Final = (_CLSACT_IS_OURS, _CLSACT_WAS_THERE)
_ETHERNET, _ETHERNET_HEADER_BYTES = 1, 14
_SOURCE_AT, _HARDWARE_ADDRESS_BYTES = 6, 6
_IPV4, _IPV6 = 0x0800, 0x86DD
# ARP; what keeps Wi-Fi joined: IEEE 802.1X, that of the next access point, and WAPI.
_LINK_PROTOCOLS: Final = (0x0806, 0x888E, 0x88C7, 0x88B4)
_TCP, _UDP, _ICMP, _ICMPV6, _HOP_BY_HOP = 6, 17, 1, 58, 0
_RESET: Final = 0x04
_UNREACHABLE: Final = 3
_DHCP, _DHCPV6 = 68 << 16 | 67, 546 << 16 | 547
_FRAGMENT_OFFSET: Final = 0x1FFF
_IPV6_BYTES: Final = 40
_GONE: Final = (errno.ENODEV, errno.ENXIO)
# The kernel's errors if it lacks `clsact` or its programs.
_MISSING: Final = (errno.ENOENT, errno.EOPNOTSUPP, errno.EINVAL)


@dataclass(frozen=True, slots=True)
class TrafficControl:
    """A qdisc, or a filter, of which `parent` is where it stands.

    The kernel lists filters twice: as one of their priority (handle 0), and each.
    """

    index: int
    kind: str
    handle: int
    parent: int
    priority: int


def clsact_request(index: int) -> bytes:
    """Add or delete an interface's `clsact` (RTM_NEWQDISC, RTM_DELQDISC), with all its filters."""
    head = _MESSAGE.pack(0, index, _CLSACT_HANDLE, _CLSACT_PARENT, 0)
    return head + attribute(_KIND, CLSACT.encode() + b"\0")


def filter_request(index: int, priority: int, handle: int, code: bytes) -> bytes:
    """Add a filter on what leaves an interface (RTM_NEWTFILTER)."""
    return _filter_request(
        index,
        priority,
        handle,
        attribute(_BPF_LENGTH, struct.pack("=H", len(code) // _INSTRUCTION_BYTES)),
        attribute(_BPF_CODE, code),
    )


def _filter_request(index: int, priority: int, handle: int, *program: bytes) -> bytes:
    direct = attribute(_BPF_FLAGS, struct.pack("=I", _DIRECT_ACTION))
    return _filter(index, priority, handle) + build_nested(_OPTIONS, direct, *program)


def named_filter_request(index: int, priority: int, handle: int) -> bytes:
    """Ask for one, or delete it (RTM_GETTFILTER, RTM_DELTFILTER)."""
    return _filter(index, priority, handle)


def _filter(index: int, priority: int, handle: int) -> bytes:
    head = _MESSAGE.pack(0, index, handle, EGRESS, priority << 16 | _EVERY_PROTOCOL)
    return head + attribute(_KIND, _BPF.encode() + b"\0")


def qdiscs_request() -> bytes:
    """Ask (a dump of RTM_GETQDISC) for the qdiscs of all interfaces."""
    return _MESSAGE.pack(0, 0, 0, 0, 0)


def filters_request(index: int, parent: int) -> bytes:
    """Ask (a dump of RTM_GETTFILTER) for the filters at one place."""
    return _MESSAGE.pack(0, index, 0, parent, 0)


def parse(message: NetlinkMessage) -> TrafficControl | None:
    """Return the message's content; None if it is too short."""
    if len(message.payload) < _MESSAGE.size:
        return None
    _, index, handle, parent, information = _MESSAGE.unpack_from(message.payload)
    kind = text(attributes(message.payload, _MESSAGE.size).get(_KIND))
    return TrafficControl(index, kind, handle, parent, information >> 16)


def takes_out(message: NetlinkMessage) -> bool:
    """Return whether filters on what leaves an interface may have gone."""
    if message.type not in (RTM_DELQDISC, RTM_DELTFILTER):
        return False
    gone = parse(message)
    if gone is None:
        return False
    return gone.kind == CLSACT if message.type == RTM_DELQDISC else gone.parent == EGRESS


@dataclass(slots=True)
class _Rules:
    """An interface's filter of users' rules: the open table and program, and what is in the table."""

    table: BpfMap
    program: int
    elements: set[bytes] = field(default_factory=set)

    @classmethod
    def new(cls) -> "_Rules":
        table = BpfMap(
            rule_filter.KEY_BYTES, rule_filter.VALUE.size, rule_filter.MOST, MapType.LPM_TRIE
        )
        try:
            code = rule_filter.program(table.file)
            return cls(table, bpf.load(code, ProgramType.SCHED_CLS, name="cedos_rules"))
        except BaseException:
            table.close()
            raise

    def change(self, changes: Mapping[bytes, bool | None]) -> None:
        for key, forbidden in changes.items():
            if forbidden is not None:
                self.table[key] = rule_filter.VALUE.pack(forbidden)
                self.elements.add(key)
            elif key in self.elements:
                del self.table[key]
                self.elements.discard(key)

    def close(self) -> None:
        os.close(self.program)
        self.table.close()


class EgressWall:
    """The wall at the interfaces of one namespace. Other threads may call it, too. Errors: OSError.

    HostError: this kernel has no such filters (CONFIG_NET_SCH_INGRESS, CONFIG_NET_CLS_BPF), or an
    interface has another qdisc in their place.
    """

    def __init__(self) -> None:
        self._requester = Requester(NETLINK_ROUTE)
        self._turn = threading.Lock()
        self._made: set[int] = set()
        self._addresses: dict[int, bytes] = {}
        self._rules: dict[int, _Rules] = {}

    def forbid(self, index: int, changes: Mapping[bytes, bool | None]) -> None:
        """Say of elements (`rule_filter`) whether they are forbidden at an interface; None: forget them.

        Where nothing is left to say, the filter goes. One that an earlier daemon left is replaced.
        """
        with self._turn:
            new = index not in self._rules
            if new and not any(each is not None for each in changes.values()):
                return
            rules = _Rules.new() if new else self._rules[index]
            try:
                rules.change(changes)
                if new:
                    self._put_rules(index, rules, anew=True)
            except BaseException:
                if new:
                    rules.close()
                raise
            self._rules[index] = rules
            if not rules.elements:
                self._rules.pop(index).close()
                self._take_down(index, self._qdiscs().get(index, ""), (_OF_RULES,))

    def put_back_rules(self) -> bool:
        """Put back the filters of users' rules that others took out; return whether there was one."""
        with self._turn:
            put_back = [self._put_rules(index, rules) for index, rules in self._rules.items()]
        return any(put_back)

    def put_up(self, names: Collection[str]) -> bool:
        """Put up what is missing of it at these interfaces; return whether something was.

        An interface that is not there has none until the next time. Where one cannot have it, the others
        have.
        """
        put_up, refused = [], None
        with self._turn:
            for link in self._existing_links(names):
                try:
                    put_up.append(self._put_up(link))
                except (OSError, HostError) as error:
                    refused = error
        if refused is not None:
            raise refused
        return any(put_up)

    def remove(self, but: Collection[str]) -> bool:
        """Take down the wall of any process but at these interfaces; return whether one stood.

        Filters of users' rules go where this object has put up none.
        """
        with self._turn:
            there = self._qdiscs()
            kept = {link.index for link in self._existing_links(but)}
            taken_down = False
            for index, kind in there.items():
                stays = {_PRIORITY: index in kept, _OF_RULES: index in self._rules}
                if gone := [priority for priority, each in stays.items() if not each]:
                    if _PRIORITY in gone:
                        self._addresses.pop(index, None)
                    taken_down |= self._take_down(index, kind, gone)
        return taken_down

    def close(self) -> None:
        """Close what is open; filters stay."""
        for rules in self._rules.values():
            rules.close()
        self._rules.clear()
        self._requester.close()

    def _existing_links(self, names: Collection[str]) -> list[Link]:
        # (All at once: each question of its own may have to wait for a change of any interface.)
        answers = self._requester.dump(rtnetlink.RTM_GETLINK, rtnetlink.links_request())
        found = filter(None, map(rtnetlink.parse_link, answers))
        return [link for link in found if link.name in names]

    def _put_up(self, link: Link) -> bool:
        try:
            added = self._add(link)
            if not added and self._addresses.get(link.index) != link.hardware_address:
                # It was put up for another address, or by a daemon that is no more.
                self._requester.ask(*self._filter(link), NLM_F_ACK | NLM_F_CREATE)
            self._addresses[link.index] = link.hardware_address
            if added:
                self._empty_queue(link)
            return added
        except OSError as error:
            if error.errno in _GONE:
                return False
            raise _without_filters(error) from error

    def _put_rules(self, index: int, rules: _Rules, *, anew: bool = False) -> bool:
        """Put up the filter of users' rules; `anew`: also in the place of an earlier daemon's.

        Return whether it did. An interface that is gone has none.
        """
        try:
            if self._stands(index, _OF_RULES) and not anew:
                return False
            request = partial(self._rules_request, index, rules)
            return self._put(index, f"interface {index}", request, NLM_F_CREATE)
        except OSError as error:
            if error.errno in _GONE:
                return False
            raise _without_filters(error) from error

    def _rules_request(self, index: int, rules: _Rules) -> tuple[int, bytes]:
        return RTM_NEWTFILTER, _filter_request(
            index,
            _OF_RULES,
            self._handle(index),
            attribute(_BPF_FILE, struct.pack("=I", rules.program)),
            attribute(_BPF_NAME, b"cedos_rules\0"),
        )

    def _empty_queue(self, link: Link) -> None:
        """Drop what waits to leave: it has passed the wall's place already, and may be megabytes.

        The kernel does so whenever a queue gets another length.
        """
        with suppress(OSError):  # the driver refuses another length, or the interface has gone
            self._requester.ask_together(
                *(
                    (rtnetlink.RTM_NEWLINK, rtnetlink.queue_request(link.index, packets), 0)
                    for packets in (link.queue_packets + 1, link.queue_packets)
                )
            )

    def _add(self, link: Link) -> bool:
        if self._stands(link.index, _PRIORITY):
            return False
        new = NLM_F_CREATE | NLM_F_EXCL
        return self._put(link.index, link.name, lambda: self._filter(link), new)

    def _put(
        self, index: int, name: str, request: Callable[[], tuple[int, bytes]], flags: int
    ) -> bool:
        """Add a filter, with what it stands on; return False if it was there."""
        clsact, kind = clsact_request(index), self._qdiscs().get(index)
        if kind == _INGRESS_ALONE:
            raise HostError(
                f"{name} has the qdisc `{kind}`, in whose place `{CLSACT}` would be needed"
            )
        makes = []
        if kind is None:
            # Without the filter none would know it for ours.
            self._made.add(index)
            makes.append((RTM_NEWQDISC, clsact, NLM_F_CREATE | NLM_F_EXCL))
        *unmade, refused = self._requester.ask_together(*makes, (*request(), flags))
        if refused is not None and refused.errno != errno.EEXIST:
            if makes:
                self._made.discard(index)
            if unmade == [None]:
                self._requester.ask(RTM_DELQDISC, clsact)
            raise next(filter(None, unmade), refused)
        return refused is None

    def _stands(self, index: int, priority: int) -> bool:
        """Return whether it is there. A killed daemon's tells, too, who has made what it stands on."""
        for handle in sorted(_HANDLES, key=self._handle(index).__ne__):
            try:
                asked = named_filter_request(index, priority, handle)
                self._requester.ask(RTM_GETTFILTER, asked)
            except OSError as error:
                if error.errno in _GONE:
                    raise
                continue
            if handle == _CLSACT_IS_OURS:
                self._made.add(index)
            return True
        return False

    def _filter(self, link: Link) -> tuple[int, bytes]:
        code = program(link.type, link.hardware_address)
        handle = self._handle(link.index)
        return RTM_NEWTFILTER, filter_request(link.index, _PRIORITY, handle, code)

    def _handle(self, index: int) -> int:
        return _CLSACT_IS_OURS if index in self._made else _CLSACT_WAS_THERE

    def _qdiscs(self) -> dict[int, str]:
        """Return the interfaces that may have the wall, each with the kind of what it would stand on."""
        try:
            answers = self._requester.dump(RTM_GETQDISC, qdiscs_request())
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:  # a kernel without traffic control
                return {}
            raise
        found = filter(None, map(parse, answers))
        return {each.index: each.kind for each in found if each.kind in (CLSACT, _INGRESS_ALONE)}

    def _take_down(self, index: int, kind: str, priorities: Collection[int]) -> bool:
        """Take down filters of ours, and what they stood on if nothing else does; False: none stood."""
        leaving = self._filters(index, EGRESS)
        ours = [each for each in leaving if each.priority in priorities and each.handle in _HANDLES]
        made = index in self._made or any(each.handle == _CLSACT_IS_OURS for each in ours)
        # (The kernel lists a priority, too, with the handle 0.)
        others = any(
            each.priority not in priorities or (each.handle and each not in ours)
            for each in leaving
        )
        with suppress(FileNotFoundError):  # another program has been faster
            if made and kind == CLSACT and not others and not self._filters(index, INGRESS):
                self._made.discard(index)
                self._requester.ask(RTM_DELQDISC, clsact_request(index))
                return True
            for each in ours:
                request = named_filter_request(index, each.priority, each.handle)
                self._requester.ask(RTM_DELTFILTER, request)
        return bool(ours)

    def _filters(self, index: int, parent: int) -> list[TrafficControl]:
        request = filters_request(index, parent)
        answers = self._requester.dump(RTM_GETTFILTER, request)
        return list(filter(None, map(parse, answers)))


def _without_filters(error: OSError) -> OSError | HostError:
    if error.errno not in _MISSING:
        return error
    return HostError(
        "this kernel has no filters at interfaces (CONFIG_NET_SCH_INGRESS,"
        f" CONFIG_NET_CLS_BPF): {error.strerror}"
    )


@cache
def program(link_type: int, hardware_address: bytes = b"") -> bytes:
    """Drop what a barred interface is to send, by the interface's type (ARPHRD_*) and address.

    On Ethernet headers are read wherever they lie in memory; on others where the kernel usually has them,
    as it does not say how long their own header is. What cannot be read passes (classic BPF gives 0).
    """
    start = _ETHERNET_HEADER_BYTES if link_type == _ETHERNET else NETWORK_HEADER
    code = Assembler()
    if link_type == _ETHERNET and len(hardware_address) == _HARDWARE_ADDRESS_BYTES:
        code.load(_SOURCE_AT, 4)
        code.if_equal(int.from_bytes(hardware_address[:4]), otherwise="drop")
        code.load(_SOURCE_AT + 4, 2)
        code.if_equal(int.from_bytes(hardware_address[4:]), otherwise="drop")
    code.load(PROTOCOL, 4)
    # Any program may send other frames, as a socket of PPPoE asks for no privilege. Wi-Fi stays joined.
    for kind in _LINK_PROTOCOLS:
        code.if_equal(kind, then="pass")
    code.if_equal(_IPV6, then="ipv6")
    code.if_equal(_IPV4, otherwise="drop")

    code.load(start + 6, 2)
    code.if_any_bit(_FRAGMENT_OFFSET, then="drop")
    code.load_x_header_length(start)
    code.load(start + 9, 1)
    code.if_equal(_TCP, then="tcp")
    code.if_equal(_UDP, then="udp")
    code.if_equal(_ICMP, otherwise="drop")
    code.load(start, 1, indexed=True)
    code.if_equal(_UNREACHABLE, then="a report", otherwise="drop")
    code.label("udp")
    code.load(start, 4, indexed=True)
    code.if_equal(_DHCP, then="pass", otherwise="drop")
    code.label("tcp")
    code.load(start + 13, 1, indexed=True)
    code.if_any_bit(_RESET, then="a reset", otherwise="drop")

    code.label("ipv6")
    code.load_x(_IPV6_BYTES)
    code.load(start + 6, 1)
    code.if_equal(_TCP, then="tcp of ipv6")
    code.if_equal(_UDP, then="udp of ipv6")
    code.if_equal(_ICMPV6, then="icmpv6")
    code.if_equal(_HOP_BY_HOP, otherwise="drop")
    # Reports of multicast listeners have the router alert before them.
    code.load(start + _IPV6_BYTES, 2)
    code.if_equal(_ICMPV6 << 8, otherwise="drop")
    code.load_x(_IPV6_BYTES + 8)
    code.label("icmpv6")
    code.load(start, 1, indexed=True)
    for kind in HOST_ICMPV6:
        code.if_equal(kind, then="pass")
    for kind in SMALL_ICMPV6:
        code.if_equal(kind, then="a report")
    code.jump("drop")
    code.label("udp of ipv6")
    code.load(start, 4, indexed=True)
    code.if_equal(_DHCPV6, then="pass", otherwise="drop")
    code.label("tcp of ipv6")
    code.load(start + 13, 1, indexed=True)
    code.if_any_bit(_RESET, then="a reset", otherwise="drop")

    # Small ones only: any program makes the kernel send these (`filter_rules`).
    code.label("a report")
    code.load_length()
    code.if_greater(_ETHERNET_HEADER_BYTES + REPORT_BYTES, then="drop", otherwise="pass")
    code.label("a reset")
    code.load_length()
    code.if_greater(_ETHERNET_HEADER_BYTES + RESET_BYTES, then="drop", otherwise="pass")
    code.label("pass")
    code.give(PASS)
    code.label("drop")
    code.give(DROP)
    return code.assemble()
