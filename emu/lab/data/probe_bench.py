"""Active probes at the starts of a transfer data set, measured after the transfers or beside them.

Per start there is one replay of its own, so that no transfer is disturbed by a probe: each network has
its names asked, then gets a train up, then one down, in the last seconds before the start. Rows of
one start share what was found, in the direction of each row.
"""

import asyncio
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cedos.model import Direction, Network, NetworkKind
from emu.lab.data import probing, side_by_side
from emu.lab.data.measure import Row
from emu.lab.data.probe_laptop import ProbeLaptop

LEAD_S = 5.0
"""How long a replay runs before the start."""

DNS_AT_S, UP_AT_S, DOWN_AT_S = -4.0, -3.1, -1.55
"""When each probe begins, from the start on. It ends when the next one begins, or with the start.

A train up comes first: what it leaves in a slow network's queue then has the longest time to drain.
"""

LATE_S, TRIES = 0.02, 4
"""A start is probed again, so many times in all, if the host was later than this with something."""


@dataclass(frozen=True, slots=True)
class Start:
    """An instant of a place. `None` as a base RTT means the place's own."""

    place: str
    start_s: float
    wifi_rtt_s: float | None = None
    cellular_rtt_s: float | None = None

    @property
    def key(self) -> str:
        return key_of(self.place, self.start_s)


def key_of(place: str, start_s: float) -> str:
    """What the rows of one start have in common."""
    return f"{place}/{start_s:.3f}"


class ProbeBench(ProbeLaptop):
    def measure(self, start: Start) -> dict[str, Any] | None:
        """What the probes before a start found: `down` and `up`, each with columns by name.

        `late` is by how many seconds the host was late meanwhile, at most. None where it was cancelled.
        EmulationError: the testbed failed.
        """
        return self.best_of(TRIES, LATE_S, lambda: self._once(start))

    def _once(self, start: Start) -> dict[str, Any]:
        return self.play(
            self._places[start.place],
            start.start_s - LEAD_S,
            LEAD_S + 3.0,
            lambda began_s: self._probe(began_s + LEAD_S, start.start_s),
            {"wifi": start.wifi_rtt_s, "cellular": start.cellular_rtt_s},
        )

    async def _probe(self, at_s: float, start_s: float) -> dict[str, Any]:
        found: dict[str, dict[str, float]] = {"down": {}, "up": {}}
        lateness: dict[int, float] = {}
        watch = asyncio.create_task(probing.watch_host(at_s + DNS_AT_S, lateness))
        async with asyncio.TaskGroup() as tasks:
            for kind, network in probing.networks().items():
                tasks.create_task(self._probe_one(kind, network, at_s, start_s, found))
        watch.cancel()
        late_s = max((late for second, late in lateness.items() if second >= 0), default=0.0)
        return {**found, "late": round(late_s, 4)}

    async def _probe_one(
        self,
        kind: NetworkKind,
        network: Network,
        at_s: float,
        start_s: float,
        found: Mapping[str, dict[str, float]],
    ) -> None:
        # Before the place begins there is its end, for replays wrap: that is nobody's past.
        if start_s + DNS_AT_S >= 0:
            await probing.sleep_until(at_s + DNS_AT_S)
            took_s = await probing.lookup_s(network, UP_AT_S - DNS_AT_S)
            if took_s is not None:
                for known in found.values():
                    known[f"{kind}_dns_s"] = took_s
        for direction, from_s, to_s in (
            (Direction.UP, UP_AT_S, DOWN_AT_S),
            (Direction.DOWN, DOWN_AT_S, 0.0),
        ):
            if start_s + from_s < 0:
                continue
            await probing.sleep_until(at_s + from_s)
            outcome = await probing.train_over(
                self.probe_server, network, direction, to_s - from_s - 0.05
            )
            found[str(direction)] |= probing.prefixed(kind, probing.columns(outcome))


def starts_of(rows: Iterable[Row]) -> list[Start]:
    starts = [Start(row.place, row.start_s, row.wifi_rtt_s, row.cellular_rtt_s) for row in rows]
    return list({start.key: start for start in starts}.values())


def collect(
    starts: Sequence[Start],
    directory: Path,
    partial: Path,
    *,
    jobs: int,
    seed: int = 1,
    done: Callable[[int, int], None] = lambda finished, total: None,
) -> dict[str, dict[str, Any]]:
    """Probes all starts; returns what `ProbeBench.measure` found, by `Start.key`."""
    entries = side_by_side.run(
        starts, functools.partial(ProbeBench, directory), partial, jobs=jobs, seed=seed, done=done
    )
    return {start.key: entry for start, entry in zip(starts, entries, strict=True)}


def added(
    rows: Iterable[Mapping[str, Any]], probes: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The rows, each with its start's probes in its own direction; those it had are replaced."""
    return [
        {
            **{name: value for name, value in row.items() if "_udp_" not in name},
            **probes[key_of(str(row["place"]), float(row["start_s"]))][str(row["direction"])],
        }
        for row in rows
    ]
