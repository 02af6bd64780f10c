"""Which days of the week a resource is asked for: who is out at weekends only needs nothing on Monday."""

from collections.abc import Sequence
from math import exp

from cedos.selector.budgets.hours import DAY_S

_DAYS = 7
_AGING_S = DAY_S
_MEMORY_S = 8 * 7 * DAY_S
_PRIOR_DAYS = 0.5
"""Each weekday begins as if so many days of it had been like the mean of all."""
_IDLE, _IDLE_WEIGHT = 0.4, 0.05
"""Below so much of the mean it is an idle one, and counts as that part of a day. Finer differences are
noise: told apart, they cost 1.5 % of the seconds bought in usual months."""


class Weekdays:
    """How much of a week's use falls into each day; days are told by any clock, as their order counts.

    Args:
        amounts: units by weekday, of an earlier one; `seen_s`: the seconds over which these were seen.
    """

    def __init__(self, amounts: Sequence[float] = (), seen_s: Sequence[float] = ()) -> None:
        known = len(amounts) == len(seen_s) == _DAYS
        self.amounts = list(amounts) if known else [0.0] * _DAYS
        self.seen_s = list(seen_s) if known else [0.0] * _DAYS
        self._aging_s = 0.0
        self._weights: list[float] | None = None

    def passed(self, now_s: float, elapsed_s: float) -> None:
        """So many seconds have gone by until now."""
        self._aging_s += elapsed_s
        if self._aging_s >= _AGING_S:
            kept = exp(-self._aging_s / _MEMORY_S)
            self._aging_s = 0.0
            self.amounts = [kept * amount for amount in self.amounts]
            self.seen_s = [kept * seen_s for seen_s in self.seen_s]
            self._weights = None
        for day, part_s in _parts(now_s - elapsed_s, min(elapsed_s, _DAYS * DAY_S)):
            self.seen_s[day] += part_s

    def add(self, now_s: float, amount: float) -> None:
        self.amounts[_weekday(now_s)] += amount

    def usual_s(self, begin_s: float, end_s: float) -> float:
        """The seconds of usual days in which as much happens as between two instants."""
        weights = self._weights
        if weights is None:
            weights = self._weights = self._weigh()
        weeks, rest_s = divmod(max(end_s - begin_s, 0.0), _DAYS * DAY_S)
        rest_s = sum(weights[day] * part_s for day, part_s in _parts(begin_s, rest_s))
        return weeks * DAY_S * sum(weights) + rest_s

    def _weigh(self) -> list[float]:
        total_s = sum(self.seen_s)
        total = sum(self.amounts)
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


def _parts(begin_s: float, length_s: float) -> list[tuple[int, float]]:
    """A stretch of at most a week, cut at midnights: weekday and seconds of each part."""
    parts = []
    while length_s > 1e-6:
        part_s = min(length_s, DAY_S - begin_s % DAY_S)
        if part_s <= 1e-6:
            part_s = min(length_s, DAY_S)
        parts.append((_weekday(begin_s), part_s))
        begin_s += part_s
        length_s -= part_s
    return parts
