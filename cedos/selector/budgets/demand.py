"""Demand for a resource: units by the seconds that each saves; and the forecasts' shortfalls.

`Demand` is a curve of units over savings, from which the price is read at which a budget just
lasts. It learns from choices, whatever was chosen: the saving on a metered network is known for
each transfer that went elsewhere, too.

`Shortfalls` learns how much too low forecasts are, by the time left of the day. It learns from
errors, not from a model of people: at each full hour before the end it stores the forecast of the
use without a choice, and compares it with the real use. A day busier than all before shows only as
it goes on; so in the morning much is set aside beyond the forecast, and in the evening little.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from math import ceil, exp, floor, inf, isfinite, log, sqrt
from typing import Any, NamedTuple

from cedos.selector.budgets.controller import PROHIBITIVE, Option

_LARGEST = 1e9
# Histogram bins of savings per unit, for each factor of e. Within a bin prices are drawn at
# random.
_BINS_PER_E = 4.0


class DemandIncrement(NamedTuple):
    """Units beyond the least that a choice can do with, and the seconds that each of them saves."""

    s_per_unit: float
    amount: float


def increments(options: Iterable[Option]) -> list[DemandIncrement]:
    """Return the steps of a choice from its least amount up, the most saving ones first.

    An option that takes more and saves nothing is no step, nor is one between two others that save
    more together (the lower convex hull of cost over amount).
    """
    hull: list[Option] = []
    for option in sorted(options, key=lambda each: (each.amount, each.cost_s)):
        if not isfinite(option.cost_s) or not isfinite(option.amount):
            continue
        # An option that uses more must save something.
        if hull and (option.cost_s >= hull[-1].cost_s or option.amount <= hull[-1].amount):
            continue
        # Keep the hull convex: each further unit saves less than the one before.
        while len(hull) > 1 and _saving(hull[-2], hull[-1]) <= _saving(hull[-1], option):
            hull.pop()
        hull.append(option)
    return [
        DemandIncrement(_saving(less, more), more.amount - less.amount)
        for less, more in pairwise(hull)
    ]


def _saving(less: Option, more: Option) -> float:
    return (less.cost_s - more.cost_s) / (more.amount - less.amount)


class Demand:
    """Units asked for, by the seconds that each saves; older ones count less."""

    def __init__(
        self,
        memory_s: float,  # an observation of this age counts for 1/e
        amounts: Mapping[int, float] | None = None,  # bin -> units, from an earlier object
        seen_s: float = 0.0,  # the seconds over which these were seen
        # The sum of what each choice asked for, and of its square.
        sums: tuple[float, ...] = (0.0, 0.0),
    ) -> None:
        self.memory_s = memory_s
        self.seen_s = seen_s
        # Old amounts should shrink with time. Instead, new ones are written larger by this factor.
        self._large = 1.0
        self._amounts = dict(amounts or {})
        self.sums = sums

    @property
    def amounts(self) -> dict[int, float]:
        return {saved: amount / self._large for saved, amount in self._amounts.items()}

    def age(self, elapsed_s: float) -> None:
        kept = exp(-elapsed_s / self.memory_s)
        self.seen_s = kept * self.seen_s + self.memory_s * (1.0 - kept)
        self.sums = tuple([kept * each for each in self.sums])
        # The factor has grown too large: scale all amounts once, and drop those that are nearly zero.
        if self._large > _LARGEST * kept:
            self._amounts = {
                saved: kept * amount
                for saved, amount in self.amounts.items()
                if kept * amount > 1e-12
            }
            self._large = 1.0
        else:
            self._large /= kept

    def add(self, steps: Iterable[DemandIncrement]) -> None:
        asked = 0.0
        for step in with_prices(steps):
            saved = bin_of(step.s_per_unit)
            self._amounts[saved] = self._amounts.get(saved, 0.0) + step.amount * self._large
            asked += step.amount
        total, squares = self.sums
        self.sums = total + asked, squares + asked * asked

    def lumps(self, seconds: float) -> float:
        """Return the number of equal choices that would vary as much as those expected (Kish's count)."""
        total, squares = self.sums
        if not 0.0 < squares < inf or self.seen_s <= 0.0:
            return 0.0
        return total / squares * total * seconds / self.seen_s

    def in_time(self, seconds: float) -> list[tuple[int, float]]:
        """Return bins with the units asked for in so many seconds, those that save most first."""
        times = seconds / self.seen_s / self._large if self.seen_s > 0.0 else 0.0
        return [
            (saved, times * self._amounts[saved]) for saved in sorted(self._amounts, reverse=True)
        ]


def with_prices(steps: Iterable[DemandIncrement]) -> list[DemandIncrement]:
    """Return the steps with prices that a float can hold."""
    return [step for step in steps if 0.0 < step.s_per_unit < inf]


def bin_of(s_per_unit: float) -> int:
    """Return the bin of a saving, which must be positive."""
    return floor(log(s_per_unit) * _BINS_PER_E)


@cache
def _price_of(saved: int) -> float:
    return exp(saved / _BINS_PER_E)


class Curve(NamedTuple):
    """Demand over price: `amounts[i]` units are asked for at prices above `prices[i]`, or more."""

    prices: Sequence[float]
    amounts: Sequence[float]
    least: float

    def price(self, capacity: float) -> float:
        """Return the price at which just `capacity` units are asked for, but no less than the least."""
        if capacity <= 0.0:
            return PROHIBITIVE
        place = bisect_left(self.amounts, capacity)
        if place >= len(self.amounts):
            return self.least
        # Within a bin units are taken to lie evenly over the logarithm of their savings.
        before = self.amounts[place - 1] if place else 0.0
        share = (capacity - before) / (self.amounts[place] - before)
        return max(self.prices[place] * exp((1.0 - share) / _BINS_PER_E), self.least)


def curve(flow: Demand, left_s: float, stock: Mapping[int, float], least: float) -> Curve:
    """Return the demand until the end: the flow of choices goes on, the stock is there already."""
    asked = flow.in_time(left_s)
    # Items that wait already are demand, too.
    if stock:
        both = dict(asked)
        for saved, amount in stock.items():
            both[saved] = both.get(saved, 0.0) + amount
        asked = sorted(both.items(), reverse=True)
    prices, amounts, total = [], [], 0.0
    for saved, amount in asked:
        if total + amount > total:
            total += amount
            prices.append(_price_of(saved))
            amounts.append(total)
    return Curve(prices, amounts, least)


_HOUR_S = 3600.0
# The most remembered hours: two days, and one more when clocks are set back.
_MOST_HOURS = 49

# The weight of a day relative to the next newer one: 33 days in all.
_FADING = 0.97

_PRIOR = 0.5
# The weight in days of the prior that a forecast is too low by half. It never vanishes: even after
# good evenings, one may use a quarter more than ever.
_PRIOR_DAYS = 8.0


class Shortfalls:
    """The amounts by which earlier forecasts were too low, relative to the use of a usual period.

    Each period has three steps. `forecast` keeps the first forecast of each hour, `record` adds up the
    use, and the next period's start (`_close`) compares both. Only forecasts that were too low count:
    what was set aside in vain breaks nothing.

    Args:
        learned: the `state` of an earlier object; if its period has ended, it is learned from now.

    Raises:
        KeyError, TypeError, ValueError: `learned` is no such state.
    """

    def __init__(self, ends_s: float, learned: Mapping[str, Any] | None = None) -> None:
        self._ends_s = ends_s
        # By the hours that are left: the weight and the squares of shortfalls. Of open forecasts: the
        # expected use, the usual one of a period, and the use until then.
        self._squares: dict[int, list[float]] = {}
        self._open: dict[int, tuple[float, float, float]] = {}
        self._used = 0.0
        self._seen_s = float("-inf")
        if learned is None:
            return
        for hour, (weight, squares) in learned["squares"].items():
            self._squares[int(hour)] = [float(weight), float(squares)]
        if learned["open"] is None:
            return
        before_s, seen_s, used, forecasts = learned["open"]
        self._open = {
            int(hour): (float(expected), float(usual), float(at))
            for hour, (expected, usual, at) in forecasts.items()
        }
        self._used, self._seen_s = float(used), float(seen_s)
        # An earlier daemon's period has ended meanwhile: learn from it now.
        if before_s != ends_s:
            self._close(float(before_s))

    def record(self, now_s: float, used: float) -> None:
        """Record the use until now, chosen use included."""
        self._used += used
        self._seen_s = now_s

    def chosen(self, amount: float) -> None:
        """Record that so much of the use was a choice."""
        self._used -= amount

    def forecast(self, now_s: float, expected: float, usual: float) -> None:
        """Record the expected use until the end; the first forecast of each hour is kept."""
        hour = self._hour(now_s)
        # A clock that jumps may show any hour.
        if 0 < hour <= _MOST_HOURS and hour not in self._open and usual > 0.0:
            self._open[hour] = (expected, usual, self._used)

    def deviation(self, now_s: float, expected: float, usual: float) -> float:
        """Return the root mean square of the shortfall of forecasts like this one, in units."""
        weight, squares = self._squares.get(self._hour(now_s), (0.0, 0.0))
        # The prior counts as some days on which the forecast was too low by half.
        prior = _PRIOR_DAYS * (_PRIOR * expected) ** 2
        return sqrt((squares * usual * usual + prior) / (weight + _PRIOR_DAYS))

    def move_end(self, ends_s: float) -> None:
        """Move the period's end; forecasts of the old one can no longer be compared."""
        if ends_s != self._ends_s:
            self._ends_s = ends_s
            self._open.clear()

    def state(self) -> dict[str, Any]:
        """Return the knowledge as plain data for JSON, with the open forecasts."""
        forecasts = {str(hour): list(kept) for hour, kept in self._open.items()}
        return {
            "squares": {str(hour): list(kept) for hour, kept in self._squares.items()},
            "open": [self._ends_s, self._seen_s, self._used, forecasts] if self._open else None,
        }

    def _hour(self, now_s: float) -> int:
        # The hour that begins now is the one until its end: at the beginning of a day the 24th last.
        return ceil((self._ends_s - now_s) / _HOUR_S)

    def _close(self, before_s: float) -> None:
        """Learn from a period that has ended, if it was observed to its end."""
        if 0.0 <= before_s - self._seen_s <= _HOUR_S:
            # How much more was used than each hour's forecast had said, relative to a usual period.
            for hour, (expected, usual, at) in self._open.items():
                missing = max(self._used - at - expected, 0.0) / usual
                if isfinite(missing):
                    weight, squares = self._squares.get(hour, (0.0, 0.0))
                    self._squares[hour] = [
                        _FADING * weight + 1.0,
                        _FADING * squares + missing * missing,
                    ]
        self._open.clear()
        self._used, self._seen_s = 0.0, float("-inf")
