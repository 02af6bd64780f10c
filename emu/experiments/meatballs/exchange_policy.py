"""Policies for small exchanges: those that decide by expected cost, and the simple ones.

One class is Meatballs with each of its three methods, and the adaptive strategy that they are compared
with: that one takes predictions for the truth, knows no redundancy and never reevaluates (dissertation,
4.5.5.1).
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Generic

from cedos.selector.decision.living import AGAIN_S, tipping_point
from cedos.selector.energy import Radio
from cedos.selector.objective import WeightedCost
from cedos.selector.uncertainty import evaluator
from cedos.selector.uncertainty.brute_force import LOW
from cedos.selector.uncertainty.evaluator import (
    Choice,
    Evaluator,
    Redundant,
    Term,
    Way,
    network_terms,
)
from emu.experiments.meatballs.trial import Chosen, Setting, T, Usage
from emu.experiments.replayed_network import DETECTION_S, HEADER_BYTES, PAYLOAD_BYTES
from predictors.base import Distribution, Measurement
from predictors.dwell import DwellPredictor
from predictors.network import NetworkPredictor

REQUEST_BYTES = 1_000
RESPONSE_BYTES = 4_000
# The relative deviation of normally distributed sizes (4.5.5.1 names none: a quarter is ours).
SIZE_DEVIATION = 0.25

LEAST_BYTES = 64
THINK_S = (10.0, 30.0)


@dataclass(frozen=True, slots=True)
class Request:
    """An exchange that a person waits for; `at_s` counts from the trial's beginning."""

    number: int
    at_s: float
    up_bytes: int
    down_bytes: int

    @property
    def size_bytes(self) -> int:
        return self.up_bytes + self.down_bytes


def requests(duration_s: float, seed: int) -> Sequence[Request]:
    """Return the requests of a trial: sizes around 1 KB and 4 KB, 10 to 30 s apart.

    The time to think runs from one request to the next and not from an answer, so that all policies
    meet the networks at the same instants.
    """
    rng = random.Random(f"exchanges:{seed}")
    found: list[Request] = []
    at_s = rng.uniform(*THINK_S) / 2
    while at_s < duration_s:
        sizes = [
            max(LEAST_BYTES, round(rng.gauss(mean, SIZE_DEVIATION * mean)))
            for mean in (REQUEST_BYTES, RESPONSE_BYTES)
        ]
        found.append(Request(len(found), at_s, *sizes))
        at_s += rng.uniform(*THINK_S)
    return found


# An exchange late by this many latencies met a stopped network, not a slow one.
STALL = 10.0

BOTH = "both"
_LEAST_S = 1e-3


@dataclass(frozen=True, slots=True)
class Style:
    """The way a policy decides."""

    method: str
    redundant: bool = True  # whether it may use several networks at once
    reevaluates: bool = True  # whether it reevaluates when it hears nothing
    # Whether it knows that of itself beforehand, hedges to learn how a network is, and tells a stall
    # from a latency. All three are ours; the published methods do without.
    foresees: bool = True


STYLES: Mapping[str, Style] = {
    "adaptive": Style("trusting", redundant=False, reevaluates=False, foresees=False),
    "brute-force": Style("brute-force"),
    "brute-force, as published": Style("brute-force", foresees=False),
    "error-bounds": Style("error-bounds", foresees=False),
    "bayesian": Style("bayesian"),
}


class DecidingPolicy(ABC, Generic[T]):
    """Chooses what is expected to cost least, and reevaluates after silence."""

    def __init__(
        self,
        style: Style,
        setting: Setting,
        usage: Usage,
        judge: Evaluator,  # weighs the ways
        detection_s: float,
        *,
        within_s: float,  # a silence that has not tipped the choice by then never does
        granularity_s: float,  # how exactly the tipping point is looked for
    ) -> None:
        self._style, self._usage, self._evaluator = style, usage, judge
        self._objective = WeightedCost(
            s_per_j=setting.s_per_j, s_per_metered_byte=setting.s_per_byte
        )
        self._detection_s = detection_s
        self._within_s, self._granularity_s = within_s, granularity_s
        self._dwell = DwellPredictor()
        self._since_s: dict[str, float] = {}

    def detached(self, way: str, now_s: float) -> None:
        """Note that a session at an access point has ended, some time before the host noticed."""
        since_s = self._since_s.pop(way, None)
        if since_s is not None:
            self._dwell.observe(way, now_s - self._detection_s - since_s)

    def choose(
        self, task: T, now_s: float, usable: frozenset[str], silent: Mapping[str, float]
    ) -> Chosen:
        reevaluates = self._style.reevaluates
        if not usable - silent.keys() or (silent and not reevaluates):
            return Chosen(frozenset())
        names = sorted(usable | silent.keys())
        chosen, expected_s = self._best(task, names, now_s, silent)
        if not reevaluates or chosen >= usable:
            return Chosen(chosen)
        if silent:
            return Chosen(chosen, AGAIN_S)

        # Find after how much silence another choice would be better.
        def later(wait_s: float) -> frozenset[str]:
            silence = dict.fromkeys(chosen, wait_s)
            return chosen | self._best(task, names, now_s + wait_s, silence)[0]

        def reevaluate_after_s() -> float:
            tips_s = tipping_point(later, self._granularity_s, self._within_s, self._granularity_s)
            return 2.0 * expected_s if tips_s is None else tips_s

        return Chosen(chosen, reevaluate_after_s)

    @abstractmethod
    def _best(
        self, task: T, names: Sequence[str], now_s: float, silent: Mapping[str, float]
    ) -> tuple[frozenset[str], float]:
        """Return the ways to use, and the expected seconds left; `silent`: seconds by way."""

    def _lasting(self, name: str, now_s: float) -> Distribution | None:
        """Return how long the contact goes on; it may have ended within the time that noticing takes."""
        if name not in self._since_s:
            return None
        age_s = now_s - self._since_s[name]
        left = self._dwell.remaining(name, max(age_s - self._detection_s, 0.0))
        unsure_s = min(age_s, self._detection_s)
        return Distribution(tuple([max(each - unsure_s, _LEAST_S) for each in left.samples]))


class ExchangePolicy(DecidingPolicy[Request]):
    """Decides on small exchanges (see `emu.experiments.meatballs.trial.Policy`)."""

    def __init__(
        self,
        style: Style,
        setting: Setting,
        radios: Mapping[str, Radio],
        metered: Iterable[str],  # the networks whose bytes count
        usage: Usage,
        *,
        detection_s: float = DETECTION_S,
    ) -> None:
        super().__init__(
            style, setting, usage, evaluator(style.method), detection_s,
            within_s=5.0, granularity_s=0.01,
        )  # fmt: skip
        self._radios = radios
        self._metered = frozenset(metered)
        self._networks = {name: NetworkPredictor(name) for name in radios}

    def on_attach(self, way: str, now_s: float) -> None:
        """Begin anew: facts of one access point say little of the next (6.4.3)."""
        self._since_s[way] = now_s
        predictor = self._networks[way]
        predictor.reset(now_s)
        self._evaluator.reset([term.quantity for term in network_terms(way, 1.0)], now_s)
        # Until something is measured, a network is neither good nor bad.
        self._evaluator.predict(f"{way}.latency", predictor.point_s(0.0), now_s)

    def connected(self, way: str, rtt_s: float, now_s: float) -> None:
        if not self._stalled(way, 0.0, rtt_s, now_s):
            self._learn(self._networks[way].observe_rtt(rtt_s, now_s))

    def measured(self, task: Request, way: str, time_s: float, now_s: float) -> None:
        if way in self._since_s and not self._stalled(way, task.size_bytes, time_s, now_s):
            self._learn(self._networks[way].observe(task.size_bytes, time_s, now_s))

    def _stalled(self, way: str, size_bytes: float, time_s: float, now_s: float) -> bool:
        """Return whether nothing came through for a while: an error like any other, but no latency.

        A prediction that followed it would be wrong of all that comes after, and in both directions.
        """
        predictor = self._networks[way]
        late_s = time_s - predictor.point_s(size_bytes)
        latency_s = predictor.point_s(0.0)
        if not self._style.foresees or late_s < STALL * latency_s:
            return False
        self._evaluator.on_measured(f"{way}.latency", latency_s + late_s, latency_s, now_s)
        return True

    def _best(
        self, task: Request, names: Sequence[str], now_s: float, silent: Mapping[str, float]
    ) -> tuple[frozenset[str], float]:
        alone = [self._way(task, name, now_s) for name in names]
        ahead = self._style.foresees and not silent and len(names) > 1
        if ahead:
            judged = self._evaluator.choose(alone, self._objective, now_s).evaluations
            alone = [
                self._reconsidered(way, min(each.cost for each in judged if each.name != way.name))
                for way in alone
            ]
        ways: list[Way | Redundant] = [*alone]
        if self._style.redundant and len(names) > 1:
            ways.append(Redundant(BOTH, tuple(names)))
        choice = self._evaluator.choose(ways, self._objective, now_s, running=silent)
        if choice.name == BOTH or (ahead and self._worth_knowing(choice, now_s)):
            return frozenset(names), choice.chosen.time_s
        return frozenset([choice.name]), choice.chosen.time_s

    def _worth_knowing(self, choice: Choice, now_s: float) -> bool:
        """Return whether to use another network as well, since that tells how it is.

        One that was bad once, and is therefore not used, would never be measured again (6.4.3). What
        is counted is that it is as good as the best it may well be, with that probability, and for
        as many exchanges as there may be before the contact ends.
        """
        of = {each.name: each for each in choice.evaluations}
        if BOTH not in of:
            return False
        best, both = of[choice.name], of[BOTH]
        gains_s = [
            LOW * (best.cost - (each.cost - each.time_s + each.low_s)) * self._uses(name, now_s)
            for name, each in of.items()
            if name not in (choice.name, BOTH)
        ]
        return isfinite(both.cost) and both.cost - best.cost < max(gains_s)

    def _uses(self, name: str, now_s: float) -> float:
        """Return how many exchanges may profit from facts learnt about a network now."""
        if name in self._metered or name not in self._since_s:
            return 1.0
        rest_s = self._dwell.mean_residual_s(name, max(now_s - self._since_s[name], 0.0))
        return min(max(rest_s / (sum(THINK_S) / len(THINK_S)), 1.0), 10.0)

    def _reconsidered(self, way: Way, instead_s: float) -> Way:
        """Return the same way, given up as it will be: when silent for as long as another one costs.

        A network that hangs now and then would otherwise seem as bad as its longest silence, although
        no client waits for its end. To wait for what the alternative costs is at most twice as bad
        as to have known.
        """
        if not isfinite(instead_s):
            return way
        given_up_s = instead_s + min(instead_s, self._detection_s)

        def of(term: Term) -> Term:
            return Term(
                term.quantity, lambda x: s if (s := term.of(x)) <= instead_s else given_up_s
            )

        return replace(way, terms=tuple(of(term) for term in way.terms), detour_s=given_up_s)

    def _way(self, task: Request, name: str, now_s: float) -> Way:
        radio, size, predictor = self._radios[name], task.size_bytes, self._networks[name]
        bandwidth, latency = network_terms(name, size)
        # A few kilobytes seldom tell a bandwidth; an unmeasured one is certain, since typical.
        measured = predictor.bandwidth_bps is not None
        contact = self._style.reevaluates and name not in self._metered
        packets = -(-task.up_bytes // PAYLOAD_BYTES) + -(-task.down_bytes // PAYLOAD_BYTES)
        return Way(
            name,
            (bandwidth, latency) if measured else (latency,),
            fixed_s=0.0 if measured else predictor.point_s(size) - predictor.point_s(0.0),
            fixed_j=radio.transfer_j(
                bytes_up=task.up_bytes,
                bytes_down=task.down_bytes,
                seconds=predictor.point_s(size),
                idle_s=self._usage.idle_s(name, now_s),
            ),
            metered_bytes=size + HEADER_BYTES * packets if name in self._metered else 0,
            lasting=self._lasting(name, now_s) if contact else None,
            detour_s=self._detection_s,
        )

    def _learn(self, measurements: Iterable[Measurement]) -> None:
        for each in measurements:
            self._evaluator.on_measured(each.quantity, each.value, each.prediction, each.at_s)


class Preferring:
    """The first of some ways that is there; what is lost with it is sent again over the next.

    Args:
        order: names, the preferred one first.
    """

    def __init__(self, *order: str) -> None:
        self._order = order

    def choose(
        self, task: object, now_s: float, usable: frozenset[str], silent: Mapping[str, float]
    ) -> Chosen:
        """Return the first one, unless something is under way: silence is waited out."""
        if silent:
            return Chosen(frozenset())
        return Chosen(frozenset(next(([name] for name in self._order if name in usable), [])))

    def measured(self, task: object, way: str, time_s: float, now_s: float) -> None:
        """Learn nothing."""

    def on_attach(self, way: str, now_s: float) -> None:
        """Learn nothing."""

    def connected(self, way: str, rtt_s: float, now_s: float) -> None:
        """Learn nothing."""

    def detached(self, way: str, now_s: float) -> None:
        """Learn nothing."""
