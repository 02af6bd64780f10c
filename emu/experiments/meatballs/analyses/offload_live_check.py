"""Simulated offloading held against live trials: a real server under real load, real recognition.

How long the computation takes on this machine is measured first; the simulation then plays the same
utterances, the same others' arrivals and the same Wi-Fi.
"""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from emu.experiments.meatballs.analyses.offload import policies_of
from emu.experiments.meatballs.client import Record
from emu.experiments.meatballs.connections import serving
from emu.experiments.meatballs.offload import live as offload_live
from emu.experiments.meatballs.offload.service_times import measured, processors_apart
from emu.experiments.meatballs.offload.shared_processor import SharedProcessor, arrivals
from emu.experiments.meatballs.offload.simulated import ComputePolicy, Processor, Speeds, simulate
from emu.experiments.meatballs.offload.utterances import (
    LENGTHS_S,
    REMOTE,
    WIFI,
    Utterance,
    utterances,
)
from emu.experiments.meatballs.outcome import live_beside_simulated
from emu.experiments.meatballs.settings import SETTINGS
from emu.experiments.meatballs.usage import Usage
from emu.experiments.trials import at_least_one
from emu.lab.data.folds import Progress
from emu.lab.simulation.coverage import DETECTION_S
from emu.lab.simulation.joined import joined
from emu.lab.simulation.network import ReplayedNetwork
from emu.places.places import Places
from emu.testbed.access import Access
from emu.testbed.phones import Laptop
from emu.workloads.speech import RECORDINGS, recorded

_WARM_UP_S = 10.0
_LOAD_SEED = 100


def run(
    places: Places,
    *,
    load: str,
    local_passes: int,
    server_passes: int,
    concurrent: Sequence[float] = (1.0, 2.0),
    trials: int = 5,
    duration_s: float = 100.0,
    every_s: float = 10.0,
    policies: Sequence[str] = ("remote-preferred", "brute-force"),
    setting: str = "no",
    device: str = "nexus-one",
    seed: int = 1,
    progress: Progress = lambda share, what: None,
) -> dict[str, Any]:
    """One live trial per policy after another, with other arrivals each time, and the same simulated.

    `load`: a place of steady Wi-Fi.
    `local_passes`: of a recognition on the device.
    `server_passes`: and on the server.
    `concurrent`: others at the server on average, first and last. Near saturation what is off by a
    hundredth in a service time is off by much more in a wait.
    `duration_s`: of each trial, which takes so long.

    Raises:
        ConfigError: no trial.
        EmulationError: the testbed failed, or there are no two processors.
    """
    at_least_one(trials)
    for number in range(RECORDINGS):
        recorded(number)  # before any process is forked that would have to make its own
    access = joined([places[load]])[WIFI]
    tasks = utterances(duration_s, seed, every_s)
    pairs_of: dict[str, list[_Pair]] = {name: [] for name in policies}
    with processors_apart() as cpu:
        progress(0.0, "measuring how long the computation takes")
        with Laptop(source_rules=True, nice=-5) as laptop, serving(laptop, server_passes, cpu):
            speeds, off = measured(laptop, local_passes)
        for trial in range(trials):
            others = _others(speeds, duration_s, concurrent, seed * _LOAD_SEED + trial)
            for number, name in enumerate(policies):
                progress((trial + number / len(policies)) / trials, f"trial {trial + 1}, {name}")
                policy, usage = policies_of(SETTINGS[setting], device, speeds, DETECTION_S)[name]
                busy = Processor()
                with (
                    Laptop(source_rules=True, nice=-5) as laptop,
                    serving(laptop, server_passes, cpu),
                ):
                    laptop.attach(access)
                    lived = offload_live.run(
                        *(laptop, tasks, ReplayedNetwork(access), policy, usage, busy),
                        local_passes=local_passes,
                        others=others,
                        zero_at_s=time.monotonic() + _WARM_UP_S,
                        start_s=_WARM_UP_S,
                        duration_s=duration_s,
                    )
                policy, usage = policies_of(SETTINGS[setting], device, speeds, DETECTION_S)[name]
                replayed = _simulated(access, speeds, others, tasks, policy, usage, duration_s)
                pairs_of[name].append(_Pair(lived, busy.busy_s, *replayed))
    return {
        "place": load,
        "setting": setting,
        "trials": trials,
        "duration_s": duration_s,
        "concurrent": list(concurrent),
        "work_s": {
            way: {
                "base": round(speeds.base_s[way], 5),
                "per_s": round(speeds.per_s[way], 6),
                "off": round(off[way], 4),
            }
            for way in speeds.per_s
        },
        "policies": {name: _compared(pairs) for name, pairs in pairs_of.items()},
    }


class _Pair(NamedTuple):
    """A trial: live, and simulated; with the seconds for which the device computed."""

    lived: Sequence[Record]
    busy_s: float
    simulated: Sequence[Record]
    simulated_busy_s: float


def _others(
    speeds: Speeds, duration_s: float, concurrent: Sequence[float], seed: int
) -> Sequence[tuple[float, float]]:
    """When others ask, and for how many seconds of speech."""
    mean_s = speeds.work_s(REMOTE, sum(LENGTHS_S) / 2, 0)
    return arrivals(
        duration_s + 30.0,
        (concurrent[0], concurrent[1]),
        mean_s,
        lambda rng: rng.uniform(*LENGTHS_S),
        seed,
        warm_up_s=_WARM_UP_S,
    )


def _simulated(
    access: Access,
    speeds: Speeds,
    others: Sequence[tuple[float, float]],
    tasks: Sequence[Utterance],
    policy: ComputePolicy,
    usage: Usage,
    duration_s: float,
) -> tuple[Sequence[Record], float]:
    work = [(at_s, speeds.work_s(REMOTE, length_s, 0)) for at_s, length_s in others]
    processor = Processor()
    records = simulate(
        *(tasks, ReplayedNetwork(access), SharedProcessor(work), speeds, policy, usage, processor),
        start_s=_WARM_UP_S,
        duration_s=duration_s,
    )
    return records, processor.busy_s


def _compared(pairs: Sequence[_Pair]) -> dict[str, Any]:
    return {
        "tasks": sum(len(each.lived) for each in pairs),
        **live_beside_simulated([(each.lived, each.simulated) for each in pairs], "s", 1.0, 4),
        "processor_live_s": round(sum(each.busy_s for each in pairs), 2),
        "processor_simulated_s": round(sum(each.simulated_busy_s for each in pairs), 2),
    }
