"""Pay as you go: a plan as a series of small budgets, one bought after the other (dissertation, 3.2.2.7).

Within a unit that is bought, data costs what the unit's own controller says: it is there anyhow, and to
last for the period. Beyond it a next unit must be bought, whole, so its money counts at once. Less money
spent is always better, so nobody buys ahead: what is worth less than a unit waits for free networks.
"""

from dataclasses import dataclass
from math import ceil, inf

from cedos.model import Increment
from cedos.selector.budgets.controller import Quote
from cedos.selector.budgets.supply import PROHIBITIVE


def bought(spent: float, increment: Increment) -> int:
    """How many units have been begun, at least one: nobody has a plan without one."""
    return max(ceil(spent / increment.amount), 1)


@dataclass(frozen=True, slots=True)
class IncrementQuote:
    """The price while units can be bought.

    Attributes:
        within: the price of what is left of the present unit.
        left: bytes that are left of it.
        units_left: how many more may be bought.
        spare: bytes of all units together that choices may use: the others are needed for what is used
            without one until the end of the period, so no choice takes them, whatever it would pay.
    """

    within: Quote
    left: float
    units_left: int
    increment: Increment
    spare: float = inf

    @property
    def rate(self) -> float:
        """Of the unit in use, or of the next one where it is used up."""
        if self.left > 0.0:
            return self.within.rate
        first = self.rate_for(1.0, 1.0)
        return first / self.increment.amount if first < PROHIBITIVE else PROHIBITIVE

    def rate_for(self, amount: float, duration_s: float) -> float:
        """The money of all units that are begun, over the bytes contemplated."""
        if amount > 0.0 and amount > self.spare:
            return PROHIBITIVE
        if amount <= max(self.left, 0.0):
            return self.within.rate_for(amount, duration_s)
        units = ceil((amount - max(self.left, 0.0)) / self.increment.amount)
        if units > self.units_left:
            return PROHIBITIVE
        return units * self.increment.money * self.increment.s_per_money / amount
