"""Sets of equally likely times: sums, rests and minima, exactly; and their summary.

Two ways of 50 x 50 combinations of errors each have 6.25 million joint outcomes. None is
enumerated: a way alone is a sorted list of 2,500 times, and the first of two is the product of
their survival functions. Its integral follows from the mean differences within and between the
lists (Gini's), each a weighted sum over a sorted list.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from math import exp, floor, isfinite, log, prod
from statistics import NormalDist
from typing import Final, NamedTuple, Protocol

from predictors.base import Distribution

# The quantiles of the interval in decision records: the middle 90 %.
_LOW, _HIGH = 0.05, 0.95
# The factor by which intervals are wider than held-out errors say, in logarithms. A daemon knows
# less of a moment than its training data do (docs/decisions/live-contexts.md).
_WIDENING = 1.3
# The width of the interval of a normal logarithm, in standard deviations.
INTERVAL_SIGMAS: Final = _WIDENING * (NormalDist().inv_cdf(_HIGH) - NormalDist().inv_cdf(_LOW))

# The most seconds multiplied at once. A longer product could leave the range of numbers.
_SORTED_AT_ONCE = 20


class CompletionModel(Protocol):
    """A predictor of completion times: columns of a data set in, a distribution per strategy out."""

    @property
    def features(self) -> Sequence[str]: ...

    def predict(self, features: Mapping[str, float], /) -> Mapping[str, Distribution]: ...


class Spread(NamedTuple):
    """A completion time in short, in seconds: expected value, 90 % interval, geometric mean.

    The geometric mean is the value to rank by where ratios count (Delphi's objectives, regret): the
    expected time of a network that is probably well, and may hang, is ruled by the rare case.
    """

    mean_s: float
    low_s: float
    high_s: float
    usual_s: float


def spread_of(distribution: Distribution) -> Spread:
    samples = distribution.samples
    count = len(samples)
    # For few samples one product is a third of the work of their logarithms.
    if count <= _SORTED_AT_ONCE:
        usual_s = prod(samples) ** (1.0 / count)
    else:
        usual_s = exp(sum([log(sample) for sample in samples]) / count)
    return Spread(sum(samples) / count, *interval_of(distribution), usual_s)


def interval_of(distribution: Distribution) -> tuple[float, float]:
    """Return the interval of nine in ten live transfers, s; means and choices do not depend on it."""
    samples = distribution.samples
    # As `Distribution.quantile`, with the places of each count of samples known.
    low, median, high = [
        samples[below] if not share else samples[below] + share * (samples[above] - samples[below])
        for below, above, share in _places(len(samples))
    ]
    return median * (low / median) ** _WIDENING, median * (high / median) ** _WIDENING


@lru_cache(maxsize=64)
def _places(count: int) -> tuple[tuple[int, int, float], ...]:
    """Return for the three quantiles the samples before and after, and the share of the way."""
    # The place of a quantile among equally likely samples, each in the middle of its slice.
    places = []
    for q in (_LOW, 0.5, _HIGH):
        position = min(max(q * count - 0.5, 0.0), count - 1.0)
        below = floor(position)
        places.append((below, min(below + 1, count - 1), position - below))
    return tuple(places)


# Longer lists are gathered into equal slices before another quantity is added. Means stay exact.
MOST = 2500

_HALVINGS = 60
# The precision of quantiles that people read.
_EXACT = 1e-4
_FEW = 250


def sums_of(
    fixed_s: float,  # added to each
    parts: Sequence[Sequence[float]],  # equally likely seconds, independent of one another
) -> list[float]:
    """Return all sums of one value of each part, ascending; empty if a value is no number."""
    if not all(isfinite(sum(part)) for part in parts) or not isfinite(fixed_s):
        return []
    times = [fixed_s]
    for part in parts:
        # Bound the list: gather what there is into fewer slices before the next part multiplies it.
        if len(times) * len(part) > MOST and len(times) > 1:
            times.sort()
            times = gather(times, max(MOST // len(part), 1))
        ordered = sorted(part)
        # Ascending runs: sorting merges them, which is a fifth of the work of sorting anew.
        times = [time + each for time in times for each in ordered]
    times.sort()
    return times if times and times[0] >= 0.0 and isfinite(times[-1]) else []


def gather(ascending: Sequence[float], count: int) -> list[float]:
    """Return a list in at most `count` equal slices, each as its mean; the mean of all is kept."""
    size = len(ascending)
    if size <= count:
        return list(ascending)
    each, more = divmod(size, count)
    if not more:
        return [sum(ascending[k : k + each]) / each for k in range(0, size, each)]
    # Slices that end between two values have a share of both.
    sums = [0.0]
    for value in ascending:
        sums.append(sums[-1] + value)
    found, before = [], 0.0
    for k in range(1, count + 1):
        whole, share = divmod(k * size, count)
        reached = sums[whole] + (ascending[whole] * share / count if share else 0.0)
        found.append((reached - before) * count / size)
        before = reached
    return found


def remaining(times: Sequence[float], elapsed_s: float) -> list[float]:
    """Return the rests of times of which `elapsed_s` have passed (dissertation, 4.3.4).

    If that exceeds all of them, the rest is as long again: a silence longer than any before gives
    no reason to believe that it ends now.
    """
    if elapsed_s <= 0.0:
        return list(times)
    above = Distribution(tuple(times)).known_above(elapsed_s).samples
    return [time - elapsed_s for time in above]


def interrupt(
    times: list[float],  # without interruption, ascending
    lasting: Distribution,  # for how long it can go on, s; independent of the times
    detour_s: float,  # what is lost then
) -> list[float]:
    """Return the times of an activity that a contact's end can interrupt, with the detour then."""
    # Fast path: the contact surely lasts longer than the longest time.
    if lasting.samples[0] >= times[-1]:
        return times
    few = gather(times, _FEW)
    found: list[float] = []
    # Of each possible end of the contact: times up to it stay, longer ones are cut off by the detour.
    for end_s in lasting.samples:
        whole = bisect_right(few, end_s)
        found += few[:whole]
        found += [end_s + detour_s] * (len(few) - whole)
    found.sort()
    return gather(found, len(few))


def cut_off(time_s: float, lasting: Distribution, detour_s: float) -> float:
    """Return the expected time of an activity of `time_s`, interrupted as in `interrupt`."""
    ends = lasting.samples
    return sum([time_s if time_s <= end_s else end_s + detour_s for end_s in ends]) / len(ends)


def _differences(ascending: Sequence[float], total: float) -> float:
    """Return the sum of the differences of all pairs of a list with this total, by ranks.

    The k-th smallest of n values is subtracted n - k times and added k - 1 times.
    """
    return (len(ascending) + 1.0) * total - 2.0 * sum(accumulate(ascending))


def mean(times: Sequence[float]) -> float:
    return sum(times) / len(times)


def mean_of_first(lists: Sequence[Sequence[float]]) -> float:
    """Return the expected minimum of one independent time of each list.

    For two: min(x, y) = (x + y - |x - y|) / 2, and the differences between two lists are those of both
    together without those within each; only where the lists overlap are there any to be looked at. For
    more, the integral of the product is walked.

    Args:
        lists: ascending, not empty.
    """
    first, last = lists[0], lists[-1]
    if len(lists) > 2:
        return _walk(lists)
    if len(lists) == 1 or first[-1] <= last[0]:
        return mean(first)
    if last[-1] <= first[0]:
        return mean(last)
    # Only values in the overlap of the two lists can be first or second. An earlier one is the minimum
    # with each value of the other list; a later one never is.
    low, high = max(first[0], last[0]), min(first[-1], last[-1])
    below, among = bisect_left(first, low), bisect_right(first, high)
    under, within = bisect_left(last, low), bisect_right(last, high)
    total = len(last) * sum(first[:below]) + len(first) * sum(last[:under])
    a, b = first[below:among], last[under:within]
    both = [*a, *b]
    both.sort()
    of_a, of_b = sum(a), sum(b)
    total += (len(first) - among) * of_b + (len(last) - within) * of_a
    between = _differences(both, of_a + of_b) - _differences(a, of_a) - _differences(b, of_b)
    total += 0.5 * (len(b) * of_a + len(a) * of_b - between)
    return total / (len(first) * len(last))


def _walk(lists: Sequence[Sequence[float]]) -> float:
    # The expected minimum is the area under the product of the survival functions, walked from one
    # value to the next. `left` counts the values of each list that are still to come.
    left = [len(each) for each in lists]
    ends = sorted([(value, k) for k, each in enumerate(lists) for value in each])
    expected = before = ends[0][0]
    for value, k in ends:
        survival = prod([count / len(each) for count, each in zip(left, lists, strict=True)])
        expected += (value - before) * survival
        before = value
        left[k] -= 1
    return expected


def survival_of_first(lists: Sequence[Sequence[float]]) -> Callable[[float], float]:
    """Return the survival function of the minimum: the product of those of the parts."""

    def survival(time_s: float) -> float:
        product = 1.0
        for each in lists:
            product *= 1.0 - bisect_right(each, time_s) / len(each)
        return product

    return survival


def quantile(survival: Callable[[float], float], q: float, low: float, high: float) -> float:
    """Return the time not exceeded with probability `q`, between bounds of all times."""
    for _ in range(_HALVINGS):
        if high - low <= _EXACT * high:
            break
        middle = 0.5 * (low + high)
        if 1.0 - survival(middle) >= q:
            high = middle
        else:
            low = middle
    return high
