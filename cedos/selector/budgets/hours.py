"""When things happen: the hours of the day in which a resource is asked for."""

from collections.abc import Sequence
from math import exp

_HOURS = 24
_HOUR_S = 3600.0
DAY_S = _HOURS * _HOUR_S
_AGING_S = 3600.0
_EVEN = 0.25
"""So much of the weight is spread evenly: a day with one large download is not a habit."""


class Hours:
    """How much of a day's use falls into each hour; days are told by any clock, as only hours count.

    Args:
        memory_s: after so long an observation counts for 1/e.
        amounts: units by hour, of an earlier one.
        seen_s: the seconds of each hour over which these were seen.
    """

    def __init__(
        self, memory_s: float, amounts: Sequence[float] = (), seen_s: Sequence[float] = ()
    ) -> None:
        known = len(amounts) == len(seen_s) == _HOURS
        self.amounts = list(amounts) if known else [0.0] * _HOURS
        self.seen_s = list(seen_s) if known else [0.0] * _HOURS
        self._memory_s = memory_s
        self._aging_s = 0.0

    def passed(self, now_s: float, elapsed_s: float) -> None:
        """So many seconds have gone by until now."""
        self._aging_s += elapsed_s
        if self._aging_s >= _AGING_S:
            kept = exp(-self._aging_s / self._memory_s)
            self._aging_s = 0.0
            self.amounts = [kept * amount for amount in self.amounts]
            self.seen_s = [kept * seen_s for seen_s in self.seen_s]
        begin_s = now_s - min(elapsed_s, DAY_S)
        for hour, part_s in _parts(begin_s, min(elapsed_s, DAY_S)):
            self.seen_s[hour] += part_s

    def add(self, now_s: float, amount: float) -> None:
        self.amounts[int(now_s % DAY_S // _HOUR_S)] += amount

    def usual_s(self, now_s: float, ends_s: float) -> float:
        """The seconds of a usual, even day in which as much happens as from now to the end."""
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
        days, rest_s = divmod(left_s, DAY_S)
        rest_s = sum(
            part_s * ((1.0 - _EVEN) * busy[hour] / mean + _EVEN)
            for hour, part_s in _parts(now_s, rest_s)
        )
        return days * DAY_S + rest_s


def _parts(begin_s: float, length_s: float) -> list[tuple[int, float]]:
    """A stretch of at most a day, cut at full hours: hour of the day and seconds of each part."""
    parts, at_s = [], begin_s % DAY_S
    while length_s > 1e-9:
        step_s = min(length_s, _HOUR_S - at_s % _HOUR_S)
        if step_s <= 1e-9:  # what is left of an hour is less than floating point tells apart
            step_s = min(length_s, _HOUR_S)
        parts.append((int(at_s // _HOUR_S) % _HOURS, step_s))
        at_s += step_s
        length_s -= step_s
    return parts
