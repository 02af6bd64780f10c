"""Sockets as the kernel describes them: sock_diag's dumps and destroy notifications.

Formats: linux/inet_diag.h, linux/tcp.h (`tcp_info`), linux/mptcp.h. Own decoding, since pyroute2 takes
8 times as long for a destroy notification, 9 times for an entry of a dump (figures: `netlink`).
"""

import socket
import struct
from dataclasses import dataclass

from cedos.kernel.addresses import address
from cedos.kernel.netlink import Message, attributes, unsigned
from cedos.model import FlowKey

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

# Of tcp_info, in order: unacknowledged; idle down, idle ack in ms; RTT in us; receive RTT in us,
# segments sent again in all; bytes acknowledged, bytes received; least RTT in us; segments with data,
# delivery rate in byte/s. A kernel older than a field sends a shorter structure.
_TCP_INFO = struct.Struct("=24xI24xII8xI20xI4xI16xQQ12xI4xIQ")
_COUNTED_BYTES = 136
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
    octets = 4 if family == socket.AF_INET else 16
    found = attributes(data, _SOCKET_BYTES)
    info = found.get(_INFO, b"")
    (
        unacknowledged,
        idle_down_ms,
        idle_ack_ms,
        rtt_us,
        receive_rtt_us,
        retransmits,
        bytes_up,
        bytes_down,
        rtt_min_us,
        segments,
        rate,
    ) = _TCP_INFO.unpack_from(info.ljust(_TCP_INFO.size, b"\0"))
    return SocketFacts(
        FlowKey(address(local[:octets]), local_port, address(remote[:octets]), remote_port),
        state,
        _token(found.get(_ULP)),
        rtt_us / 1e6 or None,
        None if rtt_min_us == _NO_MIN_RTT else rtt_min_us / 1e6 or None,
        rate * 8.0 or None,
        bytes_down,
        bytes_up,
        retransmits,
        idle_down_ms / 1e3,
        idle_ack_ms / 1e3,
        unacknowledged,
        len(info) >= _COUNTED_BYTES,
        receive_rtt_us / 1e6 or None,
        segments,
    )


def _token(ulp: bytes | None) -> int | None:
    if ulp is None:
        return None
    mptcp = attributes(ulp).get(_ULP_MPTCP)
    return None if mptcp is None else unsigned(attributes(mptcp).get(_TOKEN_LOCAL))
