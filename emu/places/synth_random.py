"""Seeded random processes that synthetic places are drawn from, one value per second.

Python's own generator is used throughout, whose sequence for a seed is the same in every release:
a synthetic place can be made again years later.
"""

import itertools
import math
import random
from collections.abc import Sequence

Mixture = Sequence[tuple[float, float]]
"""Shares of the variance, with the time constant in seconds of each; the shares sum to 1."""


def autoregressive(rng: random.Random, count: int, tau_s: float) -> list[float]:
    """A stationary first-order process: mean 0, variance 1, autocorrelation exp(-k / tau_s)."""
    keep = math.exp(-1.0 / tau_s)
    fresh = math.sqrt(1.0 - keep * keep)
    value = rng.gauss(0.0, 1.0)
    values = []
    for _ in range(count):
        values.append(value)
        value = keep * value + fresh * rng.gauss(0.0, 1.0)
    return values


def mixture(rng: random.Random, count: int, parts: Mixture) -> list[float]:
    """A sum of independent first-order processes: mean 0, variance 1.

    Its autocorrelation after k seconds is the sum of share * exp(-k / tau_s).
    """
    total = [0.0] * count
    for share, tau_s in parts:
        for second, value in enumerate(autoregressive(rng, count, tau_s)):
            total[second] += math.sqrt(share) * value
    return total


def blend(weight: float, first: Sequence[float], second: Sequence[float]) -> list[float]:
    """The sum weight * first + sqrt(1 - weight^2) * second, which keeps a variance of 1."""
    rest = math.sqrt(1.0 - weight * weight)
    return [weight * one + rest * other for one, other in zip(first, second, strict=True)]


def standardized(values: Sequence[float]) -> list[float]:
    mean = math.fsum(values) / len(values)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
    return [(value - mean) / spread if spread > 1e-9 else 0.0 for value in values]


def interpolated(points: Sequence[tuple[float, float]], at: float) -> float:
    """Linear interpolation in a table of (x, y) with increasing x, constant beyond its ends."""
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if at < x1:
            return y0 + (y1 - y0) * max(0.0, at - x0) / (x1 - x0)
    return points[-1][1]


def geometric(rng: random.Random, mean: float) -> int:
    """A whole number from 1 on, geometrically distributed around `mean` (at least 1)."""
    if mean <= 1.0:
        return 1
    return 1 + int(math.log(1.0 - rng.random()) / math.log(1.0 - 1.0 / mean))
