"""The pacer: our own controller, which sells the supply at the price where demand just uses it up.

Odyssey's feedback moves a price until spending fits, which takes days of a month while it is too
low or too high. The pacer's price is the dual variable of the period's problem itself: save the
most seconds within the supply. Each observation solves it anew for what is left:

1. Learn the demand over price from the choices that come up (`demand`).
2. Forecast the use without a choice (`habits`) and set it aside, with a margin for its variation. That
   is the use that no choice could have avoided: only a counted network was up, say.
3. Read the price at which the demand until the end uses the rest.

Errors of the forecast show in the rest of the supply, and the next solution corrects them. In
periods of a day the pacer also learns how wrong such forecasts are (`Shortfalls`): in the morning
it counts on only a part of what they leave over.

A burst in the first hours is no habit: a forecast from it would use up the supply many times. So while
little is known the price has an upper bound, which depends only on how far the use is ahead of an even
pace (`FirstPace`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, sqrt
from typing import Any

from cedos.selector.budgets.controller import PROHIBITIVE, Option, plannable
from cedos.selector.budgets.demand import (
    Curve,
    Demand,
    Shortfalls,
    bin_of,
    curve,
    increments,
    with_prices,
)
from cedos.selector.budgets.habits import DAY_S, Hours, Unchosen, Weekdays, daily
from cedos.selector.budgets.odyssey import LEAST_S

# The share of the period for which habits are remembered: five days of a month, so that weekends
# count.
_MEMORY = 1 / 6

# The least memory of habits in periods of half a day and more.
_DAILY_MEMORY_S = 5 * DAY_S

# In this first share of the period no demand is known. The same share of the supply is sold at the
# least price. Further units are dear: the whole supply is worth the whole period.
_FIRST = 1 / 100

# The factors by which the expected demand is reduced: usually, and at the end of the period.
#
# In the last part of the period the factor falls: a price that was too low can still rise, but supply
# that is left over because the price was too high is lost.
_SHADED, _SHADED_AT_END, _END = 0.9, 0.4, 0.15

# The reserve for use without a choice, in its standard deviations.
_MARGIN = 1.25

# In longer periods weekdays are distinguished, and the constants down to `_RATION` apply.
_LONG_S = 2 * DAY_S

# The standard deviations by which the expected demand is reduced, and the bounds of the factor.
#
# The factor is 1 - `_DEVIATIONS` / sqrt(1 + n). Here n equal requests would vary as much as the expected
# ones do (`Demand.lumps`). Where many small requests are expected, most of them count; where only two
# videos are, almost nothing does.
_DEVIATIONS, _LEAST_SHADED, _MOST_SHADED = 1.75, 0.1, 0.95

# Use of a smaller share of the supply before the first choice is no habit.
_CHATTER = 0.01

# The share of the plannable rest that is kept for a use without a choice that may yet begin.
#
# Less is kept as the end comes nearer and more is known: the share is multiplied by left / all and
# divided by 1 + `_UNKNOWN_SEEN` * observed / all. All is the time from the first choice to the end.
_UNKNOWN, _UNKNOWN_SEEN = 0.15, 10.0

# The most use on the first day, relative to an even pace. Many requests at the beginning do not
# tell how many will follow.
_RATION = 1.1

# A transfer that would not fit if it were this many times larger than guessed is dear. Otherwise a
# single large transfer near the end exceeded budgets of months.
_OVERRUN = 1.5

# The capacity from which on all of it is counted on, in multiples of the shortfall to be expected.
#
# This is for periods of a day. Capacity is what a forecast leaves to choices. Of a capacity that
# is half as large, half counts, and so on (`_counted_on`). So while forecasts are unsure little is
# sold, at a high price. A fixed margin would sell nothing in whole mornings.
_SURE = 16.0

# The same for longer periods, in multiples of the expected use without a choice.
#
# Too few long periods are observed to learn the errors of their forecasts. The expected use is
# that of the last days, or of all that was observed if that is more. A trip in the last week of a
# month may take several times as much.
_SURE_LONG = 3.0


# Shares of the supply by which the use may be ahead of an even pace while little is known.
#
# Up to the first share, the upper bound of the price stays at `_USUAL`. Beyond that it rises, over the
# second share, and then there is no bound any more.
_AHEAD_FREE, _AHEAD = 0.02, 0.06

# The upper bound of the price at an even pace, on a logarithmic scale from the least price (0) to
# the dear one (1). It is 0.28 s a megabyte for 4 GB a month, and 0.29 s for 500 MB a day.
_USUAL = 0.6


@dataclass(frozen=True, slots=True)
class FirstPace:
    """The upper bound of the price while little is known, by how far the use is ahead of an even pace.

    The bound rises from a usual price to the dear one, by an equal factor for each further unit.
    """

    # Units used beyond an even pace and its free share; negative: the units up to there.
    ahead: float
    span: float  # units from the usual price to the dear one; the less, the more is known
    least: float  # the lowest price of all, at the bottom of the scale
    dear: float  # the price after `span` units; beyond them there is no bound
    most: float  # units that can be planned with; for more there is no bound

    def price(self, amount: float) -> float:
        """Return the upper bound for so many further units; `PROHIBITIVE`: there is none."""
        part = max((self.ahead + amount) / self.span, 0.0)
        if amount > self.most or part >= 1.0:
            return PROHIBITIVE
        price: float = self.least * (self.dear / self.least) ** (_USUAL + (1.0 - _USUAL) * part)
        return price


@dataclass(frozen=True, slots=True)
class PacerQuote:
    """The price of one instant. Units that a choice contemplates to use are taken from the capacity."""

    rate: float  # the price while nothing is contemplated
    planned: float = 0.0  # units that can be planned with; more are prohibitive
    capacity: float = 0.0  # those of them that are not set aside for the use without a choice
    dear: float = PROHIBITIVE  # the price of units that are set aside
    # The demand until the end; None: it is not known yet, and `rate` holds for all the capacity.
    known: Curve | None = None
    unsure: float = 0.0  # of a smaller capacity than this, only a part counts (`_counted_on`)
    rationed: float = inf  # units that may be sold now; more are dear
    # The upper bound of the price while little is known; None: enough is known.
    pace: FirstPace | None = None

    def rate_for(self, amount: float, duration_s: float) -> float:
        """Return the price that holds once `amount` is used; it counts for each of these units."""
        if amount <= 0.0:
            return self.rate
        price = self._price(amount)
        return price if self.pace is None else min(price, self.pace.price(amount))

    def _price(self, amount: float) -> float:
        if amount > self.planned:
            return PROHIBITIVE
        # Units that are set aside or rationed, or would not fit if the size was underestimated, are dear.
        if amount >= self.capacity or amount > self.rationed or amount * _OVERRUN > self.planned:
            return max(self.rate, self.dear)
        if self.known is None:
            return self.rate
        return self.known.price(_counted_on(self.capacity - amount, self.unsure))


def _counted_on(units: float, unsure: float) -> float:
    """Return the part of a capacity that demand may use; of all above `unsure`, everything."""
    return units * min(units / unsure, 1.0) if unsure > 0.0 else units


class Pacer:
    """A controller that solves the period's problem anew at each quote (see the module).

    ValueError: `learned` is no such state.
    """

    name = "pacer"

    def __init__(
        self,
        supply: float,
        begins_s: float,
        ends_s: float,
        *,
        # When the controller begins, if within the period; None: at its beginning.
        now_s: float | None = None,
        # The `state` of an earlier period; None: no habits are known.
        learned: Mapping[str, Any] | None = None,
    ) -> None:
        self._supply = supply
        self._left = self._first_left = supply
        self._now_s = self._made_s = begins_s if now_s is None else now_s
        self._begins_s, self._ends_s = begins_s, ends_s
        self._period_s = max(ends_s - begins_s, 1.0)
        memory_s = _MEMORY * self._period_s
        if self._period_s >= DAY_S / 2:
            memory_s = max(memory_s, _DAILY_MEMORY_S)
        self._demand = Demand(memory_s)
        self._hours = Hours(memory_s)
        # Open choices (`waiting`): units by their saving, and the units that are used whatever is chosen.
        self._stock: dict[int, float] = {}
        self._stock_least = self._foreseen = 0.0
        self._unchosen = Unchosen(memory_s, self._period_s)
        # Of months there are too few, and in minutes the hours of a day cannot be told apart.
        self._shortfalls = Shortfalls(ends_s) if daily(self._period_s) else None
        self._weekdays = Weekdays() if self._period_s > _LONG_S else None
        # When the first choice came up, and the seconds from the first choice on in earlier periods.
        self._began_s: float | None = None
        self._known_s = 0.0
        # When something was used or asked for the first time, and what was left then.
        self._paced: tuple[float, float] | None = None
        if learned:
            self._resume(learned)

    def observe(self, now_s: float, left: float) -> None:
        # A supply that rose was refilled, or is measured better now: nothing was spent.
        elapsed_s = now_s - self._now_s
        spent = max(self._left - left, 0.0)
        self._left, self._now_s = left, now_s
        # A clock that stands or goes back teaches nothing.
        if elapsed_s <= 0.0:
            if self._demand.seen_s <= 0.0:
                self._first_left = left
            return
        if spent > 0.0 and self._paced is None:
            self._paced = now_s - elapsed_s, left + spent
        # The use that was foreseen belongs to choices. Only what goes beyond it teaches habits.
        self._foreseen, spent = max(self._foreseen - spent, 0.0), max(spent - self._foreseen, 0.0)
        # In a long period, time counts for the demand only from the first choice on.
        if self._began_s is not None or self._weekdays is None:
            usual_s = elapsed_s
            if self._weekdays is not None:
                usual_s = self._weekdays.usual_s(now_s - elapsed_s, now_s)
                self._weekdays.record(now_s, elapsed_s)
            self._demand.age(usual_s)
            self._hours.record(now_s, elapsed_s)
        # Learn the use without a choice, and how wrong its forecasts are.
        self._unchosen.record(now_s, elapsed_s, spent)
        if self._shortfalls is not None:
            expected, _ = self._unchosen.to_come(now_s, self._ends_s, 0.0)
            self._shortfalls.record(now_s, spent)
            self._shortfalls.forecast(now_s, expected, self._unchosen.usual(self._period_s))

    def on_choice(self, now_s: float, options: Sequence[Option], chosen: Option) -> None:
        if not options:
            return
        # The choice teaches demand, whatever was chosen.
        steps = increments(options)
        if steps and self._paced is None:
            self._paced = now_s, self._left
        if steps and self._began_s is None:
            self._begin(now_s)
        self._demand.add(steps)
        self._hours.add(now_s, sum([step.amount for step in steps]))
        if self._weekdays is not None and steps:
            # Weekdays count choices and not units: a month has too few large choices for that.
            self._weekdays.add(now_s, 1.0)
        # Even the most frugal option takes its units. Only what was chosen beyond them was a choice.
        more = chosen.amount - min(option.amount for option in options)
        self._unchosen.chosen(now_s, more)
        if self._shortfalls is not None:
            self._shortfalls.chosen(more)

    def _begin(self, now_s: float) -> None:
        """Begin at the first choice. If hardly anything was used before it, that time is no habit."""
        self._began_s, self._first_left = now_s, self._left
        if self._weekdays is not None and (
            self._unchosen.ever_used(self._period_s) < _CHATTER * self._supply
        ):
            self._unchosen = Unchosen(self._demand.memory_s, self._period_s)

    def waiting(self, choices: Sequence[Sequence[Option]]) -> None:
        self._stock, self._stock_least = {}, 0.0
        for options in choices:
            self._stock_least += min((option.amount for option in options), default=0.0)
            for step in with_prices(increments(options)):
                saved = bin_of(step.s_per_unit)
                self._stock[saved] = self._stock.get(saved, 0.0) + step.amount

    def foreseen(self, amount: float) -> None:
        """Keep so much of the next observed use out of habits: it belongs to `waiting` choices."""
        self._foreseen += amount

    def replace_supply(self, now_s: float, supply: float, ends_s: float) -> None:
        """Replace supply and end; habits and use stay."""
        self._left += supply - self._supply
        self._first_left += supply - self._supply
        if self._paced is not None:
            self._paced = self._paced[0], self._paced[1] + supply - self._supply
        self._supply, self._ends_s = supply, ends_s
        if self._shortfalls is not None:
            self._shortfalls.move_end(ends_s)
        self._period_s = max(ends_s - self._begins_s, 1.0)

    def quote(self, now_s: float) -> PacerQuote:
        quote, pace = self._quote(now_s), self._first_pace(now_s)
        if pace is None or plannable(self._left, self._supply) <= 0.0:
            return quote
        return replace(quote, rate=min(quote.rate, pace.price(0.0)), pace=pace)

    def _first_pace(self, now_s: float) -> FirstPace | None:
        """Return the bound of the price while little is known; None: enough is."""
        if self._paced is None or not self._begins_s <= now_s < self._ends_s or self._supply <= 0.0:
            return None
        began_s, first_left = self._paced
        since_s, all_s = now_s - began_s, self._ends_s - began_s
        # The bound vanishes after `_MEMORY` of the period was observed, in this or in earlier ones.
        unknown = 1.0 - (self._known_s + since_s) / (_MEMORY * all_s)
        span = _AHEAD * unknown * first_left
        if since_s < 0.0 or unknown <= 0.0 or span <= 0.0:
            return None
        return FirstPace(
            ahead=self._use_ahead(now_s),
            span=span,
            least=min(LEAST_S / self._supply, PROHIBITIVE),
            dear=min(all_s / first_left, PROHIBITIVE),
            most=plannable(self._left, self._supply) - self._stock_least,
        )

    def _use_ahead(self, now_s: float) -> float:
        """Return the units used beyond an even pace since the first use, and beyond a free share."""
        if self._paced is None:
            return 0.0
        began_s, first_left = self._paced
        # An even pace would have used `share` of the supply by now.
        share = (now_s - began_s) / max(self._ends_s - began_s, 1.0)
        return first_left - self._left - (share + _AHEAD_FREE) * first_left

    def _quote(self, now_s: float) -> PacerQuote:
        # 1. The plannable supply.
        left_s = self._ends_s - now_s
        planned = plannable(self._left, self._supply)
        if left_s <= 0.0 or planned <= 0.0 or self._supply <= 0.0:
            return PacerQuote(PROHIBITIVE)
        # 2. Set aside the use without a choice.
        usual_s = self._usual_s(now_s)
        unsure = 0.0
        if self._shortfalls is None:
            # What waits takes its least amount, whatever is chosen.
            capacity = planned - self._stock_least - self.set_aside(now_s, usual_s)
            capacity -= self._unknown(now_s, planned)
            if self._period_s > DAY_S:
                expected, _ = self._unchosen.to_come(now_s, self._ends_s, usual_s)
                unsure = _SURE_LONG * max(expected, self._unchosen.ever_used(usual_s))
        else:
            expected, lacked = self._forecast(now_s)
            # In a day, the units that will be needed are not sold at any price.
            planned = capacity = planned - self._stock_least - expected
            unsure = _SURE * lacked
            if capacity <= 0.0:
                return PacerQuote(PROHIBITIVE)
        # 3. In longer periods, units that are set aside are sold at a dear price. By that price the whole
        # supply is worth all seconds of the period, or of the rest of it if the budget was set late.
        dear = min(max(self._ends_s - self._made_s, 1.0) / self._supply, PROHIBITIVE)
        if capacity <= 0.0:
            return PacerQuote(dear, planned, 0.0, dear)
        # 4. Before any demand is known, the first units have the least price, and the rest is dear.
        least = min(LEAST_S / self._supply, PROHIBITIVE)
        if self._demand.seen_s < _FIRST * self._period_s and not self._stock:
            free = _FIRST * self._supply - (self._first_left - self._left)
            free = min(max(free, -self._use_ahead(now_s)), capacity)
            return PacerQuote(least if free > 0.0 else dear, planned, free, dear)
        # 5. On the first day of a long period no more is sold than its share.
        rationed = self._ration(now_s, planned)
        if rationed <= 0.0:
            return PacerQuote(dear, planned, 0.0, dear)
        # 6. The price at which the demand until the end just uses the capacity.
        known = curve(
            self._demand, self._shade_factor(left_s, usual_s) * usual_s, self._stock, least
        )
        rate = known.price(_counted_on(capacity, unsure))
        return PacerQuote(rate, planned, capacity, dear, known, unsure, min(rationed, capacity))

    def _shade_factor(self, left_s: float, usual_s: float) -> float:
        """Return the factor by which the expected demand is reduced."""
        if self._weekdays is not None:
            shaded = 1.0 - _DEVIATIONS / sqrt(1.0 + self._demand.lumps(usual_s))
            return max(_LEAST_SHADED, min(shaded, _MOST_SHADED))
        # A day's choices have come to their end before its night.
        end_s = usual_s if daily(self._period_s) else left_s
        end_in = min(end_s / (_END * self._period_s), 1.0)
        return _SHADED_AT_END + (_SHADED - _SHADED_AT_END) * end_in

    def _usual_s(self, now_s: float) -> float:
        """Return the seconds of usual use with as much use as from now to the end."""
        usual_s = self._hours.usual_s(now_s, self._ends_s)
        if self._weekdays is None or self._ends_s <= now_s:
            return usual_s
        return usual_s * self._weekdays.usual_s(now_s, self._ends_s) / (self._ends_s - now_s)

    def _unknown(self, now_s: float, planned: float) -> float:
        """Return the units kept for a use without a choice that may yet begin, while little is known."""
        if self._weekdays is None:
            return 0.0
        left_s = self._ends_s - now_s
        since_s = now_s - self._began_s if self._began_s is not None else 0.0
        # The more of the time was observed, the less likely is a use of a new kind.
        all_s = left_s + since_s
        seen = (self._known_s + since_s) / all_s
        return _UNKNOWN * planned * left_s / all_s / (1.0 + _UNKNOWN_SEEN * seen)

    def _ration(self, now_s: float, planned: float) -> float:
        """Return the units that may be sold on the first day: no more than its share."""
        if self._weekdays is None or self._began_s is None or self._known_s > DAY_S:
            return inf
        since_s = now_s - self._began_s
        if since_s >= DAY_S:
            return inf
        # The ration grows evenly over the first day, with a small part of it from the first moment on.
        share = since_s / (self._ends_s - self._began_s)
        return (_RATION * share + _FIRST) * self._first_left - (self._first_left - self._left)

    def set_aside(self, now_s: float, least_s: float = 0.0) -> float:
        """Return the units for the use without a choice until the end; see `Unchosen.to_come`."""
        if self._shortfalls is not None:
            expected, deviation = self._forecast(now_s)
        else:
            expected, deviation = self._unchosen.to_come(now_s, self._ends_s, least_s)
        return expected + _MARGIN * deviation

    def _forecast(self, now_s: float) -> tuple[float, float]:
        """Return a day's expected use without a choice until its end, and the likely shortfall."""
        assert self._shortfalls is not None
        expected, _ = self._unchosen.to_come(now_s, self._ends_s, 0.0)
        usual = self._unchosen.usual(self._period_s)
        return expected, self._shortfalls.deviation(now_s, expected, usual)

    def state(self) -> dict[str, Any]:
        """Return the learned habits as plain data for JSON; rates, and so valid for any supply."""
        return {
            "demand": {str(saved): amount for saved, amount in self._demand.amounts.items()},
            "seen_s": self._demand.seen_s,
            "sums": list(self._demand.sums),
            "hours": [self._hours.amounts, self._hours.seen_s],
            "unchosen": self._unchosen.state(),
            "weekdays": (
                None if self._weekdays is None else [self._weekdays.amounts, self._weekdays.seen_s]
            ),
            "known_s": self._known_s
            + (0.0 if self._began_s is None else max(self._now_s - self._began_s, 0.0)),
            "shortfalls": None if self._shortfalls is None else self._shortfalls.state(),
        }

    def _resume(self, learned: Mapping[str, Any]) -> None:
        # A damaged state, or one of another version, is refused as a whole.
        try:
            amounts = {int(saved): float(amount) for saved, amount in learned["demand"].items()}
            used, seconds = map(float, learned["sums"])
            seen_s = float(learned["seen_s"])
            self._demand = Demand(self._demand.memory_s, amounts, seen_s, (used, seconds))
            hours = [[float(each) for each in known] for known in learned["hours"]]
            self._hours = Hours(self._demand.memory_s, *hours)
            self._unchosen = Unchosen(self._demand.memory_s, self._period_s, learned["unchosen"])
            if self._weekdays is not None and learned["weekdays"]:
                days = [[float(each) for each in known] for known in learned["weekdays"]]
                self._weekdays = Weekdays(*days)
            self._known_s = float(learned["known_s"])
            if self._known_s > 0.0:
                self._began_s = self._now_s
            if self._shortfalls is not None and (shortfalls := learned["shortfalls"]) is not None:
                self._shortfalls = Shortfalls(self._ends_s, shortfalls)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ValueError(f"nothing that a pacer has learned: {error!r}") from error
