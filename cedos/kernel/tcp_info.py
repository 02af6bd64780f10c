"""TCP connections as the kernel sees them: queue, round trip, rate and losses.

The connection scout of IntNW (dissertation, 2.3.1) measured connections by probes of its own. The
kernel measures the session's own traffic all the time and better (`tcp_info`), so a probe is only
needed on an idle connection.
"""

import array
import fcntl
import socket
import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

# linux/sockios.h and linux/tcp.h
_SIOCOUTQ: Final = 0x5411  # bytes not acknowledged yet
_SIOCOUTQNSD: Final = 0x894B  # bytes not sent yet
_TCP_NOTSENT_LOWAT: Final = 25
_NEVER_US: Final = 0xFFFF_FFFF

# struct tcp_info, up to the last field that is used. An older kernel sends a shorter structure.
_TCP_INFO: Final = struct.Struct("=2xBB3xB8xI4xI4xII12xII4xIIIII8xI4xI16xQQIIII4xIQQ16xI4xQQ12xII")
TCP_INFO_BYTES: Final = _TCP_INFO.size
_COMPLETE_BYTES: Final = 216  # Linux 4.19
# The length from which on `tcp_info` counts bytes in both directions.
TCP_INFO_COUNTED_BYTES: Final = 136


class TcpInfoFields(NamedTuple):
    """The structure's fields under the kernel's names: times in us or ms, rates in byte/s."""

    retransmits: int
    probes: int
    delivery_rate_app_limited: int
    snd_mss: int
    unacked: int
    lost: int
    retrans: int
    last_data_recv: int
    last_ack_recv: int
    rcv_ssthresh: int
    rtt: int
    rttvar: int
    snd_ssthresh: int
    snd_cwnd: int
    rcv_rtt: int
    total_retrans: int
    bytes_acked: int
    bytes_received: int
    segs_out: int
    segs_in: int
    notsent_bytes: int
    min_rtt: int
    data_segs_out: int
    delivery_rate: int
    busy_time: int
    delivered: int
    bytes_sent: int
    bytes_retrans: int
    snd_wnd: int
    rcv_wnd: int


def tcp_info_fields(raw: bytes) -> TcpInfoFields:
    """Read a `struct tcp_info`; missing fields of a shorter one are 0."""
    if len(raw) < _TCP_INFO.size:
        raw = raw.ljust(_TCP_INFO.size, b"\0")
    return TcpInfoFields._make(_TCP_INFO.unpack_from(raw))


def rtt_min_s(info: TcpInfoFields) -> float | None:
    return info.min_rtt / 1e6 if info.min_rtt not in (0, _NEVER_US) else None


def unread(raw: bytes) -> bool:
    """Return whether more than half of the window lies unread: the program is slower than the network.

    A program that reads at once grants the whole window, a slow one the rest of it
    (docs/decisions/slow-readers.md). False if the kernel does not tell it (before Linux 6.2).
    """
    if len(raw) < _TCP_INFO.size:
        return False
    info = tcp_info_fields(raw)
    return info.bytes_received > 0 and info.rcv_wnd < info.rcv_ssthresh / 2


@dataclass(frozen=True, slots=True)
class TcpInfo:
    """A part of the kernel's `tcp_info`; what it has not measured is None.

    `rtt_variation_s` is the mean deviation of `rtt_s`. `delivery_rate_bps` is the rate of the last
    flight that was acknowledged; `rate_limited_by_us` says that this flight ended because we had no
    more to send: then it is only a lower bound.
    `acknowledged_bytes`, `busy_s` (with something on the way) and `delivered_segments` (out of order,
    too) count since the connection began; `waiting_segments` are on the way, or lost there.
    In `slow_start` the window doubles with each round trip that fills it.
    `retries` have gone without an answer since the last one; `repeated_segments` were sent again, ever.
    """

    rtt_s: float | None
    rtt_min_s: float | None
    rtt_variation_s: float
    delivery_rate_bps: float | None
    rate_limited_by_us: bool
    window_bytes: int
    slow_start: bool
    segment_bytes: int
    unsent_bytes: int
    in_flight_bytes: int
    loss: float
    receive_idle_s: float
    acknowledged_idle_s: float
    retries: int
    repeated_segments: int
    acknowledged_bytes: int
    busy_s: float
    waiting_segments: int
    delivered_segments: int
    peer_window_bytes: int

    @property
    def waits(self) -> bool:
        """True if data waits for the peer's acknowledgement.

        That holds also if none is in flight though the peer has room: data that this host's queue,
        filter or routes refuse is not counted as sent, and is tried again every half second.
        """
        has_room = self.peer_window_bytes >= self.segment_bytes
        return self.waiting_segments > 0 or (self.unsent_bytes > 0 and has_room)


def tcp_info(connection: socket.socket) -> TcpInfo | None:
    """Return the kernel's facts of a connection; None if it is gone."""
    try:
        raw = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
    except OSError:
        return None
    return read_info(raw)


def read_info(raw: bytes) -> TcpInfo | None:
    """Read a `struct tcp_info`; None for one shorter than Linux 4.19's."""
    if len(raw) < _COMPLETE_BYTES:
        return None
    info = tcp_info_fields(raw)
    segment, sent = info.snd_mss, info.bytes_sent
    return TcpInfo(
        rtt_s=info.rtt / 1e6 if info.rtt else None,
        rtt_min_s=rtt_min_s(info),
        rtt_variation_s=info.rttvar / 1e6,
        delivery_rate_bps=8.0 * info.delivery_rate if info.delivery_rate else None,
        rate_limited_by_us=bool(info.delivery_rate_app_limited & 1),
        window_bytes=info.snd_cwnd * segment,
        slow_start=info.snd_cwnd < info.snd_ssthresh,
        segment_bytes=segment,
        unsent_bytes=info.notsent_bytes,
        # Segments in flight as the kernel counts them: sent, less those taken for lost, and repetitions.
        in_flight_bytes=max(0, info.unacked - info.lost + info.retrans) * segment,
        loss=min(0.99, info.bytes_retrans / sent) if sent else 0.0,
        receive_idle_s=info.last_data_recv / 1e3,
        acknowledged_idle_s=info.last_ack_recv / 1e3,
        retries=info.retransmits + info.probes,
        repeated_segments=info.total_retrans,
        acknowledged_bytes=info.bytes_acked,
        busy_s=info.busy_time / 1e6,
        waiting_segments=info.unacked,
        delivered_segments=info.delivered,
        peer_window_bytes=info.snd_wnd,
    )


def unsent_bytes(connection: socket.socket) -> int:
    """Return the bytes in the kernel that were never sent; 0 if the connection is gone."""
    return _count(connection, _SIOCOUTQNSD)


def unacknowledged_bytes(connection: socket.socket) -> int:
    """Return the bytes that the peer's kernel has not acknowledged; 0 if the connection is gone."""
    return _count(connection, _SIOCOUTQ)


def _count(connection: socket.socket, question: int) -> int:
    answer = array.array("i", (0,))
    try:
        fcntl.ioctl(connection.fileno(), question, answer)
    except (OSError, ValueError):
        return 0
    return answer[0]


def wake_below(connection: socket.socket, unsent: int) -> None:
    """Let the connection be writable only while it has less than `unsent` bytes never sent."""
    connection.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, max(1, min(unsent, 1 << 30)))
