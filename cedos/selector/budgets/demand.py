"""What a resource could buy: the units that are asked for, by the seconds each would save.

The price at which a budget just lasts is read from this curve. Choices teach it, whatever was chosen:
what a transfer would have saved on a metered network is known of each one that was led elsewhere.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from math import exp, floor, inf, isfinite, log
from typing import NamedTuple

from cedos.selector.budgets.controller import Option
from cedos.selector.budgets.supply import PROHIBITIVE

_LARGEST = 1e9
_BINS_PER_E = 4.0
"""Savings per unit are told apart in steps of a quarter of e; between steps the price is drawn."""


class DemandIncrement(NamedTuple):
    """Units beyond the least that a choice can do with, and the seconds that each of them saves."""

    s_per_unit: float
    amount: float


def increments(options: Iterable[Option]) -> list[DemandIncrement]:
    """The steps of a choice from its least amount up, the most saving ones first.

    An option that takes more and saves nothing is no step, nor is one between two others that save
    more together (the lower convex hull of cost over amount).
    """
    hull: list[Option] = []
    for option in sorted(options, key=lambda each: (each.amount, each.cost_s)):
        if not isfinite(option.cost_s) or not isfinite(option.amount):
            continue
        if hull and (option.cost_s >= hull[-1].cost_s or option.amount <= hull[-1].amount):
            continue
        while len(hull) > 1 and _saved(hull[-2], hull[-1]) <= _saved(hull[-1], option):
            hull.pop()
        hull.append(option)
    return [
        DemandIncrement(_saved(less, more), more.amount - less.amount)
        for less, more in pairwise(hull)
    ]


def _saved(less: Option, more: Option) -> float:
    return (less.cost_s - more.cost_s) / (more.amount - less.amount)


class Demand:
    """Units asked for, by what they save, the older the less they count.

    Args:
        memory_s: after so long an observation counts for 1/e.
        amounts: bin -> units, of an earlier one.
        seen_s: the seconds over which these were seen.
        sums: of what each choice asked for, and of its squares.
    """

    def __init__(
        self,
        memory_s: float,
        amounts: Mapping[int, float] | None = None,
        seen_s: float = 0.0,
        sums: tuple[float, ...] = (0.0, 0.0),
    ) -> None:
        self.memory_s = memory_s
        self.seen_s = seen_s
        # What is new is written larger, instead of all that is old smaller each time.
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
        for step in priced(steps):
            saved = bin_of(step.s_per_unit)
            self._amounts[saved] = self._amounts.get(saved, 0.0) + step.amount * self._large
            asked += step.amount
        total, squares = self.sums
        self.sums = total + asked, squares + asked * asked

    def lumps(self, seconds: float) -> float:
        """How many equal choices would be as uneven as those of so many seconds (Kish's count)."""
        total, squares = self.sums
        if not 0.0 < squares < inf or self.seen_s <= 0.0:
            return 0.0
        return total / squares * total * seconds / self.seen_s

    def in_time(self, seconds: float) -> list[tuple[int, float]]:
        """Bins with the units that are asked for in so many seconds, those that save most first."""
        times = seconds / self.seen_s / self._large if self.seen_s > 0.0 else 0.0
        return [
            (saved, times * self._amounts[saved]) for saved in sorted(self._amounts, reverse=True)
        ]


def priced(steps: Iterable[DemandIncrement]) -> list[DemandIncrement]:
    """The steps whose price a float can hold: amounts and times beyond all measure leave none."""
    return [step for step in steps if 0.0 < step.s_per_unit < inf]


def bin_of(s_per_unit: float) -> int:
    """The bin of a saving, which must be positive."""
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
        """The price at which just `capacity` units are asked for; the least where all are too few."""
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
    """What will be asked for until the end: the flow of choices goes on, the stock is there already."""
    asked = flow.in_time(left_s)
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
