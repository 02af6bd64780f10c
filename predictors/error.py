"""How wrong predictions are: relative errors, kept as distributions around the predicted point.

Meatballs (dissertation, 4.3.1) keeps for each predictor the distribution of measured over predicted
values. Here it starts from errors at places that were held out of training, by kind of situation:
a shallow tree over the same inputs tells situations of small error from those of large error, and
each has its own distribution. Errors that the daemon sees later are added to it with a weight that
fades, newest first.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from math import exp, log

SAMPLES = 10
"""Samples of a relative-error distribution: the first and the last bound its 90 % interval.

Rarer errors than these cannot be told from the few dozen rows of a situation, and would rule the
mean: with 20 samples the choice by expected time came out worse (regret 0.077 instead of 0.068, with
30 bagged trees)."""

FADING = 0.97
"""A seen error weighs this much of the next newer one: 33 errors count in all."""

KNOWN = 60
"""How many seen errors the held-out distribution is worth."""

_SEEN_AT_MOST = 150


def middles(weighted: Iterable[tuple[float, float]], count: int = SAMPLES) -> list[float]:
    """The middles of `count` equal slices of a weighted sample: its quantiles (k + 0.5) / count.

    Between values on a straight line, each value standing at the middle of its own weight.

    Args:
        weighted: at least one value with its weight (positive), in any order.
        count: how many are wanted.
    """
    ascending = sorted(weighted)
    total = sum([weight for _, weight in ascending])
    at, reached = [], 0.0
    for _, weight in ascending:
        at.append((reached + 0.5 * weight) / total)
        reached += weight
    found = []
    for k in range(count):
        level = (k + 0.5) / count
        above = bisect_left(at, level)
        if above in {0, len(at)}:
            found.append(ascending[min(above, len(at) - 1)][0])
        else:
            low, high = ascending[above - 1][0], ascending[above][0]
            share = (level - at[above - 1]) / (at[above] - at[above - 1])
            found.append(low + share * (high - low))
    return found


def redistributed(values: Sequence[float], censored: Sequence[bool]) -> list[float]:
    """Weights under which censored values count as what larger ones show them to have been.

    Efron's redistribution to the right: going up, the weight of a censored value is shared out among
    all above it. Where none is above, it stays: the largest error seen is taken for what it was.

    Args:
        values: relative errors, in any order.
        censored: whether the true one is known to be at least this.

    Returns:
        Weights that sum to the number of values; 0 for those shared out.
    """
    order = sorted(range(len(values)), key=lambda index: (values[index], censored[index]))
    weights = [1.0] * len(values)
    share = 1.0
    for rank, index in enumerate(order):
        above = len(order) - rank - 1
        weights[index] = share
        if censored[index] and above:
            weights[index] = 0.0
            share += share / above
    return weights


def spread(ratios: Sequence[float], factor: float) -> tuple[float, ...]:
    """Makes a distribution of ratios wider, or with a factor below 1 narrower, around its median.

    An old measurement is a more uncertain one: this is where the age of the indicators enters.

    Args:
        ratios: ascending, positive.
        factor: multiplies the distances from the median on a logarithmic scale.
    """
    half = len(ratios) // 2
    middle = ratios[half] if len(ratios) % 2 else 0.5 * (ratios[half - 1] + ratios[half])
    return tuple([middle * (ratio / middle) ** factor for ratio in ratios])


class SeenErrors:
    """Errors of the predictions made here, for one strategy: the newest weigh most."""

    def __init__(self) -> None:
        self._ratios: deque[float] = deque(maxlen=_SEEN_AT_MOST)

    def __len__(self) -> int:
        return len(self._ratios)

    def add(self, ratio: float) -> None:
        """Adds measured over predicted (positive)."""
        self._ratios.append(ratio)

    def blended(self, held_out: Sequence[float]) -> tuple[float, ...]:
        """The held-out distribution of ratios as the errors seen here change it; ascending."""
        if not self._ratios:
            return tuple(held_out)
        weighted = [(log(ratio), KNOWN / len(held_out)) for ratio in held_out]
        weighted += [(log(ratio), FADING**age) for age, ratio in enumerate(reversed(self._ratios))]
        return tuple([exp(each) for each in middles(weighted, len(held_out))])
