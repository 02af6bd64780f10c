"""Utterances recognised here, on a server, or at both: who decides (4.4.3.2)."""

from collections.abc import Mapping, Sequence

from cedos.selector.objective import WeightedCost
from cedos.selector.uncertainty import evaluator
from cedos.selector.uncertainty.evaluator import Redundant, Term, Way, network_terms
from emu.experiments.meatballs.client import Usage
from emu.experiments.meatballs.compute import ComputePredictor
from emu.experiments.meatballs.exchange_policy import BOTH, Preferring, Radio, Style
from emu.experiments.meatballs.offload import ANSWER_BYTES, LOCAL, REMOTE, WIFI, Utterance
from emu.experiments.meatballs.outcome import Setting
from emu.experiments.meatballs.race import Chosen, choose_and_reevaluate
from emu.simulation.coverage import DETECTION_S
from predictors.base import Distribution
from predictors.dwell import DwellPredictor
from predictors.error import ErrorHistory
from predictors.network import NetworkPredictor

_TIP_WITHIN_S = 20.0
_TIP_GRANULARITY_S = 0.05
_LEAST_S = 1e-3

CPU_W = 0.548
"""A busy processor of the dissertation's phone: 5.4818 mW per percent of use at its highest frequency,
998 MHz (the Nexus One in PowerTutor's source code, whose model the dissertation used, 4.5.2)."""


class Always(Preferring):
    """The two simple strategies: here; or at the server whenever there is Wi-Fi."""

    def computed(self, task: Utterance, way: str, compute_s: float, now_s: float) -> None:
        """Learn nothing."""


class OffloadPolicy:
    """Decides by expected cost; one class for Meatballs and for the adaptive strategy.

    Args:
        typical_s: seconds of computing per second of speech, before anything was measured, by way.
    """

    def __init__(
        self,
        style: Style,
        setting: Setting,
        radio: Radio,
        usage: Usage,
        typical_s: Mapping[str, float],
        *,
        detection_s: float = DETECTION_S,
    ) -> None:
        self._style, self._radio, self._usage = style, radio, usage
        self._objective = WeightedCost(s_per_j=setting.s_per_j)
        self._detection_s = detection_s
        self._network = NetworkPredictor(WIFI)
        self._compute = {
            way: ComputePredictor(("length_s",), f"{way}.compute", typical=mean_s)
            for way, mean_s in typical_s.items()
        }
        computed = {predictor.name for predictor in self._compute.values()}
        self._evaluator = evaluator(
            style.method,
            lambda name: ComputePredictor.history() if name in computed else ErrorHistory(),
        )
        for predictor in self._compute.values():
            # A line says how long; the quantity is by how much it is wrong.
            self._evaluator.predict(predictor.name, 1.0, 0.0)
        self._dwell = DwellPredictor()
        self._since_s: float | None = None
        self._computed_s: dict[int, float] = {}

    def attached(self, way: str, now_s: float) -> None:
        if way == REMOTE:
            self._since_s = now_s
            self._network.reset(now_s)
            self._evaluator.reset([f"{WIFI}.latency", f"{WIFI}.bandwidth"], now_s)
            latency_s, large = self._network.point_s(0.0), 1e6
            carrying_s = self._network.point_s(large) - latency_s
            self._evaluator.predict(f"{WIFI}.latency", latency_s, now_s)
            self._evaluator.predict(f"{WIFI}.bandwidth", 8.0 * large / carrying_s, now_s)

    def connected(self, way: str, rtt_s: float, now_s: float) -> None:
        self._evaluator.learn(self._network.observe_rtt(rtt_s, now_s))

    def detached(self, way: str, now_s: float) -> None:
        if way == REMOTE and self._since_s is not None:
            self._dwell.observe(WIFI, now_s - self._detection_s - self._since_s)
            self._since_s = None

    def computed(self, task: Utterance, way: str, compute_s: float, now_s: float) -> None:
        """Learn how long the computation alone took, as the answer says; called before `measured`."""
        self._computed_s[task.number] = compute_s
        self._evaluator.learn(
            self._compute[way].observe({"length_s": task.length_s}, compute_s, now_s)
        )

    def measured(self, task: Utterance, way: str, time_s: float, now_s: float) -> None:
        """Learn the network's share: what the answer took beside the computation."""
        if way == REMOTE and self._since_s is not None:
            carrying_s = time_s - self._computed_s.pop(task.number, 0.0)
            self._evaluator.learn(self._network.observe(task.size_bytes, carrying_s, now_s))

    def choose(
        self, task: Utterance, now_s: float, usable: frozenset[str], silent: Mapping[str, float]
    ) -> Chosen:
        return choose_and_reevaluate(
            lambda names, at_s, running: self._best(task, names, at_s, running),
            now_s,
            usable,
            silent,
            reevaluates=self._style.reevaluates,
            within_s=_TIP_WITHIN_S,
            granularity_s=_TIP_GRANULARITY_S,
        )

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
            lasting=self._lasting(now_s) if self._style.reevaluates else None,
            detour_s=self._detection_s + self._compute[LOCAL].point({"length_s": task.length_s}),
        )

    def _lasting(self, now_s: float) -> Distribution | None:
        if self._since_s is None:
            return None
        age_s = now_s - self._since_s
        left = self._dwell.remaining(WIFI, max(age_s - self._detection_s, 0.0))
        unsure_s = min(age_s, self._detection_s)
        return Distribution(tuple([max(each - unsure_s, _LEAST_S) for each in left.samples]))
