"""The simulation held against live emulation: the same requests, places, seconds and decisions.

Live means Mahimahi, real sockets, a real server and a real clock, in network namespaces (root). All
policies run side by side. The simulation then plays the same seconds again; its decisions take no time,
so that how long the live ones took is told beside.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from emu.data.folds import Progress
from emu.experiments.meatballs import exchanges
from emu.experiments.meatballs.client import Policy, Record, Usage
from emu.experiments.meatballs.connections import serving
from emu.experiments.meatballs.exchange_policy import Request, requests
from emu.experiments.meatballs.exchanges import simulate
from emu.experiments.meatballs.exchanges_analysis import METERED, policies_of
from emu.experiments.meatballs.outcome import SETTINGS, live_beside_simulated
from emu.places.places import Places
from emu.simulation.coverage import DETECTION_S
from emu.simulation.joined import joined
from emu.simulation.network import ReplayedNetwork
from emu.testbed.access import INTERFACES, Access
from emu.testbed.counters import Sample, Sampler
from emu.testbed.phones import Laptop

_SETTLE_S = 1.0
_LATE_MS = 500.0
_APART_S = 0.15
"""Policies ask one after another: none waits while another one decides, in the same program."""


def run(
    places: Places,
    *,
    walking: Sequence[str],
    starts_s: Sequence[float],
    duration_s: float = 240.0,
    think_s: Sequence[float] = (1.0, 3.0),
    policies: Sequence[str] = ("cellular-only", "wifi-preferred", "brute-force"),
    settings: Sequence[str] = ("no", "low"),
    detection_s: float = DETECTION_S,
    device: str = "nexus-one",
    cellular: str = "3g",
    seed: int = 1,
    progress: Progress = lambda share, what: None,
) -> dict[str, Any]:
    """Run live, simulates the same, compares.

    `starts_s`: a trial begins at each of these seconds.
    `duration_s`: of one trial, which takes so long.
    `think_s`: between requests; shorter than in the experiment, so that few minutes tell more.
    `settings`: under which settings; policies that know of no cost run once.

    Returns:
        `{"policies": {NAME: {"requests", "live_wait_ms", "simulated_wait_ms", "agree", ...}},
        "bytes": {...}}`.
    """
    accesses = joined([places[each] for each in walking])
    networks = {
        name: ReplayedNetwork(access, detection_s=detection_s) for name, access in accesses.items()
    }
    both: dict[str, list[tuple[Sequence[Record], Sequence[Record]]]] = {}
    deciding_s: dict[str, list[float]] = {}
    simulated_bytes = dict.fromkeys(accesses, 0)
    interface_bytes = dict(simulated_bytes)
    for trial, start_s in enumerate(starts_s):
        progress(trial / len(starts_s), f"live from second {start_s:g}")
        asked = requests(duration_s, seed * 1000 + trial, think_s)
        wanted = _wanted(policies, settings, device, cellular, detection_s)
        trials = {
            name: exchanges.Trial(*each, _later(asked, number * _APART_S))
            for number, (name, each) in enumerate(wanted.items())
        }
        lasts_s = duration_s + _APART_S * len(trials)
        lived, moved = _live(accesses, networks, trials, start_s, lasts_s)
        again = _wanted(policies, settings, device, cellular, detection_s)
        for name, (policy, usage) in again.items():
            deciding_s.setdefault(name, []).extend(trials[name].deciding_s)
            simulated = simulate(
                trials[name].requests,
                networks,
                policy,
                usage,
                start_s=start_s,
                duration_s=lasts_s,
            )
            both.setdefault(name, []).append((lived[name], simulated))
            for network in simulated_bytes:
                simulated_bytes[network] += usage.bytes_of(network)
        for network in interface_bytes:
            interface_bytes[network] += moved[network]
    return {
        "places": list(walking),
        "trials": len(starts_s),
        "duration_s": duration_s,
        "think_s": list(think_s),
        "policies": {
            name: {
                **_compared(each),
                "deciding_ms": round(1e3 * fmean(deciding_s[name]), 2),
            }
            for name, each in both.items()
        },
        "bytes": {
            network: {"interface": interface_bytes[network], "simulated": simulated_bytes[network]}
            for network in simulated_bytes
        },
        "metered": list(METERED),
    }


def _later(asked: Sequence[Request], by_s: float) -> Sequence[Request]:
    return [replace(each, at_s=each.at_s + by_s) for each in asked]


def _wanted(
    policies: Sequence[str],
    settings: Sequence[str],
    device: str,
    cellular: str,
    detection_s: float,
) -> dict[str, tuple[Policy[Request], Usage]]:
    found: dict[str, tuple[Policy[Request], Usage]] = {}
    for number, setting in enumerate(settings):
        known = policies_of(SETTINGS[setting], device, cellular, detection_s)
        for name in policies:
            simple = name in ("cellular-only", "wifi-preferred")
            if simple and number:
                continue
            found[name if simple else f"{name}, {setting} cost"] = known[name]
    return found


def _live(
    accesses: Mapping[str, Access],
    networks: Mapping[str, ReplayedNetwork],
    trials: Mapping[str, exchanges.Trial],
    start_s: float,
    duration_s: float,
) -> tuple[dict[str, list[Record]], dict[str, int]]:
    with Laptop(source_rules=True, nice=-5) as laptop, serving(laptop):
        laptop.attach(*(access.rotated(start_s - _SETTLE_S) for access in accesses.values()))
        replay_at_s = max(link.started_at_s for link in laptop.links.values()) + _SETTLE_S
        with Sampler(laptop.client, list(INTERFACES.values())) as sampler:
            records = exchanges.run(
                laptop,
                networks,
                trials,
                replay_at_s=replay_at_s,
                start_s=start_s,
                duration_s=duration_s,
            )
        return records, {
            name: _moved([each for each in sampler.samples if each.interface == access.interface])
            for name, access in accesses.items()
        }


def _moved(samples: Sequence[Sample]) -> int:
    first, last = samples[0], samples[-1]
    return (last.received_bytes + last.sent_bytes) - (first.received_bytes + first.sent_bytes)


def _compared(trials: Sequence[tuple[Sequence[Record], Sequence[Record]]]) -> dict[str, Any]:
    late = [
        sum(1e3 * each.wait_s > _LATE_MS for pair in trials for each in pair[which])
        for which in (0, 1)
    ]
    return {
        "requests": sum(len(lived) for lived, _ in trials),
        **live_beside_simulated(trials, "ms", 1e3, 2),
        "late_live": late[0],
        "late_simulated": late[1],
    }
