"""Rows of a transfer data set, computed: all strategies from the same instant of a place."""

import statistics
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from cedos.model import Direction, NetworkKind
from emu.data.measure import LIMIT_S, PING_INTERVAL_S, PING_S, PINGS, STRATEGIES, Row, begun
from emu.places.places import Place, load
from emu.simulator.connection import Transfer
from emu.simulator.link import Clock, Network, Parcel
from emu.testbed.access import Access

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
