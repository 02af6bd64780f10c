"""The time of a decision that weighs all the errors of its predictors, by each of the methods.

What is timed is the daemon's own decision, with two networks whose predictors have 50 errors of the
bandwidth and 50 of the latency each: 6.25 million joint outcomes. The evaluators that choose among ways
of any kind, with which the experiments go through all of these, stand beside it. Before each decision an
exchange over one of the networks is measured, so that no decision can be kept; transfers are of all
sizes, and seconds pass between them. Wall-clock percentiles are what a transfer waits; on a shared
machine the 99th belongs to the neighbours, so the processor's time stands beside it.
"""

import gc
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence

from cedos.model import Context, Network, NetworkKind, SizeEstimate, StrategyKind, Transfer
from cedos.selector.decision.case import Case
from cedos.selector.decision.decide import decide
from cedos.selector.objective import WeightedCost
from cedos.selector.uncertainty import METHODS, evaluator, method_of
from cedos.selector.uncertainty.bayesian import Bayesian
from cedos.selector.uncertainty.evaluator import Redundant, Way, network_terms
from cedos.selector.uncertainty.times import mean_of_first, summed
from predictors.base import Distribution
from predictors.error import SLICES
from predictors.network import TIME, NetworkPredictor
from predictors.posterior import Posterior

NAME = "uncertainty"

_DECISIONS = 5_000
_WARM_UP = 300
_FEW_SAMPLES = 7
_SPECS = {"wifi": (0.03, 20e6, 0.6), "cellular": (0.06, 8e6, 0.3)}
"""Latency in s, bandwidth in bit/s, and the standard deviation of both's logarithms."""

_NETWORKS = (
    Network("wlan0", "wlan0", 3, NetworkKind.WIFI, metered=False),
    Network("lte0", "lte0", 4, NetworkKind.CELLULAR, metered=True),
)
_HEDGED = frozenset({StrategyKind.SINGLE, StrategyKind.REDUNDANT})
_OBJECTIVE = WeightedCost(s_per_j=0.01, s_per_metered_byte=1e-6)
_BOTH = Redundant("both", tuple(_SPECS))


def run(progress: Callable[[str], None]) -> dict[str, float]:
    """Time decisions by every method.

    Returns:
        `p50_us`, `p99_us` (brute force), `cpu_p99_us`, the same percentiles of the other methods with
        their names; `p50_ways_us`, `p99_ways_us`, `cpu_p99_ways_us` of the evaluator that goes through
        all combinations, and `p50_kept_us` of one that is asked again without news; `samples` of each
        quantity, and `enumeration_ratio`: how many times longer going through all joint outcomes takes,
        where there are few enough of them (7 errors each).
    """
    figures: dict[str, float] = {"samples": float(SLICES)}
    assert gc.isenabled()
    for method in METHODS:
        progress(f"{_DECISIONS} decisions ({method})")
        suffix = "" if method == METHODS[0] else f"_{method.replace('-', '_')}"
        figures |= _percentiles(suffix, _decisions(method))
    progress(f"{_DECISIONS} choices among ways")
    figures |= _percentiles("_ways", _choices())
    figures["p50_kept_us"] = _kept_us()
    progress("going through all joint outcomes")
    figures["enumeration_ratio"] = _enumeration_ratio()
    return figures


class _World:
    """Networks that are as they are, give or take chance; time passes. A `CompletionModel` of them.

    Args:
        posterior: corrects predictions, as the daemon's are by the Bayesian method.
    """

    features: Sequence[str] = ("size_bytes",)

    def __init__(self, posterior: Posterior | None = None) -> None:
        self.dice = random.Random(7)
        self.knows = evaluator()
        self.now_s = 0.0
        self._posterior = posterior
        self._predictors = {name: NetworkPredictor(name) for name in _SPECS}
        for _ in range(2 * SLICES):
            for name in _SPECS:
                self.measure(name)

    def measure(self, name: str) -> None:
        latency_s, rate_bps, sigma = _SPECS[name]
        predictor = self._predictors[name]
        self.now_s += self.dice.expovariate(0.2)
        late_s = latency_s * self.dice.lognormvariate(0.0, sigma)
        bps = rate_bps * self.dice.lognormvariate(0.0, sigma)
        if self._posterior is not None:
            size_bytes = self.size_bytes()
            predicted = self._predicted(size_bytes)
            self._posterior.learn(predicted, name, late_s + 8.0 * size_bytes / bps)
        self.knows.learn(predictor.observe_rtt(late_s, self.now_s))
        self.knows.learn(predictor.observe_rate(bps, self.now_s))

    def pass_time(self) -> None:
        """Seconds in which nothing is measured."""
        self.now_s += self.dice.expovariate(0.1)

    def size_bytes(self) -> float:
        """From 1 KB to 10 MB, small ones as often as large ones."""
        return float(round(math.exp(self.dice.uniform(math.log(1e3), math.log(1e7)))))

    def predict(self, features: Mapping[str, float], /) -> Mapping[str, Distribution]:
        """Return the times of exchanges over each network."""
        predicted = self._predicted(features["size_bytes"])
        return predicted if self._posterior is None else self._posterior.of(predicted)

    def _predicted(self, size_bytes: float) -> Mapping[str, Distribution]:
        columns = {"size_bytes": size_bytes, "at_s": self.now_s}
        return {name: each.predict(columns)[TIME] for name, each in self._predictors.items()}


def _decisions(name: str) -> tuple[list[float], list[float]]:
    """Wall-clock and CPU microseconds of every decision, as the daemon takes them."""
    method = method_of(name)
    world = _World(Posterior() if method is Bayesian else None)

    def decided(size_bytes: float) -> object:
        size = int(size_bytes)
        transfer = Transfer(SizeEstimate(size, size, size, "hint"))
        context = Context(world.now_s, {})
        case = Case(transfer, context, _NETWORKS, world, _OBJECTIVE, kinds=_HEDGED, method=method)
        return decide(case)

    return _timed(world, decided)


def _choices() -> tuple[list[float], list[float]]:
    """Return the same of an evaluator's choices."""
    world = _World()
    return _timed(
        world, lambda size_bytes: world.knows.choose(_ways(size_bytes), _OBJECTIVE, world.now_s)
    )


def _ways(size_bytes: float) -> tuple[Way | Redundant, ...]:
    return (
        Way("wifi", network_terms("wifi", size_bytes), watts=0.4),
        Way(
            "cellular",
            network_terms("cellular", size_bytes),
            watts=1.7,
            fixed_j=6.5,
            metered_bytes=size_bytes,
        ),
        _BOTH,
    )


def _timed(world: _World, choose: Callable[[float], object]) -> tuple[list[float], list[float]]:
    wall_us, cpu_us = [], []
    for number in range(_DECISIONS + _WARM_UP):
        world.measure(tuple(_SPECS)[number % len(_SPECS)])
        world.pass_time()
        size_bytes = world.size_bytes()
        cpu_ns, wall_ns = time.thread_time_ns(), time.perf_counter_ns()
        choose(size_bytes)
        wall_us.append((time.perf_counter_ns() - wall_ns) / 1e3)
        cpu_us.append((time.thread_time_ns() - cpu_ns) / 1e3)
    return sorted(wall_us[_WARM_UP:]), sorted(cpu_us[_WARM_UP:])


def _percentiles(suffix: str, timed: tuple[list[float], list[float]]) -> dict[str, float]:
    wall_us, cpu_us = timed
    return {
        f"p50{suffix}_us": _percentile(wall_us, 0.50),
        f"p99{suffix}_us": _percentile(wall_us, 0.99),
        f"cpu_p99{suffix}_us": _percentile(cpu_us, 0.99),
    }


def _kept_us() -> float:
    world = _World()
    ways = _ways(50_000.0)
    wall_us = []
    for _ in range(_DECISIONS):
        began_ns = time.perf_counter_ns()
        world.knows.choose(ways, _OBJECTIVE, world.now_s)
        wall_us.append((time.perf_counter_ns() - began_ns) / 1e3)
    return _percentile(sorted(wall_us), 0.50)


def _enumeration_ratio() -> float:
    """Meatballs' weighted sum over the joint distribution, against ours on the same few errors."""
    dice = random.Random(3)
    seen = [[dice.lognormvariate(0.0, 0.5) for _ in range(_FEW_SAMPLES)] for _ in range(4)]
    size_bits = 8.0 * 50_000.0
    begun_ns = time.thread_time_ns()
    for _ in range(20):
        a = summed(0.0, [[size_bits / (20e6 * e) for e in seen[0]], [0.03 * e for e in seen[1]]])
        b = summed(0.0, [[size_bits / (8e6 * e) for e in seen[2]], [0.06 * e for e in seen[3]]])
        ours_s = mean_of_first([a, b])
    ours_ns = (time.thread_time_ns() - begun_ns) / 20
    begun_ns = time.thread_time_ns()
    total = 0.0
    for w in seen[0]:
        for x in seen[1]:
            for y in seen[2]:
                for z in seen[3]:
                    total += min(
                        size_bits / (20e6 * w) + 0.03 * x, size_bits / (8e6 * y) + 0.06 * z
                    )
    enumerated_ns = time.thread_time_ns() - begun_ns
    assert math.isclose(total / _FEW_SAMPLES**4, ours_s, rel_tol=1e-9)
    return enumerated_ns / ours_ns


def _percentile(ascending: Sequence[float], share: float) -> float:
    return ascending[min(math.ceil(share * len(ascending)) - 1, len(ascending) - 1)]
