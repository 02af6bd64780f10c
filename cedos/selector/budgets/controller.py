"""Controllers: the interface that moves a budget's price, and quotes.

A `Quote` is the price at one instant. It can be written down in few steps (`steps`), since a
program that decides elsewhere, such as a prefetcher, needs more than the price of the next byte: a
megabyte of a nearly spent supply costs more than a thousand times a kilobyte.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, Final, NamedTuple, Protocol

# Seconds per unit of a spent budget: more than any transfer can save, and still a finite number.
PROHIBITIVE: Final = 2.0**200

# The shares of what is left and of the supply that are not planned with (Odyssey's reserve, 3.2.2.4).
KEPT_OF_LEFT: Final = 0.05
KEPT_OF_SUPPLY: Final = 0.01


def plannable(left: float, supply: float) -> float:
    """Return the plannable supply: the rest without Odyssey's insurance; 0 or less: it is spent."""
    return left - (KEPT_OF_LEFT * left + KEPT_OF_SUPPLY * supply)


class Option(NamedTuple):
    """A way to carry a transfer: its cost in seconds without this resource, and its units."""

    cost_s: float
    amount: float


class Quote(Protocol):
    """The price at one instant; cheap to ask, as every decision does."""

    @property
    def rate(self) -> float:
        """Seconds per unit while nothing is contemplated."""

    def rate_for(self, amount: float, duration_s: float) -> float:
        """Return the seconds per unit if `amount` were spent over `duration_s` from now on.

        The price is `PROHIBITIVE` if this amount may not be spent.
        """


class PriceController(Protocol):
    """Keeps one budget through one period. Instants are seconds of any one clock.

    No clock is trusted: an instant before the last one is taken as it is, and teaches nothing.
    """

    @property
    def name(self) -> str:
        """The controller's name in configurations and records."""

    def observe(self, now_s: float, left: float) -> None:
        """Record the measured rest of the supply, whatever program used the difference."""

    def on_choice(self, now_s: float, options: Sequence[Option], chosen: Option) -> None:
        """Record a choice that has come up, and the option chosen."""

    def waiting(self, choices: Sequence[Sequence[Option]]) -> None:
        """Record all choices that stay open for longer, such as possible prefetches, each once."""

    def foreseen(self, amount: float) -> None:
        """Keep `amount` units of the next observed use out of the habits: they are `waiting` choices."""

    def replace_supply(self, now_s: float, supply: float, ends_s: float) -> None:
        """Replace the supply of this period, or its end."""

    def quote(self, now_s: float) -> Quote: ...

    def state(self) -> dict[str, Any]:
        """Return the knowledge that later periods can use, as plain data for JSON."""


class MakeController(Protocol):
    """Makes a controller for a period; both classes of controllers are such."""

    def __call__(
        self,
        supply: float,
        begins_s: float,
        ends_s: float,
        *,
        now_s: float | None = None,
        learned: Mapping[str, Any] | None = None,
    ) -> PriceController:
        """Make a controller; `learned`: an earlier period's `state`. Raises ValueError if it is none."""


# Prices that differ by a smaller factor are one step. Others are one step only if their amounts
# differ too: where data are bought by the unit, a price falls after each jump and is alike on both
# sides.
_ALIKE = 1.2

# The precision of the amount at which a price jumps.
_CLOSE = 1.01

_LEAST = 1e-6
_MOST_STEPS = 200

# The time over which prefetched amounts are spent. The pacer's prices do not depend on it;
# Odyssey's then depend on the amount alone.
DURATION_S = 1e6


class Step(NamedTuple):
    """A step: up to so many units, each costs so many seconds."""

    amount: float
    s_per_unit: float


def steps(quote: Quote, left: float) -> list[Step]:
    """Return the prices of all amounts up to the rest; beyond the last step the price is prohibitive.

    Between two amounts the higher price counts, so that no price is too low. The error is zero
    where prices rise with the amount, and a sixth at most where data is bought unit by unit.
    """
    if not left > 0.0:
        return []
    found: list[Step] = []
    # Walk from a tiny amount up to all that is left. `ahead` is a stack of amounts still to be visited,
    # the smallest on top.
    below = _step(quote, left * _LEAST)
    ahead = [_step(quote, left)]
    while ahead and below.s_per_unit < PROHIBITIVE and len(found) < _MOST_STEPS:
        step = ahead.pop()
        # The price changes between the two: look at their geometric mean first.
        if _differ(below, step):
            ahead += [step, _step(quote, sqrt(below.amount * step.amount))]
            continue
        # The dearer price holds for the whole step, so that no price is too low. Equal steps become one.
        merged = Step(step.amount, max(below.s_per_unit, step.s_per_unit))
        if found and found[-1].s_per_unit == merged.s_per_unit:
            found.pop()
        found.append(merged)
        below = step
    return [step for step in found if step.s_per_unit < PROHIBITIVE]


def _differ(below: Step, step: Step) -> bool:
    """Return whether the prices of two amounts differ enough to look between them."""
    low, high = sorted((below.s_per_unit, step.s_per_unit))
    times = step.amount / below.amount
    return times > _CLOSE if high > low * _ALIKE else times > _ALIKE and high > low


def _step(quote: Quote, amount: float) -> Step:
    return Step(amount, quote.rate_for(amount, DURATION_S))


@dataclass(frozen=True, slots=True)
class SteppedQuote:
    """A quote from its steps; see `controller.Quote`."""

    rate: float  # nothing contemplated
    steps: Sequence[Step]

    def rate_for(self, amount: float, duration_s: float) -> float:
        if amount <= 0.0:
            return self.rate
        place = bisect_left(self.steps, (amount,))
        return self.steps[place].s_per_unit if place < len(self.steps) else PROHIBITIVE
