"""Offloaded computations under policies: those that decide, the simple ones, and the analysis."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from cedos.selector.energy import Radio
from cedos.selector.uncertainty import evaluator
from cedos.selector.uncertainty.evaluator import Redundant, Term, Way, network_terms
from emu.data.evaluate import Progress
from emu.experiments.meatballs.exchange_policy import BOTH, DecidingPolicy, Preferring, Style
from emu.experiments.meatballs.exchange_policy import STYLES as EXCHANGE_STYLES
from emu.experiments.meatballs.offload import (
    ANSWER_BYTES,
    LENGTHS_S,
    LOCAL,
    REMOTE,
    WIFI,
    ComputePolicy,
    ComputePredictor,
    SharedProcessor,
    Speeds,
    Utterance,
    arrivals,
    simulate,
    utterances,
)
from emu.experiments.meatballs.trial import SETTINGS, Outcome, Setting, Usage, compared, radios_of
from emu.experiments.replayed_network import DETECTION_S, ReplayedNetwork, joined
from emu.places.places import Places
from emu.statistics import at_least_one, trials_figure
from predictors.error import ErrorHistory
from predictors.network import NetworkPredictor

# A busy processor of the dissertation's phone: 5.4818 mW per percent of use at its highest
# frequency, 998 MHz (the Nexus One in PowerTutor's source code, whose model the dissertation used,
# 4.5.2).
CPU_W = 0.548


class Always(Preferring):
    """The two simple strategies: here; or at the server whenever there is Wi-Fi."""

    def computed(self, task: Utterance, way: str, compute_s: float, now_s: float) -> None:
        """Learn nothing."""


class OffloadPolicy(DecidingPolicy[Utterance]):
    """Decides where to compute."""

    def __init__(
        self,
        style: Style,
        setting: Setting,
        radio: Radio,
        usage: Usage,
        # Seconds of computing per second of speech, before anything was measured, by way.
        typical_s: Mapping[str, float],
        *,
        detection_s: float = DETECTION_S,
    ) -> None:
        self._radio = radio
        self._network = NetworkPredictor(WIFI)
        self._compute = {
            way: ComputePredictor(("length_s",), f"{way}.compute", typical=mean_s)
            for way, mean_s in typical_s.items()
        }
        computed = {predictor.name for predictor in self._compute.values()}
        judge = evaluator(
            style.method,
            lambda name: ComputePredictor.history() if name in computed else ErrorHistory(),
        )
        for predictor in self._compute.values():
            # A line says how long; the quantity is by how much it is wrong.
            judge.predict(predictor.name, 1.0, 0.0)
        super().__init__(
            style, setting, usage, judge, detection_s, within_s=20.0, granularity_s=0.05
        )
        self._computed_s: dict[int, float] = {}

    def on_attach(self, way: str, now_s: float) -> None:
        if way == REMOTE:
            self._since_s[way] = now_s
            self._network.reset(now_s)
            self._evaluator.reset([f"{WIFI}.latency", f"{WIFI}.bandwidth"], now_s)
            latency_s, large = self._network.point_s(0.0), 1e6
            carrying_s = self._network.point_s(large) - latency_s
            self._evaluator.predict(f"{WIFI}.latency", latency_s, now_s)
            self._evaluator.predict(f"{WIFI}.bandwidth", 8.0 * large / carrying_s, now_s)

    def connected(self, way: str, rtt_s: float, now_s: float) -> None:
        self._evaluator.learn(self._network.observe_rtt(rtt_s, now_s))

    def computed(self, task: Utterance, way: str, compute_s: float, now_s: float) -> None:
        """Learn how long the computation alone took, as the answer says; called before `measured`."""
        self._computed_s[task.number] = compute_s
        self._evaluator.learn(
            self._compute[way].observe({"length_s": task.length_s}, compute_s, now_s)
        )

    def measured(self, task: Utterance, way: str, time_s: float, now_s: float) -> None:
        """Learn the network's share: what the answer took beside the computation."""
        if way in self._since_s:
            carrying_s = time_s - self._computed_s.pop(task.number, 0.0)
            self._evaluator.learn(self._network.observe(task.size_bytes, carrying_s, now_s))

    def _best(
        self, task: Utterance, names: Sequence[str], now_s: float, silent: Mapping[str, float]
    ) -> tuple[frozenset[str], float]:
        ways: list[Way | Redundant] = [self._way(task, name, now_s) for name in names]
        if self._style.redundant and len(names) > 1:
            # The processor stops, and the server's answer is not waited for.
            ways.append(Redundant(BOTH, tuple(names), called_off=True))
        choice = self._evaluator.choose(ways, self._objective, now_s, running=silent)
        return frozenset(names if choice.name == BOTH else [choice.name]), choice.chosen.time_s

    def _way(self, task: Utterance, name: str, now_s: float) -> Way:
        predictor = self._compute[name]
        point_s = predictor.point({"length_s": task.length_s})
        compute = Term(predictor.name, lambda off: point_s * off)
        if name == LOCAL:
            return Way(LOCAL, (compute,), watts=CPU_W)
        return Way(
            REMOTE,
            (*network_terms(WIFI, task.size_bytes), compute),
            # The radio works while it carries, not while the server computes.
            fixed_j=self._radio.transfer_j(
                bytes_up=task.up_bytes,
                bytes_down=ANSWER_BYTES,
                seconds=self._network.point_s(task.size_bytes),
                idle_s=self._usage.idle_s(WIFI, now_s),
            ),
            lasting=self._lasting(REMOTE, now_s) if self._style.reevaluates else None,
            detour_s=self._detection_s + self._compute[LOCAL].point({"length_s": task.length_s}),
        )


SIMPLE: Mapping[str, tuple[str, ...]] = {
    "local-only": (LOCAL,),
    "remote-preferred": (REMOTE, LOCAL),
}

# The styles without our additions to exchanges. Brute force is as published.
STYLES = {name: style for name, style in EXCHANGE_STYLES.items() if "published" not in name}

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
                    records, busy_s = simulate(
                        *(tasks, wifi, server, speeds, deciding, usage),
                        start_s=start_s,
                        duration_s=lasts_s,
                    )
                    end_s = max(each.began_s + each.wait_s for each in records)
                    energy_j = usage.energy_j(end_s + 30.0) + CPU_W * busy_s
                    spent[setting.name].setdefault(policy, []).append(Outcome(records, energy_j))
        found[name] = {
            "places": list(parts),
            "synthetic": any(places[each].synthetic for each in parts),
            "wifi_rtt_s": round(wifi.rtt_s, 5),
            "others_mean": round(fmean(seen), 3),
            **compared(spent, SIMPLE, STYLES, _figures),
        }
    return {
        "simulated": True,
        "trials": trials,
        "work_s": {
            way: round(speeds.base_s[way] + speeds.per_s[way] * _MEAN_LENGTH_S, 4)
            for way in (LOCAL, REMOTE)
        },
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
        return Usage({WIFI: radio})

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


def _figures(of: Sequence[Outcome]) -> dict[str, Any]:
    records = [record for each in of for record in each.records]
    return {
        "tasks": len(records),
        **trials_figure("wait_s", [each.wait_s / len(each.records) for each in of], 4),
        "remote_share": round(
            float(np.mean([any(way == REMOTE for way, _ in r.starts) for r in records])), 4
        ),
    }
