"""Places one after another, as one longer walk or drive: the traces of single places are short."""

import statistics
from collections.abc import Sequence

import numpy as np

from cedos.errors import PlaceError
from cedos.model import NetworkKind
from emu.places.places import AccessTrace, Place
from emu.places.traces import Trace
from emu.testbed.access import Access


def joined(places: Sequence[Place]) -> dict[str, Access]:
    """Return both networks of all places, each place from its beginning for `Place.common_s`.

    What was measured at the same time stays at the same time. One base RTT per network, since an
    emulated link has one: the median of the places'.

    Returns:
        `wifi` and `cellular`, for the simulation and the emulator alike.

    Raises:
        PlaceError: no place at all.
    """
    if not places:
        raise PlaceError("a joined place is made of at least one place")
    found = {}
    for name in places[0].networks:
        parts = [place.networks[name] for place in places]
        lengths_ms = [place.common_s * 1000 for place in places]
        down = _concatenated([part.down for part in parts], lengths_ms)
        up = down if all(_one_way(part) for part in parts) else None
        if up is None:
            up = _concatenated([part.up for part in parts], lengths_ms)
        rtt_s = statistics.median([part.rtt_s for part in parts])
        found[name] = Access(NetworkKind(name), up=up, down=down, rtt_s=rtt_s)
    return found


def _one_way(part: AccessTrace) -> bool:
    return part.up is part.down


def _concatenated(traces: Sequence[Trace], lengths_ms: Sequence[int]) -> Trace:
    times, begin_ms = [], 0
    for trace, length_ms in zip(traces, lengths_ms, strict=True):
        # The last line of a file marks its period: it is no packet of what follows.
        times.append(trace.times_ms[trace.times_ms < length_ms] + begin_ms)
        begin_ms += length_ms
    return Trace(np.concatenate(times), begin_ms)
