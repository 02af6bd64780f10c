"""Deadlines: simulated days with the product's own scheduler, against one who knows the future.

Days are drawn (`emu.experiments.cedos.world`); only deadlines that can be met at all are counted. A
stream that is played rides a subway (Figure 8), drawn too; at real places it costs more over the optimum
(docs/decisions/streaming.md).
"""

import time
from collections.abc import Callable
from random import Random
from typing import Final

from cedos.model import Direction
from cedos.selector.deadlines.chance import ChanceScheduler
from cedos.selector.deadlines.network_state import HostNetworks, SeenNetwork
from cedos.selector.deadlines.plan import DeadlineFlow, DeadlinePlan
from emu.experiments.cedos import studies, world
from emu.experiments.cedos.compare import figures, tally

_DAYS: Final = 100
_USER_DAYS: Final = 10
_FLOWS: Final = 1000
_TABLES: Final = 40
_WITHIN_S: Final = (21_600.0, 600.0, 60.0, 0.0)
_PLANS: Final = 40
_PRICE_S: Final = 0.2 / 1e6


def run(progress: Callable[[str], None]) -> dict[str, float]:
    """Ten days of ten users, twenty rides, and plans for tables of a thousand flows.

    The figures also have `missed`, `clairvoyant_wifi_share`, `decide_1000_flows_p99_ms`, and
    `decide_1000_overloaded_...` of tables of which some cannot be in time.
    """
    tallies = []
    for user in range(_DAYS // _USER_DAYS):
        progress(f"days of user {user + 1} of {_DAYS // _USER_DAYS}")
        worlds = (world.draw(2_000_000 + user * _USER_DAYS + day) for day in range(_USER_DAYS))
        tallies.append(tally(worlds, [ChanceScheduler()], one_host=True))
    found = figures(tallies)
    ours = found["chance"]
    progress("a stream on the subway")
    ride = studies.figure8()["computed"]
    progress(f"plans for {_FLOWS} flows")
    took_ms, overloaded_ms = map(sorted, _plans_ms())
    return {
        "met_share": ours["met_share"],
        "missed": float(ours["missed"]),
        "missed_by_most_s": ours["missed_by_most_s"],
        "wifi_share": ours["wifi_share"],
        "wifi_share_gap": ours["wifi_share_gap"],
        "clairvoyant_wifi_share": found["clairvoyant_wifi_share"],
        "stalls": float(ride["stalls"]),
        "streaming_metered_over_optimum": (1.0 - ride["wifi_share"])
        / (1.0 - ride["clairvoyant_wifi_share"]),
        "decide_1000_flows_ms": took_ms[len(took_ms) // 2],
        "decide_1000_flows_p99_ms": took_ms[int(0.99 * len(took_ms))],
        "decide_1000_overloaded_ms": overloaded_ms[len(overloaded_ms) // 2],
        "decide_1000_overloaded_p99_ms": overloaded_ms[int(0.99 * len(overloaded_ms))],
    }


def _plans_ms() -> tuple[list[float], list[float]]:
    """Tables due within hours, minutes, one minute, at one instant, from nearly idle to overloaded.

    Networks and forecasts are made anew for each plan. Those of which all can be in time, and the others.
    Processor time: what other programs take of a shared machine is not counted.
    """
    random = Random(1)
    took: tuple[list[float], list[float]] = ([], [])
    for table in range(_TABLES):
        within_s = _WITHIN_S[table % len(_WITHIN_S)]
        # From tables that are nearly idle to those that cannot all be in time.
        mean_bytes = 10.0 ** random.uniform(3.0, 5.5) * max(within_s, 60.0) / 60.0
        networks, seen = (
            HostNetworks(),
            [SeenNetwork("wlan0", random.random() < 0.6, 0.0), SeenNetwork("lte0", True, _PRICE_S)],
        )
        # Ten minutes of measurements: networks come, go and change their rates.
        for at_s in range(600):
            networks.watch(
                [each._replace(up=each.up or random.random() < 0.5) for each in seen], float(at_s)
            )
            for name, bps in (("wlan0", 15.0), ("lte0", 14.5)):
                rate = random.lognormvariate(bps, 0.6)
                networks.on_measured(name, Direction.DOWN, rate, 1.0, float(at_s))
        flows = [
            DeadlineFlow(
                key, random.expovariate(1.0 / mean_bytes), 650.0 + random.uniform(0.0, within_s)
            )
            for key in range(_FLOWS)
        ]
        before = DeadlinePlan()
        for plan in range(_PLANS):
            now = 600.0 + plan
            begun_s = time.thread_time()
            # Time a plan with the forecasts that it needs, on top of the plan before.
            states = networks.states(seen, Direction.DOWN, now)
            before = ChanceScheduler().plan(flows, states, now, before)
            took[bool(before.late)].append(1e3 * (time.thread_time() - begun_s))
    return took
