"""Filters on what leaves an interface, as rtnetlink is asked for them (linux/pkt_cls.h).

Only those of the qdisc `clsact`, which queues nothing and stands beside whatever queues; their
programs are classic BPF and decide by themselves (`direct-action`).
"""

import struct
from dataclasses import dataclass
from typing import Final

from cedos.kernel.netlink import NetlinkMessage, attribute, attributes, nested, text

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
_CLSACT_PARENT, _CLSACT_HANDLE = 0xFFFFFFF1, 0xFFFF0000
_MESSAGE: Final = struct.Struct("=BxxxiIII")  # family, interface, handle, parent, information
_KIND, _OPTIONS = 1, 2
_BPF: Final = "bpf"
_BPF_LENGTH, _BPF_CODE, _BPF_FLAGS = 4, 5, 8
_DIRECT_ACTION: Final = 1
_INSTRUCTION_BYTES: Final = 8
_EVERY_PROTOCOL: Final = 0x0300  # ETH_P_ALL in network byte order


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
    """Add or deletes an interface's `clsact` (RTM_NEWQDISC, RTM_DELQDISC), with all its filters."""
    head = _MESSAGE.pack(0, index, _CLSACT_HANDLE, _CLSACT_PARENT, 0)
    return head + attribute(_KIND, CLSACT.encode() + b"\0")


def filter_request(index: int, priority: int, handle: int, code: bytes) -> bytes:
    """Add a filter on what leaves an interface (RTM_NEWTFILTER)."""
    options = nested(
        _OPTIONS,
        attribute(_BPF_FLAGS, struct.pack("=I", _DIRECT_ACTION)),
        attribute(_BPF_LENGTH, struct.pack("=H", len(code) // _INSTRUCTION_BYTES)),
        attribute(_BPF_CODE, code),
    )
    return _filter(index, priority, handle) + options


def delete_filter_request(index: int, priority: int, handle: int) -> bytes:
    """Delete one (RTM_DELTFILTER)."""
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
