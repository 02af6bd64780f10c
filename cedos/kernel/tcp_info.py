"""What the kernel knows of a TCP connection: its queue, its round trip, its rate, its losses.

The connection scout of IntNW (dissertation, 2.3.1) measured connections by probes of its own; the
kernel measures the session's own traffic all the time and better (`tcp_info`), so that a probe is
only needed where nothing is sent.
"""

import array
import fcntl
import socket
import struct
from dataclasses import dataclass
from typing import Final

# linux/sockios.h and linux/tcp.h
_SIOCOUTQ: Final = 0x5411  # bytes not acknowledged yet
_SIOCOUTQNSD: Final = 0x894B  # bytes not sent yet
_INFO_BYTES: Final = 232
_TCP_NOTSENT_LOWAT: Final = 25
_NEVER_US: Final = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class TcpInfo:
    """A part of the kernel's `tcp_info`; what it has not measured is None.

    `delivery_rate_bps` is the rate of the last flight that was acknowledged; `rate_limited_by_us`
    says that this flight ended because we had no more to send: then it is only a lower bound.
    `acknowledged_bytes` and `busy_s` (with something on the way) count since the connection began.
    """

    rtt_s: float | None
    rtt_min_s: float | None
    delivery_rate_bps: float | None
    rate_limited_by_us: bool
    window_bytes: int
    segment_bytes: int
    unsent_bytes: int
    in_flight_bytes: int
    loss: float
    receive_idle_s: float
    acknowledged_idle_s: float
    retransmits: int
    acknowledged_bytes: int
    busy_s: float


def tcp_info(connection: socket.socket) -> TcpInfo | None:
    """What the kernel knows of a connection; None where it is gone."""
    try:
        raw = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    except OSError:
        return None
    return read_info(raw)


def read_info(raw: bytes) -> TcpInfo | None:
    """Reads a `struct tcp_info`; None for one shorter than Linux 4.19's."""
    if len(raw) < 216:
        return None
    retransmits, limited = raw[2], raw[7] & 1
    segment, unacknowledged, lost, retransmitted = _at(raw, 16, 24, 32, 36)
    last_received_ms, last_acknowledged_ms = _at(raw, 52, 56)
    rtt_us, window, unsent, rtt_min_us = _at(raw, 68, 80, 144, 148)
    (acknowledged,) = struct.unpack_from("=Q", raw, 120)
    rate, busy_us = struct.unpack_from("=QQ", raw, 160)
    sent, sent_again = struct.unpack_from("=QQ", raw, 200)
    return TcpInfo(
        rtt_s=rtt_us / 1e6 if rtt_us else None,
        rtt_min_s=rtt_min_us / 1e6 if rtt_min_us not in (0, _NEVER_US) else None,
        delivery_rate_bps=8.0 * rate if rate else None,
        rate_limited_by_us=bool(limited),
        window_bytes=window * segment,
        segment_bytes=segment,
        unsent_bytes=unsent,
        in_flight_bytes=max(0, unacknowledged - lost + retransmitted) * segment,
        loss=min(0.99, sent_again / sent) if sent else 0.0,
        receive_idle_s=last_received_ms / 1e3,
        acknowledged_idle_s=last_acknowledged_ms / 1e3,
        retransmits=retransmits,
        acknowledged_bytes=acknowledged,
        busy_s=busy_us / 1e6,
    )


def _at(raw: bytes, *offsets: int) -> tuple[int, ...]:
    return tuple(struct.unpack_from("=I", raw, offset)[0] for offset in offsets)


def unsent_bytes(connection: socket.socket) -> int:
    """Bytes in the kernel that have never been sent; 0 where the connection is gone."""
    return _count(connection, _SIOCOUTQNSD)


def unacknowledged_bytes(connection: socket.socket) -> int:
    """Bytes in the kernel that the peer's kernel has not acknowledged; 0 where it is gone."""
    return _count(connection, _SIOCOUTQ)


def _count(connection: socket.socket, question: int) -> int:
    answer = array.array("i", (0,))
    try:
        fcntl.ioctl(connection.fileno(), question, answer)
    except (OSError, ValueError):
        return 0
    return answer[0]


def wake_below(connection: socket.socket, unsent: int) -> None:
    """Writable is then only a connection with less than `unsent` bytes never sent."""
    connection.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, max(1, min(unsent, 1 << 30)))
