"""Simulated offloading held against a live trial: a real server under real load, real recognition.

How long the computation takes on this machine is measured first; the simulation then plays the same
utterances, the same others' arrivals and the same Wi-Fi.
"""

import multiprocessing
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from emu.data.folds import Progress
from emu.meatballs import offload_live
from emu.meatballs.analyses.offload import SIMPLE, policies_of
from emu.meatballs.client import Record
from emu.meatballs.live import serving
from emu.meatballs.load import SharedProcessor, arrivals
from emu.meatballs.offload import LENGTHS_S, LOCAL, REMOTE, WIFI, utterances
from emu.meatballs.offload_simulate import Processor, Speeds, simulate
from emu.meatballs.plan import SETTINGS
from emu.meatballs.speech import RECORDED_S, RECORDINGS, recognise, recorded
from emu.places.places import Places
from emu.simulation.joined import joined
from emu.simulation.network import ReplayedNetwork
from emu.testbed.phones import Laptop

_WARM_UP_S = 15.0
_PROBED_S = 4.5


def run(
    places: Places,
    *,
    load: str,
    local_passes: int,
    server_passes: int,
    concurrent: Sequence[float] = (2.0, 4.0),
    duration_s: float = 100.0,
    every_s: float = 9.0,
    policies: Sequence[str] = ("remote-preferred", "brute-force"),
    setting: str = "no",
    device: str = "nexus-one",
    seed: int = 1,
    progress: Progress = lambda share, what: None,
) -> dict[str, Any]:
    """One live trial per policy, one after another, and the same simulated.

    Args:
        places: the collection.
        load: a place of steady Wi-Fi.
        local_passes: of a recognition on the device.
        server_passes: and on the server.
        concurrent: others at the server on average, first and last.
        duration_s: of each trial, which takes so long.
        every_s: between utterances.
        policies: which ones.
        setting: what joules cost.
        device: whose radio.
        seed: of utterances and arrivals.
        progress: told of the share done.

    Raises:
        EmulationError: the testbed failed.
    """
    for number in range(RECORDINGS):
        recorded(number)  # before any process is forked that would have to make its own
    per_s = measured_speed()
    speeds = Speeds(
        {LOCAL: 0.0, REMOTE: 0.0},
        {LOCAL: local_passes * per_s, REMOTE: server_passes * per_s},
    )
    mean_s = speeds.work_s(REMOTE, sum(LENGTHS_S) / 2, 0)
    others = arrivals(
        duration_s + 30.0,
        (concurrent[0], concurrent[1]),
        mean_s,
        lambda rng: rng.uniform(*LENGTHS_S),
        seed,
        warm_up_s=_WARM_UP_S,
    )
    server = SharedProcessor(
        [(at_s, speeds.work_s(REMOTE, length_s, 0)) for at_s, length_s in others]
    )
    access = joined([places[load]])[WIFI]
    tasks = utterances(duration_s, seed, every_s)
    found: dict[str, Any] = {}
    for number, name in enumerate(policies):
        progress(number / len(policies), f"live, {name}")

        def fresh(of: str = name) -> Any:
            return policies_of(SETTINGS[setting], device, speeds, 3.0)[of]

        policy, usage = fresh()
        busy = Processor()
        with (
            Laptop(source_rules=True, nice=-5) as laptop,
            serving(laptop, sys.executable, server_passes),
        ):
            laptop.attach(access)
            lived = offload_live.run(
                *(laptop, tasks, policy, usage, busy),
                local_passes=local_passes,
                others=others,
                zero_at_s=time.monotonic() + _WARM_UP_S,
            )
        policy, usage = fresh()
        replayed = Processor()
        simulated = simulate(
            *(tasks, ReplayedNetwork(access), server, speeds, policy, usage, replayed),
            start_s=_WARM_UP_S,
            duration_s=duration_s,
        )
        found[name] = _compared(lived, simulated) | {
            "processor_live_s": round(busy.busy_s, 2),
            "processor_simulated_s": round(replayed.busy_s, 2),
        }
    return {
        "place": load,
        "setting": setting,
        "duration_s": duration_s,
        "per_s": round(per_s, 6),
        "others": len(others),
        "simple": list(SIMPLE),
        "policies": found,
    }


def measured_speed() -> float:
    """Seconds of one pass per second of speech, on this machine now.

    With another processor busy, as it is in the trial: two cores may share what makes them fast.
    """
    other = multiprocessing.get_context("fork").Process(
        target=recognise, args=(RECORDED_S, 0), kwargs={"times": 10_000}
    )
    other.start()
    try:
        ratios = []
        for _ in range(40):
            began_s = time.perf_counter()
            recognise(_PROBED_S, 1)
            ratios.append((time.perf_counter() - began_s) / _PROBED_S)
        # The fastest: what else runs on the host only ever makes one slower.
        return min(ratios)
    finally:
        other.kill()
        other.join()


def _compared(lived: Sequence[Record], simulated: Sequence[Record]) -> dict[str, Any]:
    return {
        "tasks": len(lived),
        "live_s": round(statistics.fmean(each.wait_s for each in lived), 3),
        "simulated_s": round(statistics.fmean(each.wait_s for each in simulated), 3),
        "live_median_s": round(statistics.median(each.wait_s for each in lived), 3),
        "simulated_median_s": round(statistics.median(each.wait_s for each in simulated), 3),
        "same_winner_share": round(
            statistics.fmean(a.winner == b.winner for a, b in zip(lived, simulated, strict=True)),
            3,
        ),
        "hedged_live": round(statistics.fmean(each.redundant for each in lived), 3),
        "hedged_simulated": round(statistics.fmean(each.redundant for each in simulated), 3),
        "pairs_s": [
            [round(a.wait_s, 3), round(b.wait_s, 3)] for a, b in zip(lived, simulated, strict=True)
        ],
    }
