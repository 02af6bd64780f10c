"""Measures completion times of all strategies from the same instants of real places.

A row of the plan is one place, start, size and direction. For it, every strategy (TCP on each
network, MPTCP with each primary) is measured once, each from a fresh replay rotated to the very same
instant, together with the context just before it. This is the method of Delphi's data collection
(section 6.1), on replayed instead of on live networks. The simulator computes the same rows without
waiting.
"""

import functools
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cedos.model import Direction
from emu.data import side_by_side
from emu.data.computed import computing
from emu.data.measure import MeasuringLaptop, Row
from emu.places.places import Place
from predictors.inputs import NETWORKS

# The seconds that an emulated link adds to its base RTT: its programs, and the wait for an
# opportunity.
LINK_S = 0.0015

# Base RTTs of other networks of a kind: the spread of their logarithm around a place's own, and bounds.
_RTT_SPREAD = 0.5
_LEAST_RTT_S, _MOST_RTT_S = 0.004, 0.3

DEFAULT_SIZES: tuple[tuple[int, Direction], ...] = (
    (3_000, Direction.DOWN),
    (30_000, Direction.DOWN),
    (300_000, Direction.DOWN),
    (3_000_000, Direction.DOWN),
    (300_000, Direction.UP),
)


def plan(
    places: Mapping[str, Place],
    *,
    starts: int,
    sizes: Sequence[tuple[int, Direction]] = DEFAULT_SIZES,
    seed: int = 1,
    vary_rtts: bool = False,
) -> list[Row]:
    """Return `starts` instants a place, one drawn from each of as many equal parts of its common time.

    `vary_rtts`: every second start has base RTTs of its own, around those of the place.
    """
    rows = []
    for place in places.values():
        draw = random.Random(f"{seed}/{place.name}")
        part_s = place.common_s / starts
        for number in range(starts):
            start_s = round((number + draw.random()) * part_s, 3)
            rtts_s: list[float | None] = [None, None]
            if vary_rtts and number % 2:
                rtts_s = [_another_rtt_s(place.networks[each].rtt_s, draw) for each in NETWORKS]
            rows += [
                Row(place.name, start_s, size, direction, *rtts_s) for size, direction in sizes
            ]
    return rows


def _another_rtt_s(rtt_s: float, draw: random.Random) -> float:
    """Draw a base RTT of a likely network: log-normal around this one, in whole even milliseconds."""
    drawn_s = min(max(rtt_s * math.exp(draw.gauss(0.0, _RTT_SPREAD)), _LEAST_RTT_S), _MOST_RTT_S)
    return 0.002 * round(drawn_s / 0.002)


def plan_like(entries: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Return the same places, starts, sizes, directions and base RTTs as another data set's rows.

    The lowest RTT that any row of a place saw, less what the link itself adds, is taken as its base
    RTT; for a network that never answered, the place's own is used.
    """
    entries = list(entries)
    base: dict[tuple[str, str], float] = {}
    for entry in entries:
        for kind in ("wifi", "cellular"):
            rtt_s = entry.get(f"{kind}_rtt_min_s")
            if rtt_s is not None and not math.isnan(rtt_s):
                key = (str(entry["place"]), kind)
                base[key] = min(max(rtt_s - LINK_S, 0.0), base.get(key, math.inf))
    return [
        Row(
            str(entry["place"]),
            float(entry["start_s"]),
            int(entry["size_bytes"]),
            Direction(str(entry["direction"])),
            base.get((str(entry["place"]), "wifi")),
            base.get((str(entry["place"]), "cellular")),
        )
        for entry in entries
    ]


def collect(
    rows: Sequence[Row],
    directory: Path,
    partial: Path,
    *,
    jobs: int,
    seed: int = 1,
    simulated: bool = False,
    done: Callable[[int, int], None] = lambda finished, total: None,
) -> list[dict[str, Any]]:
    """Measure all rows, or compute them (`simulated`); `side_by_side.run` says how and what it raises."""
    return side_by_side.run(
        rows,
        functools.partial(computing if simulated else MeasuringLaptop, directory),
        partial,
        jobs=jobs,
        seed=seed,
        nice=0 if simulated else -10,
        done=done,
    )
