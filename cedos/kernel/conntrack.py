"""Connection tracking's events: which flow began, which UDP flow ended (nfnetlink_conntrack.h).

Precondition, which is steering's to meet: connection tracking runs in a network namespace only while
something there refers to it (any rule with a connection state, or NAT). `net.netfilter.
nf_conntrack_acct=1` makes it count bytes; without it the bytes of UDP flows are unknown.

Own decoding, since pyroute2 takes 25 times as long for an event (figures: `netlink`).
"""

import socket
import struct
from collections.abc import Callable
from typing import NamedTuple

from cedos.kernel.addresses import address
from cedos.kernel.netlink import Message, attributes
from cedos.model import Address, FlowKey

NETLINK_NETFILTER = 12
# NFNLGRP_CONNTRACK_NEW and NFNLGRP_CONNTRACK_DESTROY
GROUPS = (1, 3)
# The message type of a dump request.
DUMP = 0x101
_NEW, _DELETE = 0x100, 0x102

_GENERIC = struct.Struct("=BBH")  # family, version, resource
_PORT = struct.Struct("!H")
_COUNT = struct.Struct("!Q")
_ORIGINAL, _REPLY, _COUNTERS_ORIGINAL, _COUNTERS_REPLY = 1, 2, 9, 10
_head = struct.Struct("=HH").pack
_NESTED = 0x8000
# A tuple of IPv4 as kernels write it (an event is then read 1.7 times as fast): heads of attributes,
# and what they hold.
_HEADS = (
    _head(20, 1 | _NESTED) + _head(8, 1),
    _head(8, 2),
    _head(28, 2 | _NESTED) + _head(5, 1),
    _head(6, 2),
    _head(6, 3),
)
_IPV4 = struct.Struct("!8s4s4s4s8sB3x4sH2x4sH2x")
_PROTOCOLS = {socket.IPPROTO_TCP: "tcp", socket.IPPROTO_UDP: "udp"}


class Tuple(NamedTuple):
    """One direction of a tracked flow, as its packets look."""

    source: Address
    source_port: int
    destination: Address
    destination_port: int


class Tracked(NamedTuple):
    """A tracked flow. Bytes are whole packets' in each direction, None where not counted."""

    ended: bool
    protocol: str
    original: Tuple
    reply: Tuple
    bytes_original: int | None
    bytes_reply: int | None


def dump_request() -> bytes:
    """The body of a dump of all tracked flows."""
    return _GENERIC.pack(socket.AF_UNSPEC, 0, 0)


def parse(message: Message) -> Tracked | None:
    """The TCP or UDP flow of a NEW or DESTROY event, or of a dump; None for anything else."""
    if message.type not in (_NEW, _DELETE) or len(message.payload) < _GENERIC.size:
        return None
    found = attributes(message.payload, _GENERIC.size)
    original, reply = _tuple(found.get(_ORIGINAL)), _tuple(found.get(_REPLY))
    if original is None or reply is None:
        return None
    return Tracked(
        ended=message.type == _DELETE,
        protocol=original[0],
        original=original[1],
        reply=reply[1],
        bytes_original=_bytes(found.get(_COUNTERS_ORIGINAL)),
        bytes_reply=_bytes(found.get(_COUNTERS_REPLY)),
    )


def _tuple(data: bytes | None) -> tuple[str, Tuple] | None:
    if data is None:
        return None
    if len(data) == _IPV4.size:
        a, near, b, far, c, number, d, near_port, e, far_port = _IPV4.unpack(data)
        if (a, b, c, d, e) == _HEADS and number in _PROTOCOLS:
            return _PROTOCOLS[number], Tuple(address(near), near_port, address(far), far_port)
    parts = attributes(data)
    addresses, ports = attributes(parts.get(1, b"")), attributes(parts.get(2, b""))
    protocol = _PROTOCOLS.get(int.from_bytes(ports.get(1, b"\0")))
    source_port, destination_port = ports.get(2, b""), ports.get(3, b"")
    if protocol is None or len(source_port) != 2 or len(destination_port) != 2:
        return None
    if len(addresses.get(1, b"")) == 4 == len(addresses.get(2, b"")):
        source, destination = address(addresses[1]), address(addresses[2])
    elif len(addresses.get(3, b"")) == 16 == len(addresses.get(4, b"")):
        source, destination = address(addresses[3]), address(addresses[4])
    else:
        return None
    return protocol, Tuple(
        source, _PORT.unpack(source_port)[0], destination, _PORT.unpack(destination_port)[0]
    )


def _bytes(counters: bytes | None) -> int | None:
    value = attributes(counters or b"").get(2, b"")
    return None if len(value) != _COUNT.size else int(_COUNT.unpack(value)[0])


def flow_of(tracked: Tracked, is_local: Callable[[Address], bool]) -> tuple[FlowKey, bool] | None:
    """The flow's 4-tuple as this host's socket has it, and whether it came in from outside.

    Our own flow's socket has the original direction's addresses, whatever NAT made of them; that of
    a flow from outside has those of our replies. None for what is only forwarded.
    """
    original, reply = tracked.original, tracked.reply
    if is_local(original.source):
        return _key(original, tracked.protocol), False
    if is_local(reply.source):
        return _key(reply, tracked.protocol), True
    return None


def _key(direction: Tuple, protocol: str) -> FlowKey:
    return FlowKey(
        direction.source,
        direction.source_port,
        direction.destination,
        direction.destination_port,
        protocol,
    )
