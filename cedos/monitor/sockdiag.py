"""Sockets as the kernel describes them: sock_diag's dumps and destroy notifications.

Formats: linux/inet_diag.h, linux/tcp.h (`tcp_info`), linux/mptcp.h. Own decoding, since pyroute2 takes
8 times as long for a destroy notification, 9 times for an entry of a dump (figures: `netlink`).
"""

import socket
import struct
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

from cedos.model import Address, FlowKey
from cedos.netlink import Message, attributes, unsigned

NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY = 20
# SKNLGRP_INET_TCP_DESTROY and SKNLGRP_INET6_TCP_DESTROY
DESTROY_GROUPS = (1, 3)

ESTABLISHED, SYN_SENT = 1, 2
# Every state in which a socket of this host is a flow: not TIME_WAIT, CLOSE, LISTEN, SYN_RECV.
_FLOW_STATES = sum(1 << state for state in (1, 2, 4, 5, 8, 9, 11))

_REQUEST = struct.Struct("=BBBxI48s")  # family, protocol, extensions, states, socket id
_SOCKET = struct.Struct("!BBBxHH16s16s")  # family, state, timer, retransmits, ports, addresses
_SOCKET_BYTES = 72
_WANT_TCP_INFO = 1 << 1
_INFO, _MARK, _ULP = 2, 15, 19
_ID = struct.Struct("!HH16s16s4x8s")  # ports, addresses, no interface, cookie
_NO_COOKIE = b"\xff" * 8
_ULP_MPTCP, _TOKEN_LOCAL = 3, 2
_MAPPED = bytes(10) + b"\xff\xff"

# Positions in tcp_info; a kernel older than a field sends a shorter structure.
_U32 = struct.Struct("=I")
_U64 = struct.Struct("=Q")
_UNACKED, _LAST_DATA_RECEIVED, _LAST_ACK_RECEIVED, _RTT, _TOTAL_RETRANS = 24, 52, 56, 68, 100
_BYTES_ACKED, _BYTES_RECEIVED, _MIN_RTT, _SEGMENTS, _DELIVERY_RATE = 120, 128, 148, 156, 160
_RECEIVE_RTT = 92
_NO_MIN_RTT = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class SocketFacts:
    """A TCP socket: rates in bit/s, times in seconds, None where the kernel has no sample yet.

    `receive_rtt_s` is the round trip as a receiver sees it, from an acknowledgement to the data that
    it let go. `segments` are those with data that were sent, those sent again included.
    `counted` is False where the message came without a `tcp_info`.
    """

    key: FlowKey
    state: int
    token: int | None
    rtt_s: float | None
    rtt_min_s: float | None
    delivery_rate_bps: float | None
    bytes_down: int
    bytes_up: int
    retransmits: int
    idle_down_s: float
    idle_ack_s: float
    unacknowledged: int
    counted: bool
    receive_rtt_s: float | None = None
    segments: int = 0


def dump_request(family: int) -> bytes:
    """The body of a dump of all TCP flows of an address family."""
    return _REQUEST.pack(family, socket.IPPROTO_TCP, _WANT_TCP_INFO, _FLOW_STATES, bytes(48))


def socket_request(key: FlowKey) -> bytes:
    """The body of a request for one TCP socket."""
    family = socket.AF_INET if key.local.version == 4 else socket.AF_INET6
    ends = (each.packed.ljust(16, b"\0") for each in (key.local, key.remote))
    known = _ID.pack(key.local_port, key.remote_port, *ends, _NO_COOKIE)
    return _REQUEST.pack(family, socket.IPPROTO_TCP, 0, _FLOW_STATES, known)


def mark_of(message: Message) -> int | None:
    """The mark (SO_MARK) of the socket in an answer; the kernel tells it with CAP_NET_ADMIN only."""
    if message.type != SOCK_DIAG_BY_FAMILY or len(message.payload) < _SOCKET_BYTES:
        return None
    return unsigned(attributes(message.payload, _SOCKET_BYTES).get(_MARK))


def parse(message: Message) -> SocketFacts | None:
    """The socket of a dump's answer or a destroy notification.

    None for anything else, and for sockets that never were a flow (listening, unconnected).
    """
    data = message.payload
    if message.type != SOCK_DIAG_BY_FAMILY or len(data) < _SOCKET_BYTES:
        return None
    family, state, _, local_port, remote_port, local, remote = _SOCKET.unpack_from(data)
    if not remote_port or not local_port or family not in (socket.AF_INET, socket.AF_INET6):
        return None
    key = FlowKey(_address(family, local), local_port, _address(family, remote), remote_port)
    found = attributes(data, _SOCKET_BYTES)
    info = found.get(_INFO, b"")
    rate = _field(info, _U64, _DELIVERY_RATE)
    rtt_min = _field(info, _U32, _MIN_RTT)
    return SocketFacts(
        key=key,
        state=state,
        token=_token(found.get(_ULP)),
        rtt_s=_field(info, _U32, _RTT) / 1e6 or None,
        rtt_min_s=None if rtt_min == _NO_MIN_RTT else rtt_min / 1e6 or None,
        delivery_rate_bps=rate * 8.0 or None,
        bytes_down=_field(info, _U64, _BYTES_RECEIVED),
        bytes_up=_field(info, _U64, _BYTES_ACKED),
        retransmits=_field(info, _U32, _TOTAL_RETRANS),
        idle_down_s=_field(info, _U32, _LAST_DATA_RECEIVED) / 1e3,
        idle_ack_s=_field(info, _U32, _LAST_ACK_RECEIVED) / 1e3,
        unacknowledged=_field(info, _U32, _UNACKED),
        counted=len(info) >= _BYTES_RECEIVED + _U64.size,
        receive_rtt_s=_field(info, _U32, _RECEIVE_RTT) / 1e6 or None,
        segments=_field(info, _U32, _SEGMENTS),
    )


def _field(info: bytes, form: struct.Struct, offset: int) -> int:
    if len(info) < offset + form.size:
        return 0
    value: int = form.unpack_from(info, offset)[0]
    return value


def _token(ulp: bytes | None) -> int | None:
    if ulp is None:
        return None
    mptcp = attributes(ulp).get(_ULP_MPTCP)
    return None if mptcp is None else unsigned(attributes(mptcp).get(_TOKEN_LOCAL))


def _address(family: int, octets: bytes) -> Address:
    if family == socket.AF_INET:
        return IPv4Address(octets[:4])
    # An IPv6 socket that speaks IPv4: connection tracking and path managers call it IPv4.
    if octets[:12] == _MAPPED:
        return IPv4Address(octets[12:])
    return IPv6Address(octets)
