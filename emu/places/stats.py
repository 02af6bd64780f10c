"""Statistics of a place, computed from its traces: rates in bins of one second, outages.

An outage is a second that carried less than 0.1 Mbit/s; all figures are over the place's seconds
(`Place.common_s`), in which a shorter trace repeats.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from emu.places.places import Place
from emu.places.traces import OPPORTUNITY_BITS, Trace

OUTAGE_BPS = 100_000.0
# Means within this factor of each other are called similar.
SIMILAR_FACTOR = 1.25


@dataclass(frozen=True, slots=True)
class NetworkStats:
    """Statistics of a network's downlink over the common seconds."""

    mean_bps: float
    outage_share: float


@dataclass(frozen=True, slots=True)
class PlaceStats:
    """Both networks, and how they compare.

    `better` is `wifi-better`, `cell-better` or `similar` by the ratio of the means.
    """

    common_s: int
    wifi: NetworkStats
    cellular: NetworkStats
    better: str


def rates_bps(trace: Trace, seconds: int) -> npt.NDArray[np.float64]:
    """Return the rates of a trace's first seconds: shape (seconds,), bits per second.

    An opportunity counts for the second that it ends, (n, n + 1]: a file's last line lies at its
    period and belongs to its last second. The collections' own figures were made in this way.
    """
    second = np.maximum(trace.times_ms - 1, 0) // 1000
    counts = np.bincount(second[second < seconds], minlength=seconds).astype(np.float64)
    return counts * OPPORTUNITY_BITS


def runs(out: npt.NDArray[np.bool_]) -> tuple[tuple[int, int], ...]:
    edges = np.flatnonzero(np.diff(np.concatenate(([False], out, [False])).astype(np.int8)))
    return tuple(
        (int(first), int(past - first)) for first, past in zip(edges[::2], edges[1::2], strict=True)
    )


def network_stats(rates: npt.NDArray[np.float64]) -> NetworkStats:
    """Return the figures of one network from its rates per second; the array must not be empty."""
    return NetworkStats(float(rates.mean()), float((rates < OUTAGE_BPS).mean()))


def place_stats(place: Place) -> PlaceStats:
    """Return the figures of a place. TraceError: a trace cannot be read."""
    seconds = max(1, place.common_s)
    wifi, cellular = (
        rates_bps(net.down.repeated(seconds), seconds) for net in place.networks.values()
    )
    stats = network_stats(wifi), network_stats(cellular)
    if stats[0].mean_bps > SIMILAR_FACTOR * stats[1].mean_bps:
        better = "wifi-better"
    elif stats[1].mean_bps > SIMILAR_FACTOR * stats[0].mean_bps:
        better = "cell-better"
    else:
        better = "similar"
    return PlaceStats(
        common_s=place.common_s,
        wifi=stats[0],
        cellular=stats[1],
        better=better,
    )


# A network with a lower rate in a second is out of service, as in a data set's `available`.
DEAD_BPS = 1e5
