"""Each place once in real time, probed all the while: what adaptive probing is judged on.

A row is one second of one network of a place: what pings, lookups and trains found in it, what the
radio told, and what the trace really carried. Everything in a row is of that very second: who wants to
know what was known at its beginning looks at the row before.
"""

import asyncio
import functools
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from cedos.errors import DataSetError
from cedos.host.monitor.probing.prober import Prober
from cedos.model import Network, NetworkKind
from emu import console
from emu.data import datasets, probes, side_by_side
from emu.data.probes import ProbeLaptop
from emu.places.places import AccessTrace, Place

LEAD_S = 2.0
PING_S, PING_TIMEOUT_S = 0.25, 1.0
# The seconds between two trains (in even ones) and between two look-ups (in odd ones).
EVERY_S = 2

TRAIN_AT_S, TRAIN_TIMEOUT_S = 0.4, 1.5
# When in each `EVERY_S` these begin, and for how long they are waited for.
LOOKUP_AT_S, LOOKUP_TIMEOUT_S = 1.3, 1.0

# A place is played again, so many times in all, if in more than this share of its seconds the host
# was later than `LATE_S` with something: then it is the host that was measured. `host_late_s`
# tells.
LATE_S, LATE_SHARE, TRIES = 0.03, 0.15, 3

TEXTS = ("place", "group", "scenario", "network")
# The columns of the file, described in `traces/README.md`. All but the texts are numbers.
COLUMNS = (
    *TEXTS, "t_s", "true_down_bps", "true_up_bps",
    "pings", "ping_loss", "rtt_s", "rtt_min_s", "dns_asked", "dns_s",
    "udp_answered", "udp_bps", "udp_loss", "udp_max_bps", "udp_min_bps", "udp_mdev_bps",
    "udp_gap_mean_s", "udp_gap_p50_s", "udp_gap_p90_s",
    "udp_bytes_up", "udp_bytes_down", "udp_probe_s", "host_late_s",
    "rssi_dbm", "link_bps", "chan_util", "rsrp_dbm", "rsrq_db", "sinr_db", "cqi", "speed_mps",
)  # fmt: skip

_RADIO = COLUMNS[COLUMNS.index("rssi_dbm") :]


@dataclass(frozen=True, slots=True)
class Walk:
    place: str
    seconds: int

    @property
    def key(self) -> str:
        return f"{self.place}/{self.seconds}"


def plan(places: Mapping[str, Place], most_s: int) -> list[Walk]:
    return [Walk(place.name, min(place.common_s, most_s)) for place in places.values()]


class SeriesBench(ProbeLaptop):
    def measure(self, walk: Walk) -> dict[str, Any] | None:
        """Return the rows of a place under `rows`.

        None where it was cancelled. EmulationError: the testbed failed.
        """
        return self.best_of(TRIES, LATE_SHARE, lambda: self._once(walk))

    def _once(self, walk: Walk) -> dict[str, Any] | None:
        place = self._places[walk.place]
        found = self.play(
            place,
            -LEAD_S,
            LEAD_S + walk.seconds + 3.0,
            lambda began_s: self._walk(began_s + LEAD_S, walk.seconds),
        )
        if found is None:
            return None
        rows: list[dict[str, Any]] = [
            {
                "place": place.name,
                "group": place.group,
                "scenario": place.scenario,
                "network": str(kind),
                "t_s": second,
                **_truth(place.networks[str(kind)], second),
                **found[kind][second],
            }
            for kind in found
            for second in range(walk.seconds)
        ]
        late = sum(row["host_late_s"] > LATE_S for row in rows) / len(rows)
        return {"rows": rows, "late": late}

    async def _walk(
        self, zero_s: float, seconds: int
    ) -> dict[NetworkKind, dict[int, dict[str, float]]] | None:
        found: dict[NetworkKind, dict[int, dict[str, float]]] = {}
        lateness: dict[int, float] = defaultdict(float)
        async with probes.new_prober(PING_TIMEOUT_S) as prober:
            watch = asyncio.create_task(probes.watch_host(zero_s, lateness))
            tasks = []
            for kind, network in probes.networks().items():
                found[kind] = defaultdict(dict)
                for job in (self._pings, self._lookups, self._trains):
                    watching = job(prober, network, zero_s, seconds, found[kind])
                    tasks.append(asyncio.create_task(watching))
            pending = set(tasks)
            try:
                while pending and not self._cancelled():
                    _, pending = await asyncio.wait(pending, timeout=0.5)
                    for task in set(tasks) - pending:
                        task.result()
            finally:
                for task in (*pending, watch):
                    task.cancel()
                await asyncio.gather(*pending, watch, return_exceptions=True)
        for known in found.values():
            for second in range(seconds):
                known[second]["host_late_s"] = round(lateness[second], 4)
        return None if pending else found

    async def _pings(
        self,
        prober: Prober,
        network: Network,
        zero_s: float,
        seconds: int,
        found: dict[int, dict[str, float]],
    ) -> None:
        sent: dict[int, list[asyncio.Task[Any]]] = defaultdict(list)
        for number in range(round(seconds / PING_S)):
            at_s = number * PING_S
            await probes.sleep_until(zero_s + at_s)
            sent[int(at_s)].append(asyncio.create_task(prober.ping(network)))
        for second, pings in sent.items():
            results = await asyncio.gather(*pings)
            rtts_s = [each.indicators["rtt_s"] for each in results if not each.problem]
            found[second] |= {"pings": len(pings), "ping_loss": 1 - len(rtts_s) / len(pings)}
            if rtts_s:
                found[second] |= {
                    "rtt_s": round(statistics.median(rtts_s), 5),
                    "rtt_min_s": round(min(rtts_s), 5),
                }

    async def _lookups(
        self,
        prober: Prober,
        network: Network,
        zero_s: float,
        seconds: int,
        found: dict[int, dict[str, float]],
    ) -> None:
        for second in range(0, seconds - int(LOOKUP_AT_S), EVERY_S):
            await probes.sleep_until(zero_s + second + LOOKUP_AT_S)
            took_s = await probes.lookup_s(network, LOOKUP_TIMEOUT_S)
            known = found[int(second + LOOKUP_AT_S)]
            known["dns_asked"] = 1
            if took_s is not None:
                known["dns_s"] = took_s

    async def _trains(
        self,
        prober: Prober,
        network: Network,
        zero_s: float,
        seconds: int,
        found: dict[int, dict[str, float]],
    ) -> None:
        for second in range(0, seconds, EVERY_S):
            await probes.sleep_until(zero_s + second + TRAIN_AT_S)
            outcome = await probes.train_over(self.probe_server, network, TRAIN_TIMEOUT_S)
            spent = outcome.spent
            found[second] |= probes.columns(outcome)
            found[second] |= {
                "udp_bytes_up": spent.bytes_up,
                "udp_bytes_down": spent.bytes_down,
                "udp_probe_s": round(spent.seconds, 4),
            }


def _truth(access: AccessTrace, second: int) -> dict[str, float]:
    """Return what the trace carried in a second, and the radio's indicators."""
    known = {
        "true_down_bps": round(access.down.rate_bps(second, second + 1), 0),
        "true_up_bps": round(access.up.rate_bps(second, second + 1), 0),
    }
    if second < access.series.seconds:
        radio = access.series.indicators(second)
        known |= {name: radio[name] for name in _RADIO if name in radio}
    return known


def collect(
    walks: Sequence[Walk],
    directory: Path,
    partial: Path,
    *,
    jobs: int,
    seed: int = 1,
    done: Callable[[int, int], None] = lambda finished, total: None,
) -> list[dict[str, Any]]:
    entries = side_by_side.run(
        walks, functools.partial(SeriesBench, directory), partial, jobs=jobs, seed=seed, done=done
    )
    return [row for entry in entries for row in entry["rows"]]


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a series as Parquet, numbers as 32-bit floats; DataSetError where that fails."""
    table = {
        name: pa.array(
            [row.get(name) for row in rows], pa.string() if name in TEXTS else pa.float32()
        )
        for name in COLUMNS
    }
    try:
        content = datasets.parquet(pa.table(table), compression_level=15)
    except pa.ArrowException as error:
        raise DataSetError(f"{path}: cannot be written: {error}") from error
    console.write(path, content)
