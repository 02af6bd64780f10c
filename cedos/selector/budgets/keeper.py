"""Keepers: one budget over all its periods, with its use and its price.

**Period.** A budget's period follows from the instant alone, by the local calendar, where bills are
written. So a clock that jumps, and jumps back, finds the same period again. A keeper is told the period
and the use: the calendar and the counters are elsewhere.

**Forecast.** The use at the end of the period, if it goes on as lately, as a range for people.
"""

from calendar import monthrange
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from math import exp, isfinite, sqrt
from typing import Any, Final, NamedTuple

from cedos.model import Budget, Every
from cedos.selector.budgets.controller import (
    MakeController,
    Option,
    PriceController,
    Quote,
)

_DAYS = {Every.DAY: 1, Every.WEEK: 7}
_MONTHS = {Every.MONTH: 1, Every.YEAR: 12}


class Period(NamedTuple):
    """A period, from its first instant to that of the next one, in seconds since the epoch."""

    begins_s: float
    ends_s: float


def period_at(budget: Budget, now_s: float, zone: tzinfo | None = None) -> Period:
    """Return the period of a budget at an instant; one that does not recur has only one.

    `budget`: if it does not recur, its period begins at `since`, or at the epoch.
    `zone`: of the local time; None: this host's.
    """
    until = datetime.fromisoformat(budget.until)
    if budget.every is None:
        begins_s = stamp(datetime.fromisoformat(budget.since), zone) if budget.since else 0.0
        return Period(begins_s, stamp(until, zone))
    ends = _number(until, budget.every, wall(now_s, zone))
    begin = add_recurrences(until, budget.every, ends - 1)
    return Period(stamp(begin, zone), stamp(add_recurrences(until, budget.every, ends), zone))


def add_recurrences(until: datetime, every: Every, times: int) -> datetime:
    """Return the instant so many recurrences after `until`; a shorter month has its last day."""
    if days := _DAYS.get(every):
        return until + timedelta(days=days * times)
    months = until.year * 12 + until.month - 1 + _MONTHS[every] * times
    year, month = divmod(months, 12)
    return until.replace(
        year=year, month=month + 1, day=min(until.day, monthrange(year, month + 1)[1])
    )


def wall(now_s: float, zone: tzinfo | None = None) -> datetime:
    """Return the local time without its zone."""
    return datetime.fromtimestamp(now_s, zone).replace(tzinfo=None)


def stamp(shown: datetime, zone: tzinfo | None = None) -> float:
    """Return the seconds since the epoch of a local time."""
    return shown.replace(tzinfo=zone).timestamp()


def _number(until: datetime, every: Every, now: datetime) -> int:
    """Return the number of recurrences after `until` at which the period of `now` ends."""
    if days := _DAYS.get(every):
        return (now - until) // timedelta(days=days) + 1
    # The number of months is right within one; days of the month and shorter months decide the rest.
    guess = ((now.year - until.year) * 12 + now.month - until.month) // _MONTHS[every]
    while add_recurrences(until, every, guess) <= now:
        guess += 1
    while add_recurrences(until, every, guess - 1) > now:
        guess -= 1
    return guess


# The number of blocks of the period. Use within a block counts as one event, as a download or an
# evening.
_BLOCKS: Final = 100
# The number of blocks after which an old one counts for 1/e.
_MEMORY_BLOCKS: Final = 16.0
# The most blocks that the use before the first observation counts for.
_MOST_SEED_BLOCKS: Final = 4.0
# Standard deviations on either side of the 90 % interval.
_WIDE: Final = 1.645


class Expected(NamedTuple):
    """Units at the end: the likely use, and the 90 % range."""

    low: float
    likely: float
    high: float


class Forecast:
    """The forecast of one period; there is none before a hundredth of it was observed."""

    def __init__(self, begins_s: float, ends_s: float) -> None:
        self._block_s = (ends_s - begins_s) / _BLOCKS
        self._open = self._open_s = 0.0
        self._count = self._sum = self._squares = 0.0  # of blocks, fading

    def record_before(self, used: float, elapsed_s: float) -> None:
        """Record the use of the period before this forecast began; its distribution is unknown.

        A use of zero says only that it was not counted.
        """
        blocks = elapsed_s / self._block_s
        if used > 0.0 and blocks >= 1.0:
            # The squares are those of an exponential distribution (E[x^2] = 2 * mean^2), a wide guess.
            mean, count = used / blocks, min(blocks, _MOST_SEED_BLOCKS)
            self._count, self._sum, self._squares = count, count * mean, 2.0 * count * mean**2

    def add(self, used: float, elapsed_s: float) -> None:
        blocks = min((self._open_s + elapsed_s) / self._block_s, float(_BLOCKS))
        if blocks < 1.0:
            self._open += used
            self._open_s += elapsed_s
            return
        # One report may span several blocks: spread the use evenly over them.
        block = (self._open + used) / blocks
        for _ in range(int(blocks)):
            fading = exp(-1.0 / _MEMORY_BLOCKS)
            self._count = fading * self._count + 1.0
            self._sum = fading * self._sum + block
            self._squares = fading * self._squares + block**2
        self._open, self._open_s = 0.0, 0.0

    def at_end(self, used: float, left_s: float) -> Expected | None:
        if self._count < 1.0:
            return None
        left = left_s / self._block_s
        mean = self._sum / self._count
        variance = max(self._squares / self._count - mean**2, 0.0)
        if self._count < 2.0:
            variance = max(variance, mean**2)  # one says nothing of how different they are
        likely = used + left * mean
        # The blocks to come differ, and the mean of those seen may be wrong for all of them.
        beside = _WIDE * sqrt(variance * left * (1.0 + left / self._count))
        return Expected(max(used, likely - beside), likely, likely + beside)


# A period longer or shorter by this factor gets a new controller.
_ALIKE: Final = 2.0


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of a budget."""

    budget: Budget
    period: Period
    spent: float  # units since its beginning
    # Units at its end, if they are spent as lately; None: it is too early to say.
    forecast: Expected | None
    rate: float  # the price, seconds per unit
    bought_s: float  # the seconds that its units have saved in this period
    over: bool  # whether it is past its end, and does not recur

    @property
    def left(self) -> float:
        """Units that are not spent; negative where the budget is broken."""
        return self.budget.supply - self.spent


class Keeper:
    """A budget with its controller, from period to period."""

    def __init__(
        self,
        budget: Budget,
        period: Period,  # that of now (`period_at`)
        make: MakeController,
        now_s: float,
        state: Mapping[str, Any] | None = None,  # what an earlier one's `state` says
    ) -> None:
        self.budget = budget
        self.period = period
        self._make = make
        self._learned: dict[str, Any] = {}
        self._bought_s = 0.0
        if state:
            learned = state.get("learned")
            self._learned = dict(learned) if isinstance(learned, Mapping) else {}
            # Savings belong to their period; what was learnt outlives it.
            if state.get("period") == list(self.period):
                bought_s = state.get("bought_s")
                self._bought_s = bought_s if isinstance(bought_s, float) else 0.0
        self._begin(now_s)

    def _begin(self, now_s: float) -> None:
        make, period = self._make, self.period
        supply = self.budget.supply
        self._made_s = now_s
        self.spent = 0.0
        self._forecast = Forecast(*period)
        self._seen_s: float | None = None
        try:
            self.controller: PriceController = make(
                supply, *period, now_s=now_s, learned=self._learned
            )
        except ValueError:  # another version's, or damaged: habits are learned anew
            self.controller = make(supply, *period, now_s=now_s)

    def roll(self, period: Period, now_s: float) -> bool:
        """Go to the period of now; return whether it is another one."""
        # A new period begins with the same habits and an empty account.
        if period == self.period:
            return False
        self._learned = self.controller.state()
        self.period, self._bought_s = period, 0.0
        self._begin(now_s)
        return True

    def has_ended(self, now_s: float) -> bool:
        """Return whether the budget has ended and does not recur."""
        return now_s >= self.period.ends_s

    def observe(self, now_s: float, spent: float) -> None:
        """Record the use of this period."""
        if not isfinite(spent):
            return
        if self._seen_s is not None and now_s > self._seen_s:
            self._forecast.add(max(spent - self.spent, 0.0), now_s - self._seen_s)
        # The first report is the use before this controller began, which is no sign of a habit. So the
        # controller is told of it at its own beginning, with no seconds to divide by.
        left = self.budget.supply - spent
        if self._seen_s is None:
            self.controller.observe(self._made_s, left)
            self._forecast.record_before(spent, now_s - self.period.begins_s)
        self._seen_s, self.spent = now_s, spent
        self.controller.observe(now_s, left)

    def on_choice(self, now_s: float, options: Sequence[Option], chosen: Option) -> None:
        """Record a choice that came up, and the option chosen."""
        if options:
            self.credit(options, chosen)
            self.controller.on_choice(now_s, options, chosen)

    def credit(self, options: Sequence[Option], chosen: Option) -> None:
        """Record what a choice has bought, if the controller knows of the choice by `waiting`."""
        least = min(options, key=lambda option: (option.amount, option.cost_s))
        if chosen.amount > least.amount and isfinite(least.cost_s):
            self._bought_s += max(least.cost_s - chosen.cost_s, 0.0)

    def quote(self, now_s: float) -> Quote:
        return self.controller.quote(now_s)

    def replace_budget(self, budget: Budget, period: Period, now_s: float) -> None:
        """Replace the budget and its period; the period's use and the knowledge stay."""
        same = period.begins_s == self.period.begins_s and budget.resource == self.budget.resource
        # Keep the controller if the period is the same one and about as long.
        times = _length_s(period) / _length_s(self.period)
        self.budget, self.period = budget, period
        if same and 1.0 / _ALIKE <= times <= _ALIKE:
            self.controller.replace_supply(now_s, budget.supply, period.ends_s)
            return
        # A new controller: habits of a day are counted otherwise than those of a month.
        self._learned = self.controller.state()
        if not same:
            self._bought_s = 0.0
        self._begin(now_s)

    def stamped_anew(self, budget: Budget, period: Period) -> None:
        """Replace the budget by the same one with its beginning on another clock."""
        self.budget, self.period = budget, period

    def standing(self, now_s: float) -> Standing:
        left_s = max(self.period.ends_s - now_s, 0.0)
        return Standing(
            self.budget,
            self.period,
            self.spent,
            self._forecast.at_end(self.spent, left_s),
            self.quote(now_s).rate,
            self._bought_s,
            self.has_ended(now_s),
        )

    def state(self) -> dict[str, Any]:
        """Return the state that must survive a restart, as plain data for JSON, without the use."""
        return {
            "period": list(self.period),
            "learned": self.controller.state() or self._learned,
            "bought_s": self._bought_s,
        }


def _length_s(period: Period) -> float:
    return max(period.ends_s - period.begins_s, 1.0)
