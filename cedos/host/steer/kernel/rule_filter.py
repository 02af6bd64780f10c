"""The filter of users' rules: what programs begin at a place is dropped where it would leave.

Routes and rules lead a connection; sockets that are bound to an interface, routes that a network
announces and faults of ours lead it elsewhere. So each interface over which some place is forbidden has
a program that reads what leaves there: TCP's first packet of a connection (SYN) and each packet of
other protocols. Connections that live go on, if they come from an address of the interface: a socket
that is bound to it later brings another one's. It asks a table, first for the packet's port, then for
all ports; the longest prefix counts. Later parts of a datagram have no port: where one port is
forbidden, all of them are. What this host only forwards (of containers) passes, and so do DHCP, what no
program may send (errors and answers of ICMP, neighbour discovery, memberships of groups), and what
belongs to a VLAN: that has an interface of its own.

What may hide its destination is dropped: beginnings with options of IPv4 (a source route), and packets
with a routing header of IPv6.
"""

import socket
import struct
import sys
from collections.abc import Iterable
from ipaddress import ip_network
from typing import Final

from cedos.kernel.bpf import CONTEXT, EXIT, STACK, Assembly, Helper, Opcode
from cedos.kernel.policy_routing import Prefix
from cedos.model import Address

# An element: the length in bits of what follows; the IP version; 1 for later parts, 2 for an address of
# the interface's own, else 0; the port, big-endian (0: any); the address. The value tells whether it is
# forbidden; of own addresses it tells nothing.
_KEY: Final = struct.Struct("=IBBH16s")
KEY_BYTES: Final = _KEY.size
VALUE: Final = struct.Struct("=I")
MOST: Final = 1 << 13
_PORT_BITS, _ADDRESS_BITS = 32, 128
# Offsets of fields of struct __sk_buff, and on the stack: the key, and a header's bytes.
_PROTOCOL, _OF_VLAN, _FORWARDED_FROM = 16, 20, 36
_KEY_AT, _PORT_AT, _ADDRESS_AT, _HEAD_AT = -64, -60, -56, -40
_OWN_AT: Final = -96  # another key
_FROM_NETWORK_HEADER: Final = 1
_IPV4, _IPV6 = socket.htons(0x0800), socket.htons(0x86DD)
_TCP, _UDP, _UDP_LITE, _ROUTING, _FRAGMENT = 6, 17, 136, 43, 44
_ICMP, _IGMP, _ICMPV6 = 1, 2, 58
_HOP_BY_HOP: Final = 0
_IPV4_BYTES: Final = 20  # of a header without options
_SYN, _ACK = 0x02, 0x10
# By the ports from and to: no unprivileged program has these. (DHCPv6 stays on the link.)
_DHCP: Final = ((68, 67), (67, 68))
# Types that only the kernel sends for programs without rights: answers, errors; memberships, neighbours.
_ICMP_PASSES: Final = (0, 3, 4, 5, 11, 12, 14)
_MEMBERSHIPS: Final = (130, 131, 132, 143)
_ICMPV6_PASSES: Final = (1, 2, 3, 4, 129, *range(133, 138), *_MEMBERSHIPS)
# TC_ACT_UNSPEC: other filters decide; TC_ACT_SHOT.
_PASS, _DROP = -1, 2


def element(prefix: Prefix, port: int | None) -> bytes:
    """Return the table's key for a prefix and a port; None: all ports."""
    return _element(prefix, 0, port or 0)


def later_parts(prefix: Prefix) -> bytes:
    """Return the table's key for later parts of datagrams to a prefix."""
    return _element(prefix, 1, 0)


def own_address(address: Address) -> bytes:
    """Return the table's key for an address that the interface has."""
    return _element(ip_network(address), 2, 0)


def _element(prefix: Prefix, parts: int, port: int) -> bytes:
    bits = _PORT_BITS + prefix.prefixlen
    address = prefix.network_address.packed
    return _KEY.pack(bits, prefix.version, parts, socket.htons(port), address)


def program(table: int) -> bytes:
    """Return the program for an open table (LPM trie: `KEY_BYTES` -> `VALUE`)."""
    code = Assembly()
    code.unless(_FORWARDED_FROM, 0)
    code.unless(_OF_VLAN, 0)
    for key in _KEY_AT, _OWN_AT:
        code.put(Opcode.STORE_NUMBER, STACK, offset=key, immediate=_PORT_BITS + _ADDRESS_BITS)
        for word in range(8, _KEY.size, 4):
            code.put(Opcode.STORE_NUMBER, STACK, offset=key + word, immediate=0)
    code.put(Opcode.LOAD, 2, CONTEXT, _PROTOCOL)
    code.jump(Opcode.IF_EQUAL, "ipv6", 2, immediate=_IPV6)
    code.jump(Opcode.IF_NOT, EXIT, 2, immediate=_IPV4)

    _read_addresses(code, 4, 12, 4)
    _read(code, 0, _HEAD_AT, 12)
    code.put(Opcode.LOAD_BYTE, 7, STACK, _HEAD_AT + 9)
    code.jump(Opcode.IF_EQUAL, EXIT, 7, immediate=_IGMP)
    code.put(Opcode.LOAD_BYTE, 2, STACK, _HEAD_AT)
    code.put(Opcode.AND, 2, immediate=0x0F)
    code.put(Opcode.SHIFT_LEFT, 2, immediate=2)
    code.put(Opcode.COPY, 8, 2)
    code.jump(Opcode.IF_EQUAL, "no options", 8, immediate=_IPV4_BYTES)
    code.jump(Opcode.IF_NOT, "drop", 7, immediate=_TCP)
    _leave_living(code, table, "drop")
    code.label("no options")
    code.put(Opcode.LOAD_BYTE, 2, STACK, _HEAD_AT + 6)
    code.put(Opcode.AND, 2, immediate=0x1F)
    code.jump(Opcode.IF_NOT, "a later part", 2, immediate=0)
    code.put(Opcode.LOAD_BYTE, 2, STACK, _HEAD_AT + 7)
    code.jump(Opcode.IF_NOT, "a later part", 2, immediate=0)
    code.jump(Opcode.JUMP, "transport")

    code.label("ipv6")
    _read_addresses(code, 6, 8, 16)
    _read(code, 0, _HEAD_AT, 8)
    code.put(Opcode.LOAD_BYTE, 7, STACK, _HEAD_AT + 6)
    code.put(Opcode.SET, 8, immediate=40)
    code.jump(Opcode.IF_NOT, "transport", 7, immediate=_FRAGMENT)
    _read(code, 40, _HEAD_AT, 4)
    code.put(Opcode.LOAD_BYTE, 7, STACK, _HEAD_AT)
    code.put(Opcode.SET, 8, immediate=48)
    code.put(Opcode.LOAD_BYTE, 2, STACK, _HEAD_AT + 2)
    code.jump(Opcode.IF_NOT, "a later part", 2, immediate=0)
    code.put(Opcode.LOAD_BYTE, 2, STACK, _HEAD_AT + 3)
    code.put(Opcode.AND, 2, immediate=0xF8)
    code.jump(Opcode.IF_EQUAL, "transport", 2, immediate=0)
    # The first part has the ports, and of TCP the flags.
    code.label("a later part")
    code.jump(Opcode.IF_NOT, "of datagrams", 7, immediate=_TCP)
    code.look_up(table, _OWN_AT, "of datagrams")
    code.jump(Opcode.JUMP, EXIT)
    code.label("of datagrams")
    code.jump(Opcode.IF_EQUAL, "any port", 7, immediate=_ICMP)
    code.jump(Opcode.IF_EQUAL, "any port", 7, immediate=_ICMPV6)
    code.put(Opcode.STORE, STACK, 9, _PORT_AT)
    code.put(Opcode.SET, 2, immediate=1)
    code.put(Opcode.STORE_BYTE, STACK, 2, _PORT_AT + 1)
    code.look_up(table, _KEY_AT, "any port")
    code.put(Opcode.LOAD, 2, 0, 0)
    code.jump(Opcode.IF_EQUAL, "any port", 2, immediate=0)
    code.jump(Opcode.JUMP, "drop")

    code.label("transport")
    code.jump(Opcode.IF_EQUAL, "udp", 7, immediate=_UDP)
    code.jump(Opcode.IF_EQUAL, "port", 7, immediate=_UDP_LITE)
    code.jump(Opcode.IF_EQUAL, "drop", 7, immediate=_ROUTING)
    code.jump(Opcode.IF_EQUAL, "icmp", 7, immediate=_ICMP)
    code.jump(Opcode.IF_EQUAL, "icmpv6", 7, immediate=_ICMPV6)
    code.jump(Opcode.IF_EQUAL, "hop by hop", 7, immediate=_HOP_BY_HOP)
    code.jump(Opcode.IF_NOT, "any port", 7, immediate=_TCP)
    _leave_living(code, table, "port")
    code.label("hop by hop")
    # Memberships of IPv6 have such a header, of 8 bytes.
    _read_from(code, 0, _HEAD_AT, 9)
    code.put(Opcode.LOAD_BYTE, 2, STACK, _HEAD_AT)
    code.jump(Opcode.IF_NOT, "any port", 2, immediate=_ICMPV6)
    code.put(Opcode.LOAD_BYTE, 2, STACK, _HEAD_AT + 1)
    code.jump(Opcode.IF_NOT, "any port", 2, immediate=0)
    code.put(Opcode.LOAD_BYTE, 2, STACK, _HEAD_AT + 8)
    _leave(code, _MEMBERSHIPS)
    for name, types in ("icmp", _ICMP_PASSES), ("icmpv6", _ICMPV6_PASSES):
        code.label(name)
        _read_from(code, 0, _HEAD_AT, 1)
        code.put(Opcode.LOAD_BYTE, 2, STACK, _HEAD_AT)
        _leave(code, types)
    code.label("udp")
    code.jump(Opcode.IF_NOT, "port", 9, immediate=_any_port(4))
    _read_from(code, 0, _HEAD_AT, 4)
    code.put(Opcode.LOAD, 2, STACK, _HEAD_AT)
    for ports in _DHCP:
        number = int.from_bytes(struct.pack("!HH", *ports), sys.byteorder)
        code.set_wide(3, number)
        code.jump(Opcode.IF_EQUAL_REGISTER, EXIT, 2, 3)
    code.label("port")
    code.put(Opcode.STORE, STACK, 9, _PORT_AT)
    _read_from(code, 2, _PORT_AT + 2, 2)
    code.look_up(table, _KEY_AT, "any port")
    code.jump(Opcode.JUMP, "known")
    code.label("any port")
    code.put(Opcode.STORE, STACK, 9, _PORT_AT)
    code.look_up(table, _KEY_AT)
    code.label("known")
    code.put(Opcode.LOAD, 2, 0, 0)
    code.jump(Opcode.IF_EQUAL, EXIT, 2, immediate=0)
    code.label("drop")
    code.put(Opcode.SET, 0, immediate=_DROP)
    code.put(Opcode.RETURN)
    return code.code(_PASS)


def _leave_living(code: Assembly, table: int, judged: str) -> None:
    """Pass what begins no connection of TCP, and comes from an address of the interface."""
    _read_from(code, 13, _HEAD_AT, 1)
    code.put(Opcode.LOAD_BYTE, 2, STACK, _HEAD_AT)
    code.put(Opcode.AND, 2, immediate=_SYN | _ACK)
    code.jump(Opcode.IF_EQUAL, judged, 2, immediate=_SYN)
    code.look_up(table, _OWN_AT, judged)
    code.jump(Opcode.JUMP, EXIT)


def _read_addresses(code: Assembly, version: int, offset: int, count: int) -> None:
    """Put a packet's addresses into both keys, and a key's beginning into register 9."""
    code.put(Opcode.SET, 9, immediate=_any_port(version))
    code.put(Opcode.STORE, STACK, 9, _OWN_AT + 4)
    code.put(Opcode.SET, 2, immediate=2)
    code.put(Opcode.STORE_BYTE, STACK, 2, _OWN_AT + 5)
    _read(code, offset, _OWN_AT + 8, count)
    _read(code, offset + count, _ADDRESS_AT, count)


def _leave(code: Assembly, types: Iterable[int]) -> None:
    """Pass these types of ICMP (register 2), and judge others as any port."""
    for each in types:
        code.jump(Opcode.IF_EQUAL, EXIT, 2, immediate=each)
    code.jump(Opcode.JUMP, "any port")


def _any_port(version: int) -> int:
    return int.from_bytes(bytes([version, 0, 0, 0]), sys.byteorder)


def _read(code: Assembly, offset: int, to: int, count: int) -> None:
    """Read bytes at an offset from the network header onto the stack; what is too short passes."""
    code.put(Opcode.SET, 2, immediate=offset)
    _load(code, to, count)


def _read_from(code: Assembly, offset: int, to: int, count: int) -> None:
    """Do the same from the transport header, at which register 8 points."""
    code.put(Opcode.COPY, 2, 8)
    code.put(Opcode.ADD, 2, immediate=offset)
    _load(code, to, count)


def _load(code: Assembly, to: int, count: int) -> None:
    code.set_stack(3, to)
    code.put(Opcode.SET, 4, immediate=count)
    code.put(Opcode.SET, 5, immediate=_FROM_NETWORK_HEADER)
    code.call_on_context(Helper.LOAD_FROM_HEADER)
    code.jump(Opcode.IF_NOT, EXIT, 0, immediate=0)
