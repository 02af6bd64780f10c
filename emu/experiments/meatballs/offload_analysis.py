"""Figures 4.3 and 4.4: computation offloaded while walking, while driving, and to a loaded server.

Simulated; how long the computation takes by itself was measured (`emu.workloads.speech`, the numbers
are in the experiment's file).
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from cedos.selector.energy import RadioWatch
from emu.data.folds import Progress
from emu.experiments.meatballs.client import Usage, radios_of
from emu.experiments.meatballs.exchange_policy import STYLES as EXCHANGE_STYLES
from emu.experiments.meatballs.offload import (
    LENGTHS_S,
    LOCAL,
    REMOTE,
    WIFI,
    ComputePolicy,
    Processor,
    SharedProcessor,
    Speeds,
    arrivals,
    simulate,
    utterances,
)
from emu.experiments.meatballs.offload_policy import CPU_W, Always, OffloadPolicy
from emu.experiments.meatballs.outcome import (
    SETTINGS,
    Outcome,
    Setting,
    beside_simple_policies,
    redundancy_shares,
)
from emu.experiments.trials import at_least_one
from emu.places.places import Places
from emu.simulation.coverage import DETECTION_S
from emu.simulation.joined import joined
from emu.simulation.network import ReplayedNetwork
from emu.statistics import trials_figure

SIMPLE: Mapping[str, tuple[str, ...]] = {
    "local-only": (LOCAL,),
    "remote-preferred": (REMOTE, LOCAL),
}

STYLES = {name: style for name, style in EXCHANGE_STYLES.items() if "published" not in name}
"""What is ours about exchanges is not done here: brute force is as published."""

PAPER: Mapping[str, Any] = {
    "walking": {
        "no": {"saved_of_remote-preferred": [0.23, 0.35], "times_local-only": 2.0},
        "high": {"equal_to": "remote-preferred"},
    },
    "driving": {"all": {"equal_to": "local-only"}},
    "load": {"no": {"saved_of_local-only": 0.23, "saved_of_remote-preferred": 0.23}},
}
"""What the text of 4.5.5.2 says of its Figures 4.3 and 4.4, which print no numbers."""

_MEAN_LENGTH_S = sum(LENGTHS_S) / 2
_LOAD_SEED = 100


def run(
    places: Places,
    *,
    walking: Sequence[str],
    driving: Sequence[str],
    load: str,
    base_s: float,
    per_s: float,
    spread: float,
    local_passes: int,
    server_passes: int,
    concurrent: Sequence[float] = (6.0, 10.0),
    trials: int = 5,
    duration_s: float = 1200.0,
    load_duration_s: float = 600.0,
    detection_s: float = DETECTION_S,
    device: str = "nexus-one",
    seed: int = 1,
    progress: Progress = lambda share, what: None,
) -> dict[str, Any]:
    """Run all policies under all settings in the three scenarios.

    `load`: a place of steady Wi-Fi, for the loaded server.
    `base_s`: measured seconds of one pass of the computation, whatever the length.
    `per_s`: and for each second of speech.
    `spread`: and their standard deviation, as a share.
    `local_passes`: so many passes are one recognition on the device: how slow it is.
    `server_passes`: and on the server.
    `concurrent`: how many others the loaded server serves on average, first and last.
    `load_duration_s`: of a trial with the loaded server.
    """
    at_least_one(trials)
    speeds = Speeds(
        {LOCAL: local_passes * base_s, REMOTE: server_passes * base_s},
        {LOCAL: local_passes * per_s, REMOTE: server_passes * per_s},
        spread,
    )
    scenarios: dict[str, tuple[Sequence[str], float, tuple[float, float]]] = {
        "walking": (walking, duration_s, (0.0, 0.0)),
        "driving": (driving, duration_s, (0.0, 0.0)),
        "load": ([load], load_duration_s, (concurrent[0], concurrent[1])),
    }
    found: dict[str, Any] = {}
    for number, (name, (parts, lasts_s, others)) in enumerate(scenarios.items()):
        access = joined([places[each] for each in parts])[WIFI]
        wifi = ReplayedNetwork(access, detection_s=detection_s)
        rng = np.random.default_rng([seed, number])
        spent: dict[str, dict[str, list[Outcome]]] = {setting: {} for setting in SETTINGS}
        seen: list[float] = []
        for trial in range(trials):
            progress((number + trial / trials) / len(scenarios), f"{name}, trial {trial + 1}")
            start_s = float(rng.uniform(0.0, access.down.period_s))
            server = _server(speeds, lasts_s, others, seed * _LOAD_SEED + trial)
            seen += [server.concurrent(at_s) for at_s in np.arange(0.0, lasts_s, 10.0)]
            tasks = utterances(lasts_s, seed)  # the same 20 recordings in all trials
            for setting in SETTINGS.values():
                for policy, (deciding, usage) in policies_of(
                    setting, device, speeds, detection_s
                ).items():
                    processor = Processor()
                    records = simulate(
                        *(tasks, wifi, server, speeds, deciding, usage, processor),
                        start_s=start_s,
                        duration_s=lasts_s,
                    )
                    end_s = max(each.began_s + each.wait_s for each in records)
                    energy_j = usage.energy_j(end_s + 30.0) + CPU_W * processor.busy_s
                    spent[setting.name].setdefault(policy, []).append(Outcome(records, energy_j))
        found[name] = {
            "places": list(parts),
            "synthetic": any(places[each].synthetic for each in parts),
            "wifi_rtt_s": round(wifi.rtt_s, 5),
            "others_mean": round(fmean(seen), 3),
            "policies": {
                setting: {policy: _figures(of, SETTINGS[setting]) for policy, of in by.items()}
                for setting, by in spent.items()
            },
            "beside": {
                setting: beside_simple_policies(by, SETTINGS[setting], SIMPLE, STYLES)
                for setting, by in spent.items()
            },
        }
    return {
        "simulated": True,
        "trials": trials,
        "work_s": {
            way: round(speeds.base_s[way] + speeds.per_s[way] * _MEAN_LENGTH_S, 4)
            for way in (LOCAL, REMOTE)
        },
        "paper": PAPER,
        "scenarios": found,
    }


def _server(
    speeds: Speeds, lasts_s: float, others: tuple[float, float], seed: int
) -> SharedProcessor:
    mean_s = speeds.base_s[REMOTE] + speeds.per_s[REMOTE] * _MEAN_LENGTH_S
    return SharedProcessor(
        arrivals(
            lasts_s + 60.0,
            others,
            mean_s,
            lambda rng: speeds.base_s[REMOTE] + speeds.per_s[REMOTE] * rng.uniform(*LENGTHS_S),
            seed,
        )
    )


def policies_of(
    setting: Setting, device: str, speeds: Speeds, detection_s: float
) -> dict[str, tuple[ComputePolicy, Usage]]:
    """Return all policies under a setting, each with counters of its own for the Wi-Fi."""
    (radio,) = radios_of(device, WIFI)

    def usage() -> Usage:
        return Usage({WIFI: RadioWatch(radio)})

    found: dict[str, tuple[ComputePolicy, Usage]] = {
        name: (Always(*order), usage()) for name, order in SIMPLE.items()
    }
    # Before the first run they know what the programs took on idle machines.
    typical_s = {
        way: speeds.base_s[way] + speeds.per_s[way] * _MEAN_LENGTH_S for way in (LOCAL, REMOTE)
    }
    for name, style in STYLES.items():
        own = usage()
        policy = OffloadPolicy(style, setting, radio, own, typical_s, detection_s=detection_s)
        found[name] = (policy, own)
    return found


def _figures(of: Sequence[Outcome], setting: Setting) -> dict[str, Any]:
    records = [record for each in of for record in each.records]
    return {
        "tasks": len(records),
        **trials_figure("wait_s", [each.wait_s / len(each.records) for each in of], 4),
        "wait_p95_s": round(float(np.quantile([r.wait_s for r in records], 0.95)), 3),
        **trials_figure("energy_j", [each.energy_j for each in of], 2),
        **trials_figure("cost_s", [each.cost_s(setting) for each in of], 4),
        **redundancy_shares(records),
        "remote_share": round(
            float(np.mean([any(way == REMOTE for way, _ in r.starts) for r in records])), 4
        ),
        "unanswered": sum(not r.answered for r in records),
    }
