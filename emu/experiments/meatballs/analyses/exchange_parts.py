"""Where the time of an exchange goes that the simulation does not have, part by part. Live, as root."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from cedos.model import NetworkKind
from emu.experiments.meatballs.connections import serving
from emu.experiments.meatballs.exchanges.timing import (
    PARTS,
    ExchangeTiming,
    pauses,
    timed_exchanges,
)
from emu.lab.data.folds import Progress
from emu.lab.simulation.joined import joined
from emu.lab.simulation.network import ReplayedNetwork
from emu.places.places import Places
from emu.places.traces import Trace
from emu.statistics import trials_figure
from emu.testbed.access import Access
from emu.testbed.phones import Laptop


def run(
    places: Places,
    *,
    walking: Sequence[str],
    start_s: float,
    rtts_s: Sequence[float] = (0.0, 0.02, 0.05),
    rate_bps: float = 12e6,
    exchanges: int = 150,
    seed: int = 1,
    progress: Progress = lambda share, what: None,
) -> dict[str, Any]:
    """Exchanges of 1 KB and 4 KB, one after another, over steady links and over both networks of a walk.

    Returns:
        `{"links": {NAME: {"rtt_s", "exchanges", "live_ms", "simulated_ms", "difference_ms", "parts":
        {PART: {"live_ms", "simulated_ms", "difference_ms"}}}}}`, means and medians with intervals.
    """
    steady = Trace.constant(rate_bps)
    links = {
        f"steady, {1e3 * rtt_s:g} ms": Access(NetworkKind.WIFI, up=steady, down=steady, rtt_s=rtt_s)
        for rtt_s in rtts_s
    }
    walk = joined([places[each] for each in walking])
    links |= {f"walk, {name}": access for name, access in walk.items()}
    found = {}
    for number, (name, access) in enumerate(links.items()):
        progress(number / len(links), name)
        network = ReplayedNetwork(access)
        with Laptop(source_rules=True, nice=-5) as laptop, serving(laptop):
            laptop.attach(access.rotated(start_s) if name.startswith("walk") else access)
            done = timed_exchanges(
                laptop,
                network,
                list(pauses(exchanges, seed)),
                start_s if name.startswith("walk") else 0.0,
            )
        found[name] = {"rtt_s": access.rtt_s, "exchanges": len(done), **compared(done)}
    return {"rate_bps": rate_bps, "start_s": start_s, "walking": list(walking), "links": found}


def compared(done: Sequence[ExchangeTiming]) -> dict[str, Any]:
    def three(pairs: Sequence[tuple[float, float]]) -> dict[str, Any]:
        more = [1e3 * (lived - simulated) for lived, simulated in pairs]
        return {
            "live_ms": round(1e3 * float(np.mean([lived for lived, _ in pairs])), 3),
            "simulated_ms": round(1e3 * float(np.mean([each for _, each in pairs])), 3),
            **trials_figure("difference_ms", more, 3),
            "difference_median_ms": round(float(np.median(more)), 3),
        }

    return {
        **three([(sum(each.lived.values()), sum(each.simulated.values())) for each in done]),
        "parts": {
            part: three([(each.lived[part], each.simulated[part]) for each in done])
            for part in PARTS
        },
    }
