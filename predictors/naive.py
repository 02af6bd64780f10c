"""What the textbook says a transfer takes: handshake, request, slow start, then the recent rate.

It is what the trees are measured against: they learn the logarithm of real time over naive time,
which is near 0 wherever a network behaves, at any place, and so carries over to places never seen.
"""

# Ten segments of 1448 bytes (RFC 6928).
FIRST_WINDOW_BYTES = 14_480
# A network that carried nothing lately is not taken for one that never will.
SLOWEST_BPS = 8e3
# The kernel repeats a first packet after a second: what a round trip costs where none came back.
SILENT_RTT_S = 1.0
# Data that came in less time had waited for each other: their spacing is not the network's.
_LEAST_SPAN_S = 0.02


def naive_time_s(size_bytes: float, rtt_s: float, rate_bps: float) -> float:
    """Completion time of a single-path TCP transfer on a network that stays as it is.

    Two round trips pass before the first byte arrives (or is acknowledged); the window doubles every
    round trip from ten segments until it fills the path or all is sent; the rest goes at the rate.

    `rate_bps`: what the network carries, bit/s; less than `SLOWEST_BPS` counts as that.

    Returns:
        Seconds from `connect()` to the last byte.
    """
    rate_bps = max(rate_bps, SLOWEST_BPS)
    time_s = 2.0 * rtt_s
    left_bytes = size_bytes
    window_bytes = FIRST_WINDOW_BYTES
    path_bytes = rate_bps * rtt_s / 8.0
    while window_bytes < left_bytes and window_bytes < path_bytes:
        time_s += rtt_s
        left_bytes -= window_bytes
        window_bytes *= 2
    return time_s + 8.0 * left_bytes / rate_bps


def after_slow_start(size_bytes: float, rtt_s: float, time_s: float) -> tuple[float, float] | None:
    """What of a transfer that took so long came once its window was as large as ever, and in what time.

    The other way round than `naive_time_s`: bytes over seconds are what the network carried at least. It
    is less than that where a server thought, or a secure connection was made first.

    Returns:
        Bytes and seconds; at least a round trip, in which any last window comes. None: so soon no slow
        start ends (it began with a larger window, or earlier than is known).
    """
    left_s, left_bytes = time_s - 2.0 * rtt_s, size_bytes
    window_bytes = FIRST_WINDOW_BYTES
    while True:
        span_s = max(left_s, rtt_s, _LEAST_SPAN_S)
        if window_bytes >= left_bytes or window_bytes >= left_bytes / span_s * rtt_s:
            return (left_bytes, span_s) if left_s > 0.0 else None
        left_s -= rtt_s
        left_bytes -= window_bytes
        window_bytes *= 2


def joined_time_s(
    alone_s: float, rtt_s: float, rate_bps: float, other_rtt_s: float, other_rate_bps: float
) -> float:
    """Completion time of an MPTCP transfer whose two networks stay as they are.

    The second subflow joins after the first one's handshake and its own two round trips; from then
    on the rates add up.

    `alone_s`: what the transfer takes on the primary alone, seconds.
    `rate_bps`: what the primary carries, bit/s; less than `SLOWEST_BPS` counts as that.
    `other_rtt_s`: the other network's round trip.
    `other_rate_bps`: what that carries, likewise.
    """
    join_s = rtt_s + 2.0 * other_rtt_s
    if alone_s <= join_s:
        return alone_s
    rate_bps = max(rate_bps, SLOWEST_BPS)
    both_bps = rate_bps + max(other_rate_bps, SLOWEST_BPS)
    return join_s + (alone_s - join_s) * rate_bps / both_bps
