"""Errors of predictions: relative errors, kept as distributions around the predicted point.

Meatballs (dissertation, 4.3.1) keeps for each predictor the distribution of measured over predicted
values. Here that distribution starts from errors at places that were held out of training, or from a
prior if the predictor was never trained. `ErrorHistory` adds later errors, and soon outweighs a prior.
The older an error, the less it weighs. While nothing is measured, the distribution widens (an open
question of the dissertation, 6.4.3).
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from math import exp, isfinite, log
from operator import itemgetter
from statistics import NormalDist

from predictors.base import Distribution

# Samples of a relative-error distribution: the first and the last bound its 90 % interval.
SAMPLES = 10

# The weight of an observed error relative to the next newer one: 33 errors count in all.
FADING = 0.97

# Equally likely values of an `ErrorHistory`'s distribution.
SLICES = 50

# The most errors kept. Older ones weigh less than a twentieth of the newest.
_KEPT = 100

# The weight of the prior's spread, counted in observed errors.
SPREAD_OF_PRIOR = 10.0

# A larger ratio of measurement and prediction means that one of the two is wrong.
_LARGEST = 1e6

# Ages are rounded to steps of a tenth, so that one distribution serves several decisions.
_AGE_STEP = 0.1
_OLDEST_S = 1e6
# A smaller variance that age adds is left out: beside errors of a fifth and more it changes nothing.
_LEAST_ADDED = 0.01


def middles(weighted: Iterable[tuple[float, float]], count: int = SAMPLES) -> list[float]:
    """Return the middles of `count` equal slices of a weighted sample: quantiles (k + 0.5) / count.

    Each value stands at the middle of its own weight; between two values the quantile is interpolated.

    `weighted`: at least one value with its weight (positive), in any order.
    """
    # Each value stands at the middle of its own weight.
    ascending = sorted(weighted)
    total = sum([weight for _, weight in ascending])
    at, reached = [], 0.0
    for _, weight in ascending:
        at.append((reached + 0.5 * weight) / total)
        reached += weight
    found = []
    for k in range(count):
        level = (k + 0.5) / count
        # Interpolate between the two values around the level; beyond the ends there is nothing.
        above = bisect_left(at, level)
        if above in {0, len(at)}:
            found.append(ascending[min(above, len(at) - 1)][0])
        else:
            low, high = ascending[above - 1][0], ascending[above][0]
            share = (level - at[above - 1]) / (at[above] - at[above - 1])
            found.append(low + share * (high - low))
    return found


def weigh_censored(values: Sequence[float], censored: Sequence[bool]) -> list[float]:
    """Return weights of values, some of which are censored: known only to be at least so large.

    Efron's redistribution to the right: from the smallest value upwards, the weight of a censored value
    is divided among all larger ones. The largest value keeps its weight, even if it is censored.

    Args:
        values: relative errors, in any order.
        censored: whether the true one is known to be at least this.

    Returns:
        Weights that sum to the number of values; 0 for those shared out.
    """
    # Going up, a censored value passes its weight on to all values above it.
    order = sorted(range(len(values)), key=lambda index: (values[index], censored[index]))
    weights = [1.0] * len(values)
    share = 1.0
    for rank, index in enumerate(order):
        # `share` is the weight of each value from here up: the rest of a censored value is added to it.
        above = len(order) - rank - 1
        weights[index] = share
        if censored[index] and above:
            weights[index] = 0.0
            share += share / above
    return weights


def slice_means(weighted: Iterable[tuple[float, float]], count: int) -> tuple[float, ...]:
    """Return `count` equal slices of a weighted sample by their exact means, ascending.

    Unlike `middles` it does not interpolate between two values.

    `weighted`: at least one value with its weight (positive), in any order.
    """
    ascending = sorted(weighted, key=itemgetter(0))
    room = sum([weight for _, weight in ascending]) / count
    found: list[float] = []
    left, gathered = room, 0.0
    for value, weight in ascending:
        # A heavy value fills several slices.
        while weight >= left and len(found) < count - 1:
            # A slice of one value is that value, without rounding.
            found.append((gathered + left * value) / room if gathered else value)
            weight -= left  # noqa: PLW2901  (what is left of it)
            left, gathered = room, 0.0
        gathered += weight * value
        left -= weight
    # What rounding left over belongs to the last slice.
    found.append(gathered / (room - left) if left < room else ascending[-1][0])
    found.sort()
    return tuple(found)


def lognormal(sigma: float, count: int = SLICES) -> Distribution:
    """Return ratios around 1 whose logarithms are normal, as the middles of equal slices."""
    normal = NormalDist(0.0, sigma)
    return Distribution(tuple([exp(normal.inv_cdf((k + 0.5) / count)) for k in range(count)]))


# The distribution before the first error: within a factor of 2.3 in nine of ten cases.
PRIOR = lognormal(0.5)


def growth(age_s: float) -> float:
    """Return the variance that age adds to an error's logarithm: how rates wander on cellular networks.

    Measured on the traces of 38 places: rates differ from the place's usual rate with a variance of 0.93
    (on Wi-Fi 3.1), and return to it with a time constant of about 10 s (docs/decisions/old-rates.md).
    """
    return 0.93 * (1.0 - exp(-0.2 * max(age_s, 0.0)))


def steady(age_s: float) -> float:
    """Return no variance for any age, for a quantity that does not change with time."""
    return 0.0


class ErrorHistory:
    """The errors of one quantity's predictions: measured over predicted, newest first.

    An error contains the effect of the age that its prediction had. So a prediction widens the
    distribution only by the part of its age beyond the usual age of the errors.
    """

    def __init__(
        self,
        *,
        # The expected ratios before any was seen; None: the predictor is trusted until then.
        prior: Distribution | None = PRIOR,
        # The weight of the prior in seen errors; it counts less as errors add up.
        worth: float = 2.0,
        # The weight of an error relative to the next newer one; 1: all have the same weight.
        fading: float = FADING,
        # Returns what the age of a prediction in seconds adds to the variance of the ratio's
        # logarithm.
        growth: Callable[[float], float] = growth,
    ) -> None:
        self._prior, self._worth = prior, worth
        self._fading, self._growth = fading, growth
        self._ratios: deque[float] = deque(maxlen=_KEPT)
        self._grown: deque[float] = deque(maxlen=_KEPT)
        self._weights = tuple([fading ** (_KEPT - 1 - k) for k in range(_KEPT)])
        self._usual = 0.0
        self._last_at_s: float | None = None
        self._fresh: Distribution | None = None
        self._wide: tuple[float, Distribution] | None = None
        self.version = 0

    def __len__(self) -> int:
        return len(self._ratios)

    @property
    def ratios(self) -> tuple[float, ...]:
        """The errors seen since the last reset, oldest first."""
        return tuple(self._ratios)

    @property
    def weights(self) -> tuple[float, ...]:
        """The weights of `ratios`, the newest 1."""
        return self._weights[_KEPT - len(self._ratios) :]

    @property
    def worth(self) -> float:
        """The number of equally heavy errors behind the spread; a prior counts like ten."""
        squares = sum([weight * weight for weight in self.weights])
        seen = sum(self.weights) ** 2 / squares if squares else 0.0
        return max(seen, SPREAD_OF_PRIOR) if self._prior is not None else seen

    def add(self, measured: float, predicted: float, at_s: float) -> bool:
        """Record the measured value of a prediction; return False if it teaches nothing.

        `measured`: the quantity's value, positive.
        `at_s`: when it was measured, by any clock.
        """
        if not (isfinite(measured) and isfinite(predicted) and measured > 0.0 < predicted):
            return False
        ratio = measured / predicted
        if not 1.0 / _LARGEST <= ratio <= _LARGEST:
            return False
        self._ratios.append(ratio)
        self._grown.append(self._growth(self._age_s(at_s)))
        self.refresh(at_s)
        return True

    def refresh(self, at_s: float) -> None:
        """Record that the prediction is as new as this instant: its error is that of a fresh one."""
        if isfinite(at_s):
            self._last_at_s = at_s if self._last_at_s is None else max(at_s, self._last_at_s)
        self._on_change()

    def reset(self, at_s: float) -> None:
        """Forget the errors, as behind a new access point, and return to the prior."""
        self._ratios.clear()
        self._grown.clear()
        self._last_at_s = None
        self.refresh(at_s)

    def distribution(self, now_s: float) -> Distribution:
        """Return equally likely ratios of the measured over the predicted value, ascending."""
        # Ages of the same step share one distribution.
        step = round(log(1.0 + self._age_s(now_s)) / _AGE_STEP)
        if self._wide is None or self._wide[0] != step:
            added = self._variance_of_age(exp(step * _AGE_STEP) - 1.0)
            assert self._fresh is not None
            wide = widen(self._fresh, added) if added > _LEAST_ADDED else self._fresh
            self._wide = (step, wide)
        return self._wide[1]

    def added_variance(self, now_s: float) -> float:
        """Return the variance that the prediction's age adds to the one in its errors already."""
        return self._variance_of_age(self._age_s(now_s))

    def _variance_of_age(self, age_s: float) -> float:
        if self._fresh is None:
            weights = self.weights
            # Seen errors contain the ages that their predictions had: only a larger age adds variance.
            grown = sum([weight * each for weight, each in zip(weights, self._grown, strict=True)])
            total = sum(weights) + (self._worth if self._prior is not None else 0.0)
            self._usual = grown / total if total else 0.0
            self._fresh = Distribution(self._blend())
        return max(self._growth(age_s) - self._usual, 0.0)

    def _age_s(self, now_s: float) -> float:
        """Return the age of the prediction; 0 if an instant is unknown."""
        if self._last_at_s is None or not now_s > self._last_at_s:
            return 0.0
        return min(now_s - self._last_at_s, _OLDEST_S)

    def _on_change(self) -> None:
        self.version += 1
        self._fresh = self._wide = None

    def _blend(self) -> tuple[float, ...]:
        if not self._ratios and self._prior is not None:
            return self._prior.samples
        weighted = list(zip(self._ratios, self.weights, strict=True))
        # The prior fades beside the seen errors, as its weight stays while theirs adds up.
        if self._prior is not None and self._worth > 0.0:
            share = self._worth / len(self._prior.samples)
            weighted += [(ratio, share) for ratio in self._prior.samples]
        elif self._fading == 1.0 and len(weighted) <= SLICES:
            return tuple(sorted(self._ratios)) or (1.0,)
        return slice_means(weighted, SLICES) if weighted else (1.0,)


_NORMAL = lognormal(1.0, 7).samples


def widen(ratios: Distribution, variance: float) -> Distribution:
    """Return ratios times an independent lognormal of median 1: variances of logarithms add up.

    Unlike `spread` it widens a distribution of a single value, too.
    """
    scale, count = variance**0.5, len(_NORMAL)
    # Ascending runs, which sorting merges.
    every = [ratio * step for step in [each**scale for each in _NORMAL] for ratio in ratios.samples]
    every.sort()
    return Distribution(
        tuple([sum(every[k : k + count]) / count for k in range(0, len(every), count)])
    )
