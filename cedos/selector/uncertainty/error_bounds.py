"""Error bounds: a prediction interval in place of a distribution (dissertation, 4.3.2).

The next error lies within the interval with 95 %, by Student's t over the past errors. As in the
authors' implementation the interval is one of logarithms, since ratios are positive. Hedging is
worth it if the most that it can save exceeds the least that it can cost, which the paper calls
generous to hedging.

The length of a contact is a distribution and not an error, so it has no bounds: its end counts by
its probability, as in the authors' implementation. Student's t is computed here, without scipy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import exp, inf, isfinite, lgamma, log, sqrt
from typing import ClassVar, NamedTuple

from cedos.selector.objective import Objective, Outcome
from cedos.selector.uncertainty.evaluator import (
    Evaluator,
    Judged,
    Known,
    Redundant,
    Running,
    Way,
    judge,
    time_of,
    unknown,
    use_left,
)
from cedos.selector.uncertainty.times import cut_off

_HALVINGS = 200
_TERMS = 400


def cdf(t: float, freedom: float) -> float:
    """Return the probability of at most `t` with `freedom` degrees of freedom.

    `freedom` is positive and need not be an integer.
    """
    # Half of the two-sided tail, by the relation of Student's t to the incomplete beta function.
    x = freedom / (freedom + t * t)
    tail = 0.5 * _incomplete_beta(0.5 * freedom, 0.5, x)
    return 1.0 - tail if t > 0.0 else tail


@lru_cache(maxsize=1024)
def quantile(q: float, freedom: float) -> float:
    """Return the value not exceeded with probability `q`.

    Args:
        q: 0 to 1, both excluded.
        freedom: degrees of freedom, positive.

    Raises:
        ValueError: outside of these.
    """
    if not (0.0 < q < 1.0 and 0.0 < freedom < inf):
        raise ValueError(f"no quantile {q} of Student's t with {freedom} degrees of freedom")
    if q < 0.5:
        return -quantile(1.0 - q, freedom)
    if q == 0.5:
        return 0.0

    # Double the bound until it holds the quantile, then bisect down to the last bit of a float.
    low, high = 0.0, 1.0
    while cdf(high, freedom) < q and high < 1e150:
        low, high = high, high * 2.0
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        if middle in {low, high}:
            break
        if cdf(middle, freedom) < q:
            low = middle
        else:
            high = middle
    return high


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function, by its continued fraction (Lentz)."""
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    # The continued fraction converges fast only below this point; above it, use the symmetry.
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - _incomplete_beta(b, a, 1.0 - x)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log(1.0 - x)) / a
    c, d = 1.0, 1.0 / _distance(1.0 - (a + b) * x / (a + 1.0))
    found = d
    # Each step multiplies in an even and an odd term of the fraction.
    for m in range(1, _TERMS):
        for factor in (
            m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0)),
        ):
            d = 1.0 / _distance(1.0 + factor * d)
            c = _distance(1.0 + factor / c)
            found *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return front * found


def _distance(value: float) -> float:
    # Lentz's algorithm must not divide by zero.
    return value if abs(value) > 1e-300 else 1e-300


ALPHA = 0.05
_FEWEST = 2.0
# Logarithms of ratios beyond this (a factor of 160,000) mean that nothing is known.
_WIDEST = 12.0


class Reckoned(NamedTuple):
    """A copy of a transfer: its expected cost, and the bounds of its time in s.

    `sparable_j`: the joules that it does not use if it ends at the lower one.
    """

    outcome: Outcome
    low_s: float
    high_s: float
    sparable_j: float


def hedged_cost(objective: Objective, best: Reckoned, others: Sequence[Reckoned]) -> float | None:
    """Return the reckoned cost of sending the same several times.

    `best`: the copy that would be sent alone.
    `others`: those sent beside.

    Returns:
        None where the bounds do not overlap, so that nothing can be saved.
    """
    # Without an overlap the order of the copies is certain.
    lows_s = [each.low_s for each in others]
    if max([best.low_s, *lows_s]) >= min([best.high_s, *[each.high_s for each in others]]):
        return None
    # Most is saved where the best one is at its worst and another at its best.
    # `hedged_cost` counts from the best copy alone: what sending both costs, less what waiting for
    # the best one at its worst would have cost.
    both = best.outcome._replace(time_s=min(lows_s))
    for each in others:
        # The least that it takes: its radio is on until its own earliest end.
        both = both._replace(
            energy_j=both.energy_j + each.outcome.energy_j - each.sparable_j,
            metered_bytes=both.metered_bytes + each.outcome.metered_bytes,
        )
    alone = objective.cost(best.outcome)
    return alone + objective.cost(both) - objective.cost(best.outcome._replace(time_s=best.high_s))


def _reckon(each: Judged, ways: Mapping[str, Way]) -> Reckoned:
    outcome = Outcome(each.time_s, each.energy_j, each.metered_bytes, 0.0)
    sparable_j = ways[each.name].watts * (each.time_s - each.low_s)
    return Reckoned(outcome, each.low_s, each.high_s, sparable_j)


class ErrorBounds(Evaluator):
    """Bounds on the next error of every quantity; ways are compared by what these allow."""

    name: ClassVar[str] = "error-bounds"

    def _judge(
        self,
        ways: Mapping[str, Way],
        redundant: Sequence[Redundant],
        objective: Objective,
        now_s: float,
        running: Running,
    ) -> dict[str, Judged]:
        found = {
            name: self._bound(way, objective, now_s, running.get(name))
            for name, way in ways.items()
        }
        # Hedging is judged against the best way alone.
        known = [each for each in found.values() if isfinite(each.cost)]
        if not known:
            return found | {both.name: unknown(both.name) for both in redundant}
        best = min(known, key=lambda each: each.cost)
        for both in redundant:
            # The first of several ways ends within the least of their bounds; all of them are paid.
            parts = [found[name] for name in both.parts]
            if not all(isfinite(each.cost) for each in parts):
                found[both.name] = unknown(both.name)
                continue
            times_s = (
                min(each.time_s for each in parts),
                min(each.low_s for each in parts),
                min(each.high_s for each in parts),
            )
            energy_j = sum([each.energy_j for each in parts])
            metered_bytes = sum([each.metered_bytes for each in parts])
            whole = judge(objective, both.name, times_s, energy_j, metered_bytes)
            # With the best way among them, their cost is the best one's and what hedging adds or saves.
            if best.name in both.parts:
                others = [each for each in parts if each is not best]
                cost = hedged_cost(
                    objective, _reckon(best, ways), [_reckon(each, ways) for each in others]
                )
                whole = whole if cost is None else replace(whole, cost=cost)
            found[both.name] = whole
        return found

    def _bound(
        self, way: Way, objective: Objective, now_s: float, elapsed_s: float | None
    ) -> Judged:
        """Return a way's evaluation by its point, with the bounds of its time."""
        # Lower bound, centre and upper bound of each quantity.
        at: dict[str, tuple[float, float, float]] = {}
        for term in way.terms:
            known = self._known.get(term.quantity)
            if known is None or known.prediction is None:
                return unknown(way.name)
            low, center, high = bounds(known, now_s)
            at[term.quantity] = tuple(known.prediction * each for each in (low, center, high))  # type: ignore[assignment]
        point_s = time_of(way, lambda name: at[name][1])
        # A term may fall with its quantity (size over bandwidth), so either end can be the lower one.
        low_s = high_s = way.fixed_s
        for term in way.terms:
            ends = [
                time_of(replace(way, terms=(term,), fixed_s=0.0), lambda name, k=k: at[name][k])  # type: ignore[misc]
                for k in (0, 2)
            ]
            if ends[0] is None or ends[1] is None:
                return unknown(way.name)
            low_s += min(ends[0], ends[1])
            high_s += max(ends[0], ends[1])
        if point_s is None:
            return unknown(way.name)
        if elapsed_s is not None:
            # Only the part of the bounds that agrees with what has passed (4.3.4).
            if high_s <= elapsed_s:
                high_s = 2.0 * elapsed_s
            low_s = max(low_s, elapsed_s)
            if point_s <= elapsed_s:
                point_s = 0.5 * (low_s + high_s)
            point_s, low_s, high_s = point_s - elapsed_s, low_s - elapsed_s, high_s - elapsed_s
        if way.lasting is not None and isfinite(way.detour_s):
            # Bounded like an error, an end that is more likely than alpha / 2 would be certain; in
            # contacts of a minute or two, whose end is noticed late, that is always so.
            point_s, low_s, high_s = [
                cut_off(each, way.lasting, way.detour_s) for each in (point_s, low_s, high_s)
            ]
        energy_j, metered_bytes = use_left(way, point_s, elapsed_s)
        return judge(objective, way.name, (point_s, low_s, high_s), energy_j, metered_bytes)


def bounds(known: Known, now_s: float) -> tuple[float, float, float]:
    """Return lower bound, geometric mean and upper bound of the next error of a quantity.

    It is the prediction interval by Student's t over logarithms.
    """
    logs = [log(each) for each in known.errors.distribution(now_s).samples]
    mean = sum(logs) / len(logs)
    if len(logs) < 2:
        return exp(mean), exp(mean), exp(mean)
    # The variance of the next value contains that of the mean.
    count = max(known.errors.worth, _FEWEST)
    variance = sum([(each - mean) ** 2 for each in logs]) / len(logs) * count / (count - 1.0)
    freedom = round(4.0 * (count - 1.0)) / 4.0 or 0.25
    reach = quantile(1.0 - 0.5 * ALPHA, freedom) * sqrt(variance * (1.0 + 1.0 / count))
    reach = min(reach, _WIDEST)
    return exp(mean - reach), exp(mean), exp(mean + reach)
