"""What is used without a choice: how much of it is still to come in a period, and how surely.

It goes by the hours of a day, as choices do: in the evening most of a day's use is over, and what would
be set aside for an even night is left over in the morning.
"""

from collections.abc import Mapping
from math import exp, sqrt
from typing import Any

from cedos.selector.budgets.hours import DAY_S, Hours

_BLOCKS = 60
"""In so many parts of the period the use is told apart, for its ups and downs."""

_LATELY_S = DAY_S / 4
"""Some days are busier than others: what was used in these last hours, over what is usual in them, is
taken to hold for the next ones, too."""

_FAST_S, _FAST_COUNTS = 1.5 * DAY_S, 0.8
"""Over weeks, this much of the use of these last days is expected to go on, if it is more than usual:
a trip shows in it on its first day."""

_NEXT_S = DAY_S / 2
"""For so long."""

_USUAL_S = DAY_S / 6
"""It is not believed before it has been seen for so long: it begins as if that much had been as usual."""

_FIRST = 1 / 100
"""A use in the first moments, in this share of the period, is not taken for a habit."""


def daily(period_s: float) -> bool:
    """Whether a period is about a day, so that its hours are not alike."""
    return DAY_S / 2 <= period_s <= 2 * DAY_S


class Unchosen:
    """See the module. Amounts are units of the resource.

    Args:
        memory_s: after so long an observation counts for 1/e.
        period_s: of the budget.
        learned: what an earlier one's `state` says.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: `learned` is no such state.
    """

    def __init__(
        self, memory_s: float, period_s: float, learned: Mapping[str, Any] | None = None
    ) -> None:
        self._memory_s = memory_s
        self._block_period_s = period_s / _BLOCKS
        self._first_s = _FIRST * period_s
        self._used = self._seen_s = 0.0
        self._ever = self._ever_s = 0.0
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

    def passed(self, now_s: float, elapsed_s: float, used: float) -> None:
        """So much was used in the seconds until now, what was chosen included."""
        expected = self._per_s() * self._usual_s(now_s - elapsed_s, now_s)
        kept = exp(-elapsed_s / self._memory_s)
        self._used = kept * self._used + used
        self._seen_s = kept * self._seen_s + self._memory_s * (1.0 - kept)
        self._ever += used
        self._ever_s += elapsed_s
        if self._hours is not None:
            self._hours.passed(now_s, elapsed_s)
            self._hours.add(now_s - elapsed_s / 2.0, used)
        if self._fast_memory_s:
            kept = exp(-elapsed_s / self._fast_memory_s)
            self._fast = kept * self._fast + used
            self._fast_s = kept * self._fast_s + self._fast_memory_s * (1.0 - kept)
        kept = exp(-elapsed_s / _LATELY_S)
        self._lately = kept * self._lately + used
        self._lately_expected = kept * self._lately_expected + expected
        self._block += used
        self._block_s += elapsed_s
        if self._block_s >= self._block_period_s:
            self._end_block(now_s)

    def chosen(self, now_s: float, amount: float) -> None:
        """So much of what is used is a choice."""
        self._used -= amount
        self._ever -= amount
        self._lately -= amount
        self._fast -= amount
        self._block -= amount
        if self._hours is not None:
            self._hours.add(now_s, -amount)

    def to_come(self, now_s: float, ends_s: float, least_s: float) -> tuple[float, float]:
        """Units that are expected between two instants, and the standard deviation of that.

        Where hours are not told apart, they are taken for at least `least_s`.
        """
        usual_s = self._usual_s(now_s, ends_s)
        if self._hours is None:
            usual_s = max(usual_s, least_s)
        next_s = self._usual_s(now_s, min(now_s + _NEXT_S, ends_s))
        busy_s = usual_s + (self._busy() - 1.0) * next_s
        expected = self._per_s() * busy_s
        if self._fast_memory_s:
            fast = max(self._fast, 0.0) / max(self._fast_s, self._first_s)
            expected = max(expected, _FAST_COUNTS * fast * busy_s)
        return expected, sqrt(self._variance() * usual_s / self._block_period_s)

    def ever(self, seconds: float) -> float:
        """Units in so many seconds by all that was ever seen, however long ago: no new habit lasts."""
        return max(self._ever, 0.0) / max(self._ever_s, self._first_s) * seconds

    def usual(self, seconds: float) -> float:
        """Units that are usual in so many seconds, of whatever hours."""
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
        """What was used lately over what is usual."""
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
        """Its difference from what was expected of these hours, or its size."""
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
