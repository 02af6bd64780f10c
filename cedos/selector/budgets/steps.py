"""A quote as it can be written down: the price of every amount, in few steps.

Whoever decides elsewhere than where a budget is kept (a program that prefetches, say) needs more than the
price of the next byte: a megabyte of what is nearly spent costs more than a thousand times a kilobyte.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

from cedos.selector.budgets.controller import Quote
from cedos.selector.budgets.supply import PROHIBITIVE

_ALIKE = 1.2
"""Prices that differ by less than this factor are one step; other ones are only if their amounts do, too:
where data is bought unit by unit, a price falls after each jump, and is alike on both sides of it."""

_CLOSE = 1.01
"""Where a price jumps, it is known this exactly at which amount."""

_LEAST = 1e-6
_MOST_STEPS = 200

DURATION_S = 1e6
"""What is prefetched is asked about as spent over so long: the pacer's prices do not depend on it, and
Odyssey's, which go by the rate of spending, are then those of the amount alone."""


class Step(NamedTuple):
    """Up to so many units, each costs so many seconds."""

    amount: float
    s_per_unit: float


def steps(quote: Quote, left: float) -> list[Step]:
    """The prices of all amounts up to what is left; what comes after the last step is prohibitive.

    Between two amounts the higher price of the two counts, so that nobody is told too little: nothing,
    where prices rise with the amount; a sixth at most, where data is bought unit by unit.
    """
    if not left > 0.0:
        return []
    found: list[Step] = []
    below = _step(quote, left * _LEAST)
    ahead = [_step(quote, left)]
    while ahead and below.s_per_unit < PROHIBITIVE and len(found) < _MOST_STEPS:
        step = ahead.pop()
        if _apart(below, step):
            ahead += [step, _step(quote, sqrt(below.amount * step.amount))]
            continue
        merged = Step(step.amount, max(below.s_per_unit, step.s_per_unit))
        if found and found[-1].s_per_unit == merged.s_per_unit:
            found.pop()
        found.append(merged)
        below = step
    return [step for step in found if step.s_per_unit < PROHIBITIVE]


def _apart(below: Step, step: Step) -> bool:
    """Whether there is more to know between two amounts."""
    low, high = sorted((below.s_per_unit, step.s_per_unit))
    times = step.amount / below.amount
    return times > _CLOSE if high > low * _ALIKE else times > _ALIKE and high > low


def _step(quote: Quote, amount: float) -> Step:
    return Step(amount, quote.rate_for(amount, DURATION_S))


@dataclass(frozen=True, slots=True)
class SteppedQuote:
    """A quote from its steps; see `controller.Quote`.

    Attributes:
        rate: nothing contemplated.
    """

    rate: float
    steps: Sequence[Step]

    def rate_for(self, amount: float, duration_s: float) -> float:
        if amount <= 0.0:
            return self.rate
        place = bisect_left(self.steps, (amount,))
        return self.steps[place].s_per_unit if place < len(self.steps) else PROHIBITIVE
