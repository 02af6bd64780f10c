"""Derive indicators of a network from the arrivals of a train. Pure."""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence

# The number of equal parts of a train's time from which maximum, minimum and deviation are taken.
BINS = 5

INDICATORS = (
    "udp_bps", "udp_loss", "udp_max_bps", "udp_min_bps", "udp_mdev_bps",
    "udp_gap_mean_s", "udp_gap_p50_s", "udp_gap_p90_s",
)  # fmt: skip

# Arrivals closer than this count as simultaneous: no clock separates them.
_CLOCK_S = 1e-9


def indicators(
    # (index, seconds) in the order of arrival, no index twice.
    arrivals: Sequence[tuple[int, float]],
    *,
    packets: int,  # how many were sent
    packet_bits: int,  # the bits of one on the wire, headers of IP and UDP included
    waited_until_s: float,  # when listening ended, on the arrivals' clock
) -> dict[str, float]:
    """Return the indicators of a train (Delphi, Table 2), all but the loss from two arrival times on.

    `udp_bps`: the slope of the least-squares line through (time of arrival, bits so far), which
    unlike first-to-last is exact where a network delivers in bursts, as radios do. If the last packet
    did not come, the network may have died on the way: then the bits after the first packet over all
    the time waited. `udp_max_bps`, `udp_min_bps`, `udp_mdev_bps`: over `BINS` equal parts of the time
    between the first and the last arrival; mdev is the standard deviation, as ping calls it.
    """
    found = {"udp_loss": round(1 - len(arrivals) / packets, 6)}
    times_s = [at_s for _, at_s in arrivals]
    if len(arrivals) < 2 or times_s[-1] - times_s[0] < _CLOCK_S:
        return found
    whole = any(index == packets - 1 for index, _ in arrivals)
    rate_bps = packet_bits * _slope(times_s)
    if not whole:
        waited_s = max(waited_until_s, times_s[-1]) - times_s[0]
        rate_bps = min(rate_bps, packet_bits * (len(arrivals) - 1) / waited_s)
    gaps_s = sorted(b - a for a, b in itertools.pairwise(times_s))
    rates_bps = _binned_bps(times_s, packet_bits)
    found |= {
        "udp_bps": rate_bps,
        "udp_max_bps": max(rates_bps),
        "udp_min_bps": min(rates_bps),
        "udp_mdev_bps": statistics.pstdev(rates_bps),
        "udp_gap_mean_s": statistics.fmean(gaps_s),
        "udp_gap_p50_s": _quantile(gaps_s, 0.5),
        "udp_gap_p90_s": _quantile(gaps_s, 0.9),
    }
    return found if all(map(math.isfinite, found.values())) else {"udp_loss": found["udp_loss"]}


def _slope(times_s: Sequence[float]) -> float:
    """Return packets per second by least squares of the number so far on the time."""
    mean_s = statistics.fmean(times_s)
    middle = (len(times_s) - 1) / 2
    spread = sum((at_s - mean_s) ** 2 for at_s in times_s)
    return sum((n - middle) * (at_s - mean_s) for n, at_s in enumerate(times_s)) / spread


def _binned_bps(times_s: Sequence[float], packet_bits: int) -> list[float]:
    width_s = (times_s[-1] - times_s[0]) / BINS
    counts = [0] * BINS
    for at_s in times_s[1:]:  # the first one marks the beginning
        # A bin holds what arrived up to its end.
        part = math.ceil((at_s - times_s[0]) / width_s) - 1
        counts[min(max(part, 0), BINS - 1)] += 1
    return [count * packet_bits / width_s for count in counts]


def _quantile(ordered: Sequence[float], share: float) -> float:
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])


def implausible(known: Mapping[str, float]) -> bool:
    """Return whether indicators are beyond what any network does (a terabit, a negative gap)."""
    return any(not 0 <= value <= 1e12 for value in known.values())
