"""Keeps one budget over all its periods: which one it is, what is spent, what that bought, the price.

What is spent comes from outside, measured, whoever used it; nothing here reads a clock. The period
follows from the instant alone, so a clock that jumps, and jumps back, finds the same period again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import tzinfo
from math import isfinite
from typing import Any, Final

from cedos.model import Budget, Resource
from cedos.selector.budgets.calendar import Period, period_at
from cedos.selector.budgets.controller import Controller, MakeController, Option, Quote
from cedos.selector.budgets.forecast import Expected, Forecast
from cedos.selector.budgets.increments import IncrementQuote, bought

_ALIKE: Final = 2.0
"""A period that is so many times as long, or as short, begins with a controller of its own."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How a budget stands.

    Attributes:
        spent: units since its beginning.
        forecast: units at its end, if they are spent as lately; None: it is too early to say.
        rate: the price, seconds per unit.
        bought_s: the seconds that its units have saved in this period.
        over: whether it is past its end, and does not recur.
    """

    budget: Budget
    period: Period
    spent: float
    forecast: Expected | None
    rate: float
    bought_s: float
    over: bool

    @property
    def left(self) -> float:
        """Units that are not spent; negative where the budget is broken."""
        return self.budget.supply - self.spent


class Keeper:
    """One budget with its controller, from period to period.

    Args:
        zone: of the wall; None: this host's.
        state: what an earlier one's `state` says.
    """

    def __init__(
        self,
        budget: Budget,
        make: MakeController,
        now_s: float,
        zone: tzinfo | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        self.budget = budget
        self._make = make
        self._zone = zone
        self._learned: dict[str, Any] = {}
        self._bought_s = 0.0
        self.period = period_at(budget, now_s, zone)
        if state:
            self._learned = dict(state.get("learned") or {})
            if state.get("period") == list(self.period):
                bought_s = state.get("bought_s")
                self._bought_s = float(bought_s) if isinstance(bought_s, int | float) else 0.0
        self._begin(now_s)

    def _begin(self, now_s: float) -> None:
        make, period = self._make, self.period
        supply = self.budget.supply
        self._made_s = now_s
        self.spent = 0.0
        self._forecast = Forecast(*period)
        self._seen_s: float | None = None
        try:
            self.controller: Controller = make(supply, *period, now_s=now_s, learned=self._learned)
        except ValueError:  # another version's, or damaged: habits are learned anew
            self.controller = make(supply, *period, now_s=now_s)

    def roll(self, now_s: float) -> bool:
        """Goes to the period of an instant; whether it is another one."""
        period = period_at(self.budget, now_s, self._zone)
        if period == self.period:
            return False
        self._learned = self.controller.state()
        self.period, self._bought_s = period, 0.0
        self._begin(now_s)
        return True

    def over(self, now_s: float) -> bool:
        """Whether the budget has come to its end, and does not recur."""
        return now_s >= self.period.ends_s

    def observe(self, now_s: float, spent: float) -> None:
        """Takes what has been spent in this period, by whomever; of units, one more is bought for it."""
        if not isfinite(spent):
            return
        if (increment := self.budget.increment) is not None:
            supply = min(bought(spent, increment), increment.most) * increment.amount
            if supply != self.budget.supply:
                self.changed(replace(self.budget, supply=supply), now_s)
        if self._seen_s is not None and now_s > self._seen_s:
            self._forecast.add(max(spent - self.spent, 0.0), now_s - self._seen_s)
        left = self.budget.supply - spent
        if self._seen_s is None:
            # What was spent before this one was there is known, and no sign of any habit.
            self.controller.observe(self._made_s, left)
            self._forecast.known(spent, now_s - self.period.begins_s)
        self._seen_s, self.spent = now_s, spent
        self.controller.observe(now_s, left)

    def offered(self, now_s: float, options: Sequence[Option], chosen: Option) -> None:
        """Takes a choice that came up, and what was chosen."""
        if options:
            self.credited(options, chosen)
            self.controller.offered(now_s, options, chosen)

    def credited(self, options: Sequence[Option], chosen: Option) -> None:
        """Takes what a choice has bought, where the controller knows of it by `waiting`."""
        least = min(options, key=lambda option: (option.amount, option.cost_s))
        if chosen.amount > least.amount and isfinite(least.cost_s):
            self._bought_s += max(least.cost_s - chosen.cost_s, 0.0)

    def quote(self, now_s: float) -> Quote:
        quote, increment = self.controller.quote(now_s), self.budget.increment
        if increment is None:
            return quote
        units = round(self.budget.supply / increment.amount)
        left = self.budget.supply - self.spent
        units_left = increment.most - units
        spare = self.controller.spare(
            now_s, left + units_left * increment.amount, increment.most * increment.amount
        )
        return IncrementQuote(quote, left, units_left, increment, spare)

    def changed(self, budget: Budget, now_s: float) -> None:
        """The person has another mind; what was spent in the period, and learned, stays."""
        period = period_at(budget, now_s, self._zone)
        same = period.begins_s == self.period.begins_s and budget.resource == self.budget.resource
        times = _length_s(period) / _length_s(self.period)
        self.budget, self.period = budget, period
        if same and 1.0 / _ALIKE <= times <= _ALIKE:
            self.controller.changed(now_s, budget.supply, period.ends_s)
            return
        # Habits of a day are counted otherwise than those of a month.
        self._learned = self.controller.state()
        if not same:
            self._bought_s = 0.0
        self._begin(now_s)

    def stamped_anew(self, budget: Budget, now_s: float) -> None:
        """The same budget with its beginning by another clock; all that is known of it stays."""
        self.budget, self.period = budget, period_at(budget, now_s, self._zone)

    def standing(self, now_s: float) -> Standing:
        left_s = max(self.period.ends_s - now_s, 0.0)
        return Standing(
            self.budget,
            self.period,
            self.spent,
            self._forecast.at_end(self.spent, left_s),
            self.quote(now_s).rate,
            self._bought_s,
            self.over(now_s),
        )

    def state(self) -> dict[str, Any]:
        """What must survive a restart, as plain data for JSON; what is spent is measured elsewhere."""
        return {
            "period": list(self.period),
            "learned": self.controller.state() or self._learned,
            "bought_s": self._bought_s,
        }


def _length_s(period: Period) -> float:
    return max(period.ends_s - period.begins_s, 1.0)


def unit(resource: Resource) -> str:
    """What amounts of a resource are counted in."""
    return {Resource.DATA: "B", Resource.ENERGY: "J", Resource.MONEY: ""}[resource]
