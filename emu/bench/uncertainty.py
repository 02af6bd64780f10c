"""The time of a decision that weighs all the errors of its predictors, by brute force.

What is timed is the daemon's own decision, with two networks whose predictors have 50 errors of the
bandwidth and 50 of the latency each: 6.25 million joint outcomes. Before each decision an exchange over
one of the networks is measured, so that no decision can be kept; transfers are of all sizes, and seconds
pass between them.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence

from cedos.model import (
    Context,
    Decision,
    Network,
    NetworkKind,
    SizeEstimate,
    StrategyKind,
    Transfer,
)
from cedos.selector.decision.case import Case
from cedos.selector.decision.decide import decide
from cedos.selector.objective import WeightedCost
from emu.bench import timed
from predictors.base import Distribution
from predictors.error import SLICES
from predictors.network import TIME, NetworkPredictor

_DECISIONS = 5_000
# Latency in s, bandwidth in bit/s, and the standard deviation of both's logarithms.
_SPECS = {"wifi": (0.03, 20e6, 0.6), "cellular": (0.06, 8e6, 0.3)}

_NETWORKS = (
    Network("wlan0", "wlan0", 3, NetworkKind.WIFI, metered=False),
    Network("lte0", "lte0", 4, NetworkKind.CELLULAR, metered=True),
)
_HEDGED = frozenset({StrategyKind.SINGLE, StrategyKind.REDUNDANT})
_OBJECTIVE = WeightedCost(s_per_j=0.01, s_per_metered_byte=1e-6)


def run(progress: Callable[[str], None]) -> dict[str, float]:
    """Time decisions: `p50_us`, `p99_us`, `cpu_p99_us`, and `samples` of each quantity."""
    progress(f"{_DECISIONS} decisions")
    world = _World()

    def decision(number: int) -> Callable[[], Decision]:
        world.measure(tuple(_SPECS)[number % len(_SPECS)])
        world.pass_time()
        size = int(world.size_bytes())
        transfer = Transfer(SizeEstimate(size, size, size, "hint"))
        context = Context(world.now_s, {})
        case = Case(transfer, context, _NETWORKS, world, _OBJECTIVE, kinds=_HEDGED)
        return lambda: decide(case)

    return timed("", decision, _DECISIONS) | {"samples": float(SLICES)}


class _World:
    """Networks that are as they are, give or take chance; time passes. A `CompletionModel` of them."""

    features: Sequence[str] = ("size_bytes",)

    def __init__(self) -> None:
        self.dice = random.Random(7)
        self.now_s = 0.0
        self._predictors = {name: NetworkPredictor(name) for name in _SPECS}
        for _ in range(2 * SLICES):
            for name in _SPECS:
                self.measure(name)

    def measure(self, name: str) -> None:
        latency_s, rate_bps, sigma = _SPECS[name]
        predictor = self._predictors[name]
        self.now_s += self.dice.expovariate(0.2)
        predictor.observe_rtt(latency_s * self.dice.lognormvariate(0.0, sigma), self.now_s)
        predictor.observe_rate(rate_bps * self.dice.lognormvariate(0.0, sigma), self.now_s)

    def pass_time(self) -> None:
        """Let seconds pass in which nothing is measured."""
        self.now_s += self.dice.expovariate(0.1)

    def size_bytes(self) -> float:
        """From 1 KB to 10 MB, small ones as often as large ones."""
        return float(round(math.exp(self.dice.uniform(math.log(1e3), math.log(1e7)))))

    def predict(self, features: Mapping[str, float], /) -> Mapping[str, Distribution]:
        """Return the times of exchanges over each network."""
        columns = {"size_bytes": features["size_bytes"], "at_s": self.now_s}
        return {name: each.predict(columns)[TIME] for name, each in self._predictors.items()}
