"""How long a decision takes that weighs all the errors of its predictors.

Two networks, each with a bandwidth and a latency of 50 errors: 6.25 million joint outcomes. Before each
decision an exchange over one of the networks is measured (and its errors are gathered, which no
decision waits for), so that no decision can be kept; transfers are of all sizes, and seconds pass
between them. Wall-clock percentiles are what a transfer waits; on a shared machine the 99th belongs to
the neighbours, so the processor's time stands beside it.
"""

import gc
import math
import random
import time
from collections.abc import Callable, Sequence

from cedos.selector.uncertainty.evaluator import Evaluator
from cedos.selector.uncertainty.methods import METHODS, evaluator
from cedos.selector.uncertainty.times import mean_of_first, summed
from cedos.selector.uncertainty.ways import Redundant, Way, Weights, network_terms
from predictors.error import SLICES
from predictors.network import NetworkPredictor

NAME = "uncertainty"

_DECISIONS = 5_000
_WARM_UP = 300
_FEW_SAMPLES = 7
_NETWORKS = {"wifi": (0.03, 20e6, 0.6), "cellular": (0.06, 8e6, 0.3)}
"""Latency in s, bandwidth in bit/s, and the standard deviation of both's logarithms."""

_WEIGHTS = Weights(s_per_j=0.01, s_per_metered_byte=1e-6)
_BOTH = Redundant("both", tuple(_NETWORKS))


def run(progress: Callable[[str], None]) -> dict[str, float]:
    """Times decisions by every method.

    Returns:
        `p50_us`, `p99_us` (brute force, nothing kept from decision to decision), `cpu_p99_us`,
        `p50_kept_us` (asked again without news), the same percentiles of the other methods with their
        names, `samples` of each quantity, and `enumeration_ratio`: how many times longer going through
        all joint outcomes takes, where there are few enough of them (7 errors each).
    """
    figures: dict[str, float] = {"samples": float(SLICES)}
    assert gc.isenabled()
    for method in METHODS:
        progress(f"{_DECISIONS} decisions ({method})")
        wall_us, cpu_us = _timed(method)
        suffix = "" if method == METHODS[0] else f"_{method.replace('-', '_')}"
        figures[f"p50{suffix}_us"] = _percentile(wall_us, 0.50)
        figures[f"p99{suffix}_us"] = _percentile(wall_us, 0.99)
        figures[f"cpu_p99{suffix}_us"] = _percentile(cpu_us, 0.99)
    figures["p50_kept_us"] = _kept_us()
    progress("going through all joint outcomes")
    figures["enumeration_ratio"] = _enumeration_ratio()
    return figures


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


class _World:
    """Networks that are as they are, give or take chance; time passes."""

    def __init__(self, knows: Evaluator) -> None:
        self.dice = random.Random(7)
        self.knows = knows
        self.now_s = 0.0
        self.predictors = {name: NetworkPredictor(name) for name in _NETWORKS}
        for _ in range(2 * SLICES):
            for name in _NETWORKS:
                self.measure(name)

    def measure(self, name: str) -> None:
        """An exchange that tells of both quantities."""
        latency_s, rate_bps, sigma = _NETWORKS[name]
        predictor = self.predictors[name]
        self.now_s += self.dice.expovariate(0.2)
        draw = self.dice.lognormvariate
        self.knows.learn(predictor.observe_rtt(latency_s * draw(0.0, sigma), self.now_s))
        self.knows.learn(predictor.observe_rate(rate_bps * draw(0.0, sigma), self.now_s))

    def size_bytes(self) -> float:
        """From 1 KB to 10 MB, small ones as often as large ones."""
        return float(round(math.exp(self.dice.uniform(math.log(1e3), math.log(1e7)))))


def _timed(method: str) -> tuple[list[float], list[float]]:
    """Wall-clock and CPU microseconds of every decision, ascending."""
    world = _World(evaluator(method))
    wall_us, cpu_us = [], []
    for number in range(_DECISIONS + _WARM_UP):
        world.measure(tuple(_NETWORKS)[number % len(_NETWORKS)])
        size_bytes, now_s = world.size_bytes(), world.now_s + world.dice.expovariate(0.1)
        cpu_ns, wall_ns = time.thread_time_ns(), time.perf_counter_ns()
        world.knows.choose(_ways(size_bytes), _WEIGHTS, now_s)
        wall_us.append((time.perf_counter_ns() - wall_ns) / 1e3)
        cpu_us.append((time.thread_time_ns() - cpu_ns) / 1e3)
    return sorted(wall_us[_WARM_UP:]), sorted(cpu_us[_WARM_UP:])


def _kept_us() -> float:
    world = _World(evaluator())
    ways = _ways(50_000.0)
    wall_us = []
    for _ in range(_DECISIONS):
        began_ns = time.perf_counter_ns()
        world.knows.choose(ways, _WEIGHTS, world.now_s)
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
