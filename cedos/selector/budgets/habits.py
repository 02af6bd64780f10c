"""Habits of use: hours of the day, days of the week, and the use without a choice.

`Hours` and `Weekdays` learn when a resource is asked for: a person who is out only at weekends
needs nothing on Monday. `Unchosen` forecasts how much will still be used without a choice in a
period, and how surely. It goes by the hours of a day, as choices do: in the evening most of a day's
use is over, and a reserve for an even night would be left over in the morning.
"""

from collections.abc import Mapping, Sequence
from math import exp, sqrt
from typing import Any

_HOURS = 24
_HOUR_S = 3600.0
DAY_S = _HOURS * _HOUR_S
_AGING_S = 3600.0
# The share of the weight that is spread evenly, because a day with one large download is no habit.
_EVEN = 0.25


class Hours:
    """The use of each hour of a day; any clock will do, as only hours count."""

    def __init__(
        self,
        memory_s: float,  # an observation of this age counts for 1/e
        amounts: Sequence[float] = (),  # units by hour, from an earlier object
        seen_s: Sequence[float] = (),  # the seconds of each hour over which these were seen
    ) -> None:
        known = len(amounts) == len(seen_s) == _HOURS
        self.amounts = list(amounts) if known else [0.0] * _HOURS
        self.seen_s = list(seen_s) if known else [0.0] * _HOURS
        self._memory_s = memory_s
        self._aging_s = 0.0

    def record(self, now_s: float, elapsed_s: float) -> None:
        """Record that so many seconds have passed until now."""
        # Old observations fade once an hour, and not at each call.
        self._aging_s += elapsed_s
        if self._aging_s >= _AGING_S:
            kept = exp(-self._aging_s / self._memory_s)
            self._aging_s = 0.0
            self.amounts = [kept * amount for amount in self.amounts]
            self.seen_s = [kept * seen_s for seen_s in self.seen_s]
        begin_s = now_s - min(elapsed_s, DAY_S)
        for hour, part_s in _parts_by_hour(begin_s, min(elapsed_s, DAY_S)):
            self.seen_s[hour] += part_s

    def add(self, now_s: float, amount: float) -> None:
        self.amounts[int(now_s % DAY_S // _HOUR_S)] += amount

    def usual_s(self, now_s: float, ends_s: float) -> float:
        """Return the seconds of a usual, even day with as much use as from now to the end."""
        left_s = ends_s - now_s
        total, total_s = sum(self.amounts), sum(self.seen_s)
        if total <= 0.0 or total_s <= 0.0 or left_s <= 0.0:
            return max(left_s, 0.0)
        # Hours that were not seen yet are taken to be like the others.
        busy = [
            max(amount, 0.0) / seen_s * total_s / total if seen_s > 0.0 else 1.0
            for amount, seen_s in zip(self.amounts, self.seen_s, strict=True)
        ]
        mean = sum(busy) / _HOURS
        if mean <= 0.0:
            return left_s
        # Whole days are all alike; the rest is weighted hour by hour.
        days, rest_s = divmod(left_s, DAY_S)
        rest_s = sum(
            part_s * ((1.0 - _EVEN) * busy[hour] / mean + _EVEN)
            for hour, part_s in _parts_by_hour(now_s, rest_s)
        )
        return days * DAY_S + rest_s


def _parts_by_hour(begin_s: float, length_s: float) -> list[tuple[int, float]]:
    """Cut a stretch of at most a day at full hours: hour of the day and seconds of each part."""
    parts, at_s = [], begin_s % DAY_S
    while length_s > 1e-9:
        step_s = min(length_s, _HOUR_S - at_s % _HOUR_S)
        if step_s <= 1e-9:  # what is left of an hour is less than floating point tells apart
            step_s = min(length_s, _HOUR_S)
        parts.append((int(at_s // _HOUR_S) % _HOURS, step_s))
        at_s += step_s
        length_s -= step_s
    return parts


_DAYS = 7
_MEMORY_S = 8 * 7 * DAY_S
# The weight in days of the mean of all weekdays at the start of each weekday's habit.
_PRIOR_DAYS = 0.5
# A weekday with a smaller share of the mean is an idle one, and counts as this part of a day.
# Finer differences are noise: telling them apart cost 1.5 % of the seconds bought in usual months.
_IDLE, _IDLE_WEIGHT = 0.4, 0.05


class Weekdays:
    """The use of each day of a week; any clock will do, as only the order of days counts.

    Args:
        amounts: units by weekday, of an earlier one; `seen_s`: the seconds over which these were seen.
    """

    def __init__(self, amounts: Sequence[float] = (), seen_s: Sequence[float] = ()) -> None:
        known = len(amounts) == len(seen_s) == _DAYS
        self.amounts = list(amounts) if known else [0.0] * _DAYS
        self.seen_s = list(seen_s) if known else [0.0] * _DAYS
        self._aging_s = 0.0
        self._weights: list[float] | None = None

    def record(self, now_s: float, elapsed_s: float) -> None:
        """Record that so many seconds have passed until now."""
        self._aging_s += elapsed_s
        if self._aging_s >= DAY_S:
            kept = exp(-self._aging_s / _MEMORY_S)
            self._aging_s = 0.0
            self.amounts = [kept * amount for amount in self.amounts]
            self.seen_s = [kept * seen_s for seen_s in self.seen_s]
            self._weights = None
        for day, part_s in _parts_by_day(now_s - elapsed_s, min(elapsed_s, _DAYS * DAY_S)):
            self.seen_s[day] += part_s

    def add(self, now_s: float, amount: float) -> None:
        self.amounts[_weekday(now_s)] += amount

    def usual_s(self, begin_s: float, end_s: float) -> float:
        """Return the seconds of usual days with as much use as between two instants."""
        weights = self._weights
        if weights is None:
            weights = self._weights = self._weigh()
        weeks, rest_s = divmod(max(end_s - begin_s, 0.0), _DAYS * DAY_S)
        rest_s = sum(weights[day] * part_s for day, part_s in _parts_by_day(begin_s, rest_s))
        return weeks * DAY_S * sum(weights) + rest_s

    def _weigh(self) -> list[float]:
        total_s = sum(self.seen_s)
        total = sum(self.amounts)
        # Less than a week was seen: all days are alike.
        if total <= 0.0 or total_s < (_DAYS - 1) * DAY_S:
            return [1.0] * _DAYS
        weights = []
        for amount, seen_s in zip(self.amounts, self.seen_s, strict=True):
            days = seen_s / DAY_S
            mean = amount / total * total_s / DAY_S  # days of the mean that came on these days
            idle = max(mean, 0.0) + _PRIOR_DAYS < _IDLE * (days + _PRIOR_DAYS)
            weights.append(_IDLE_WEIGHT if idle else 1.0)
        return weights


def _weekday(now_s: float) -> int:
    return int(now_s // DAY_S) % _DAYS


def _parts_by_day(begin_s: float, length_s: float) -> list[tuple[int, float]]:
    """Cut a stretch of at most a week at midnights: weekday and seconds of each part."""
    parts = []
    while length_s > 1e-6:
        part_s = min(length_s, DAY_S - begin_s % DAY_S)
        # What is left of the day is less than floating point tells apart: go on with a whole one.
        if part_s <= 1e-6:
            part_s = min(length_s, DAY_S)
        parts.append((_weekday(begin_s), part_s))
        begin_s += part_s
        length_s -= part_s
    return parts


# The number of parts of the period in which use is measured, for its variation.
_BLOCKS = 60

# The time whose use over the usual use tells how busy this day is.
_LATELY_S = DAY_S / 4

# Over weeks, this much of the use of these last days is expected to go on, if it is more than usual:
# a trip shows in it on its first day.
_FAST_S, _FAST_COUNTS = 1.5 * DAY_S, 0.8

# The time for which that ratio is assumed to hold.
_NEXT_S = DAY_S / 2

# The weight of the prior of usual use, in seconds. Shorter observations count for little.
_USUAL_S = DAY_S / 6

# Use in this first share of the period is not taken for a habit.
_FIRST = 1 / 100


def daily(period_s: float) -> bool:
    """Return whether a period is about a day, so that its hours differ."""
    return DAY_S / 2 <= period_s <= 2 * DAY_S


class Unchosen:
    """The use that no choice could have avoided, and its forecast. Amounts are units of the resource.

    Several sums of the same use fade at different speeds: the long memory gives the usual rate, the
    last hours say how busy this day is, and the last days show a new habit. Blocks measure its
    variation. KeyError, TypeError, ValueError, AttributeError: `learned` is no such state.
    """

    def __init__(
        self,
        memory_s: float,  # an observation of this age counts for 1/e
        period_s: float,  # of the budget
        learned: Mapping[str, Any] | None = None,  # the `state` of an earlier object
    ) -> None:
        self._memory_s = memory_s
        self._block_period_s = period_s / _BLOCKS
        self._first_s = _FIRST * period_s
        # The long memory: units, and the seconds in which they were used. Then the same without fading.
        self._used = self._seen_s = 0.0
        self._ever = self._ever_s = 0.0
        # The blocks: their number, sum and sum of squares, fading; and the block that is open.
        self._blocks = self._sum = self._squares = 0.0
        self._block = self._block_s = 0.0
        self._lately = self._lately_expected = 0.0
        self._fast = self._fast_s = 0.0
        self._fast_memory_s = _FAST_S if period_s > 2 * DAY_S else 0.0
        by_hour: list[list[float]] = []
        if learned is not None:
            self._used, self._seen_s = float(learned["used"]), float(learned["seen_s"])
            self._ever, self._ever_s = map(float, learned["ever"])
            self._blocks, self._sum, self._squares = map(float, learned["blocks"])
            by_hour = [[float(each) for each in known] for known in learned["hours"]]
        # In minutes the hours of a day cannot be told apart, and over weeks they do not matter.
        self._hours = Hours(memory_s, *by_hour) if daily(period_s) else None

    def record(self, now_s: float, elapsed_s: float, used: float) -> None:
        """Record the use in the seconds until now, chosen use included."""
        expected = self._per_s() * self._usual_s(now_s - elapsed_s, now_s)
        # The long memory: use and seconds fade together.
        kept = exp(-elapsed_s / self._memory_s)
        self._used = kept * self._used + used
        self._seen_s = kept * self._seen_s + self._memory_s * (1.0 - kept)
        self._ever += used
        self._ever_s += elapsed_s
        if self._hours is not None:
            self._hours.record(now_s, elapsed_s)
            self._hours.add(now_s - elapsed_s / 2.0, used)
        # The last days, over longer periods.
        if self._fast_memory_s:
            kept = exp(-elapsed_s / self._fast_memory_s)
            self._fast = kept * self._fast + used
            self._fast_s = kept * self._fast_s + self._fast_memory_s * (1.0 - kept)
        # The last hours, beside what was expected of them.
        kept = exp(-elapsed_s / _LATELY_S)
        self._lately = kept * self._lately + used
        self._lately_expected = kept * self._lately_expected + expected
        self._block += used
        self._block_s += elapsed_s
        if self._block_s >= self._block_period_s:
            self._end_block(now_s)

    def chosen(self, now_s: float, amount: float) -> None:
        """Record that so much of the use was a choice."""
        self._used -= amount
        self._ever -= amount
        self._lately -= amount
        self._fast -= amount
        self._block -= amount
        if self._hours is not None:
            self._hours.add(now_s, -amount)

    def to_come(self, now_s: float, ends_s: float, least_s: float) -> tuple[float, float]:
        """Return the units that are expected between two instants, and their standard deviation.

        `least_s`: the seconds that count at least if the hours of a day are not told apart.
        """
        usual_s = self._usual_s(now_s, ends_s)
        if self._hours is None:
            usual_s = max(usual_s, least_s)
        next_s = self._usual_s(now_s, min(now_s + _NEXT_S, ends_s))
        # The next half day is as busy as the last hours were.
        busy_s = usual_s + (self._busy() - 1.0) * next_s
        expected = self._per_s() * busy_s
        if self._fast_memory_s:
            # A new habit, such as a trip, raises the forecast at once.
            fast = max(self._fast, 0.0) / max(self._fast_s, self._first_s)
            expected = max(expected, _FAST_COUNTS * fast * busy_s)
        return expected, sqrt(self._variance() * usual_s / self._block_period_s)

    def ever_used(self, seconds: float) -> float:
        """Return the units in so many seconds by all observations, however old: no new habit lasts."""
        return max(self._ever, 0.0) / max(self._ever_s, self._first_s) * seconds

    def usual(self, seconds: float) -> float:
        """Return the units of so many seconds at the usual rate, whatever the hours."""
        return self._per_s() * seconds

    def state(self) -> dict[str, Any]:
        hours = self._hours
        return {
            "used": self._used,
            "ever": [self._ever, self._ever_s],
            "seen_s": self._seen_s,
            "blocks": [self._blocks, self._sum, self._squares],
            "hours": [] if hours is None else [hours.amounts, hours.seen_s],
        }

    def _per_s(self) -> float:
        return max(self._used, 0.0) / max(self._seen_s, self._first_s)

    def _busy(self) -> float:
        """Return the use of the last hours over what was expected of them."""
        usual = self._per_s() * _USUAL_S
        expected = self._lately_expected + usual
        if self._hours is None or expected <= 0.0:
            return 1.0
        return (max(self._lately, 0.0) + usual) / expected

    def _usual_s(self, now_s: float, ends_s: float) -> float:
        if self._hours is None:
            return max(ends_s - now_s, 0.0)
        return self._hours.usual_s(now_s, ends_s)

    def _end_block(self, now_s: float) -> None:
        """Close a block: record its difference from the forecast of these hours, or its size."""
        kept = exp(-self._block_s / self._memory_s)
        expected = 0.0
        if self._hours is not None:
            expected = self._per_s() * self._usual_s(now_s - self._block_s, now_s)
        each = (max(self._block, 0.0) - expected) * self._block_period_s / self._block_s
        self._blocks = kept * self._blocks + 1.0
        self._sum = kept * self._sum + each
        self._squares = kept * self._squares + each * each
        self._block = self._block_s = 0.0

    def _variance(self) -> float:
        if self._blocks < 1.0:
            return 0.0
        mean = self._sum / self._blocks
        return max(self._squares / self._blocks - mean * mean, 0.0)
