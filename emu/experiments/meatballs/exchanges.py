"""Figures 4.1 and 4.2: small exchanges under policies, simulated over replayed networks."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cedos.selector.energy import Radio
from emu.data.evaluate import Progress
from emu.experiments.meatballs.exchange_policy import (
    STYLES,
    ExchangePolicy,
    Preferring,
    Request,
    requests,
)
from emu.experiments.meatballs.trial import (
    SETTINGS,
    Agenda,
    Client,
    Outcome,
    Policy,
    Race,
    Setting,
    SimulatedNetwork,
    Usage,
    compared,
    play,
    radios_of,
)
from emu.experiments.replayed_network import DETECTION_S, ReplayedNetwork, described, joined
from emu.places.places import Places
from emu.statistics import at_least_one, trials_figure


def simulate(
    requests: Sequence[Request],
    networks: Mapping[str, ReplayedNetwork],
    policy: Policy[Request],
    usage: Usage,
    *,
    start_s: float = 0.0,
    duration_s: float,
) -> list[Race[Request]]:
    """Simulate one trial; ways are named like the networks, and `usage` is filled.

    `start_s`: the second of the replay at which the trial begins.
    """
    agenda = Agenda()
    simulated = {
        name: SimulatedNetwork(agenda, name, network, usage, start_s)
        for name, network in networks.items()
    }

    def start(task: Request, way: str, now_s: float) -> None:
        simulated[way].start(
            task.number,
            task.up_bytes,
            task.down_bytes,
            now_s,
            lambda at_s, _: client.on_answer(task.number, way, at_s),
        )

    def cancel(task: Request, way: str, now_s: float) -> None:
        simulated[way].cancel(task.number, now_s)

    client = Client(policy, start, cancel)
    for name, network in simulated.items():
        network.follow(client, name)
    return play(agenda, client, requests, duration_s=duration_s)


METERED = ("cellular",)
SIMPLE: Mapping[str, tuple[str, ...]] = {
    "cellular-only": ("cellular",),
    "wifi-preferred": ("wifi", "cellular"),
}


def run(
    places: Places,
    *,
    walking: Sequence[str],
    driving: Sequence[str],
    trials: int = 5,
    duration_s: float = 1200.0,
    detection_s: float = DETECTION_S,
    device: str = "nexus-one",
    cellular: str = "3g",
    seed: int = 1,
    progress: Progress = lambda share, what: None,
) -> dict[str, Any]:
    """Run all policies under all settings on both places.

    `trials`: how often, from another second of the place and with other requests each time.
    `seed`: of the requests and of the seconds at which trials begin.

    Returns:
        `{"simulated", "places": {NAME: {"policies": {SETTING: {POLICY: figures}},
        "beside": {SETTING: {POLICY: {"best_simple", ...}}}}}}`.

    Raises:
        ConfigError: no trial, or an unknown radio.
        PlaceError: a place that is not there.
    """
    at_least_one(trials)
    wanted = {"walking": tuple(walking), "driving": tuple(driving)}
    found: dict[str, Any] = {}
    for number, (name, parts) in enumerate(wanted.items()):
        accesses = joined([places[each] for each in parts])
        networks = {
            each: ReplayedNetwork(access, detection_s=detection_s)
            for each, access in accesses.items()
        }
        period_s = accesses["wifi"].down.period_s
        rng = np.random.default_rng([seed, number])
        spent: dict[str, dict[str, list[Outcome]]] = {setting: {} for setting in SETTINGS}
        for trial in range(trials):
            progress((number + trial / trials) / len(wanted), f"{name}, trial {trial + 1}")
            # All policies and settings see the same requests from the same second of the place.
            start_s = float(rng.uniform(0.0, period_s))
            asked = requests(duration_s, seed * 1000 + trial)
            for setting, policy, outcome in _trial(
                asked, networks, start_s, duration_s, device, cellular, detection_s
            ):
                spent[setting].setdefault(policy, []).append(outcome)
        found[name] = {
            "places": list(parts),
            "synthetic": any(places[each].synthetic for each in parts),
            "seconds": period_s,
            **{each: described(network) for each, network in networks.items()},
            **compared(spent, SIMPLE, STYLES, _figures),
        }
    return {
        "simulated": True,
        "trials": trials,
        "duration_s": duration_s,
        "detection_s": detection_s,
        "radios": f"{device}, {cellular}",
        "places": found,
    }


def usage_of(device: str, cellular: str) -> tuple[Usage, dict[str, Radio]]:
    of = dict(zip(("wifi", "cellular"), radios_of(device, "wifi", cellular), strict=True))
    return Usage(of), of


def policies_of(
    setting: Setting, device: str, cellular: str, detection_s: float
) -> dict[str, tuple[Policy[Request], Usage]]:
    """Return all policies under a setting, each with counters of its own."""
    found: dict[str, tuple[Policy[Request], Usage]] = {}
    for name, order in SIMPLE.items():
        found[name] = (Preferring(*order), usage_of(device, cellular)[0])
    for name, style in STYLES.items():
        usage, of = usage_of(device, cellular)
        policy = ExchangePolicy(style, setting, of, METERED, usage, detection_s=detection_s)
        found[name] = (policy, usage)
    return found


def _trial(
    asked: Sequence[Request],
    networks: Mapping[str, ReplayedNetwork],
    start_s: float,
    duration_s: float,
    device: str,
    cellular: str,
    detection_s: float,
) -> list[tuple[str, str, Outcome]]:
    """Return (setting, policy, outcome) of all policies and settings, from the same second."""
    found = []
    simple: dict[str, Outcome] = {}
    for setting in SETTINGS.values():
        for name, (policy, usage) in policies_of(setting, device, cellular, detection_s).items():
            if name not in simple:
                records = simulate(
                    asked, networks, policy, usage, start_s=start_s, duration_s=duration_s
                )
                end_s = max([duration_s] + [each.began_s + each.wait_s for each in records])
                outcome = Outcome(
                    records,
                    usage.energy_j(end_s + 30.0),  # the last tail is part of it
                    sum(usage.bytes_of(each) for each in METERED),
                    sum(usage.bytes_of(each) for each in networks),
                )
                if name in SIMPLE:
                    simple[name] = outcome
            else:
                outcome = simple[name]
            found.append((setting.name, name, outcome))
    return found


def _figures(of: Sequence[Outcome]) -> dict[str, Any]:
    records = [record for each in of for record in each.records]
    return {
        "requests": len(records),
        **trials_figure("wait_ms", [1e3 * each.wait_s / len(each.records) for each in of], 3),
        "wait_p95_ms": round(1e3 * float(np.quantile([r.wait_s for r in records], 0.95)), 2),
        **trials_figure("cellular_kb", [each.metered_bytes / 1e3 for each in of], 2),
        **trials_figure("all_kb", [each.all_bytes / 1e3 for each in of], 2),
    }
