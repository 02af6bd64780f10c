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
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from cedos.model import Direction, NetworkKind
from emu.data import side_by_side
from emu.data.measure import (
    LIMIT_S,
    PING_INTERVAL_S,
    PING_S,
    PINGS,
    STRATEGIES,
    MeasuringLaptop,
    Row,
    begun,
)
from emu.places.places import Place, load
from emu.simulator.connection import Transfer
from emu.simulator.link import Clock, Network, Parcel
from emu.testbed.access import Access
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


# Replay a little more than the longest transfer, so that its trace does not begin again.
_LENGTH_S = LIMIT_S + 2.0
# How often the end of a transfer is looked for, in simulated seconds.
_LOOK_S = 0.25


def computing(
    directory: Path, cancelled: Callable[[], bool] = lambda: False
) -> AbstractContextManager["ComputedRows"]:
    """Return a bench of `side_by_side`, which starts nothing and leaves nothing behind."""
    return nullcontext(ComputedRows(directory, cancelled))


class ComputedRows:
    """A stand-in for `emu.data.measure.MeasuringLaptop` that computes instead of waiting.

    `cancelled` is asked between transfers: where it says yes, `measure` returns None.
    """

    def __init__(self, directory: Path, cancelled: Callable[[], bool] = lambda: False) -> None:
        self._places = load(directory)
        self._cancelled = cancelled

    def measure(self, row: Row) -> dict[str, Any] | None:
        """Return a row of a transfer data set, or None if the collection was cancelled."""
        place = self._places[row.place]
        rtts_s = {"wifi": row.wifi_rtt_s, "cellular": row.cellular_rtt_s}
        pings = _pings(_accesses(place, row.start_s - PING_S, rtts_s))
        entry = begun(row, place) | pings
        accesses = _accesses(place, row.start_s, rtts_s)
        for name, (primary, mptcp) in STRATEGIES.items():
            if self._cancelled():
                return None
            ended_s = _transfer(accesses, primary, row, mptcp=mptcp)
            entry[f"t_{name}_s"] = round(LIMIT_S if ended_s is None else ended_s, 5)
            entry[f"censored_{name}"] = ended_s is None
        return entry


def _accesses(
    place: Place, start_s: float, rtts_s: Mapping[str, float | None]
) -> dict[NetworkKind, Access]:
    """Return the place's networks, replayed from `start_s` on, with these base RTTs if given."""
    found = {}
    for name, each in place.networks.items():
        rtt_s = rtts_s[name]
        whole = Access(
            NetworkKind(name),
            up=each.up,
            down=each.down,
            rtt_s=each.rtt_s if rtt_s is None else rtt_s,
        )
        found[whole.kind] = whole.rotated(start_s, _LENGTH_S)
    return found


def _transfer(
    accesses: Mapping[NetworkKind, Access], primary: NetworkKind, row: Row, *, mptcp: bool
) -> float | None:
    """Return the completion time of a transfer that begins with the replay; None: beyond the limit."""
    clock = Clock()
    networks = {kind: Network(clock, each) for kind, each in accesses.items()}
    used = [networks[primary]]
    if mptcp:
        used += [each for kind, each in networks.items() if kind is not primary]
    transfer = Transfer(clock, used, row.size_bytes, down=row.direction is Direction.DOWN)
    while transfer.ended_s is None and clock.now_s < LIMIT_S:
        clock.run(min(clock.now_s + _LOOK_S, LIMIT_S))
    return transfer.ended_s


def _pings(accesses: Mapping[NetworkKind, Access]) -> dict[str, float]:
    """Ping over each network from the replay's beginning; an answer after `PING_S` counts as lost."""
    clock = Clock()
    networks = {kind: Network(clock, each) for kind, each in accesses.items()}
    rtts_s: dict[NetworkKind, list[float]] = {kind: [] for kind in networks}

    def ping(kind: NetworkKind) -> None:
        sent_s = clock.now_s
        reply = Parcel(lambda parcel, packets: rtts_s[kind].append(clock.now_s - sent_s))
        networks[kind].to_server(Parcel(lambda parcel, packets: networks[kind].to_client(reply)))

    for kind in networks:
        for number in range(PINGS):
            clock.at(number * PING_INTERVAL_S, ping, kind)
    clock.run(PING_S)
    known: dict[str, float] = {}
    for kind, found in rtts_s.items():
        known[f"{kind}_ping_loss"] = round(1 - len(found) / PINGS, 3)
        if found:
            known[f"{kind}_rtt_s"] = round(statistics.fmean(found), 5)
            known[f"{kind}_rtt_min_s"] = round(min(found), 5)
    return known
