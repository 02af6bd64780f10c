"""What has to be carried by each deadline, held against what networks will have carried by then."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Final

from cedos.selector.deadlines.deadline_flow import DeadlineFlow
from cedos.selector.deadlines.network_state import NetworkState

_FIRST: Final = 8
_FARTHER: Final = 1.7

Waiting = tuple[NetworkState, float]
"""A network, and for how long it waits before it carries anything, seconds."""


@dataclass(frozen=True, slots=True)
class DeadlineDemand:
    """By deadline: seconds until then, and the bits of all flows that are wanted by then."""

    within_s: Sequence[float]
    bits: Sequence[float]

    @classmethod
    def of(cls, order: Sequence[DeadlineFlow], now: float) -> "DeadlineDemand":
        """`order`: by deadline."""
        return cls(
            [each.deadline_at_s - now for each in order],
            list(accumulate([8.0 * each.left_bytes for each in order])),
        )

    def short(self, networks: Sequence[Waiting], q: float) -> Iterator[int]:
        """Deadlines by which more is wanted than will have been carried, at this quantile.

        Of those that are not looked at themselves the worst one between two that are.
        """
        points = self._points(networks, q)
        before: tuple[int, float] | None = None
        for last, more in points:
            if before is not None:
                first, most = before
                # Nothing shrinks with time: what suffices for the first suffices for those between.
                if last > first + 1 and self.bits[last - 1] > most:
                    line = self._line(first, most, last, more)
                    over = [b - m for b, m in zip(self.bits[first + 1 : last], line, strict=True)]
                    worst = max(range(len(over)), key=over.__getitem__)
                    if over[worst] > 0.0:
                        yield first + 1 + worst
            if self.bits[last] > more:
                yield last
            before = last, more

    def most_bits(self, networks: Sequence[Waiting], q: float) -> list[float]:
        """What will have been carried by each deadline."""
        points = self._points(networks, q)
        found = [most for _, most in points[:1]]
        for (first, most), (last, more) in pairwise(points):
            found += self._line(first, most, last, more)
            found.append(more)
        return found

    def _points(self, networks: Sequence[Waiting], q: float) -> list[tuple[int, float]]:
        """At the first deadlines and at some of the others; those between lie on a line."""
        found: list[tuple[int, float]] = []
        most = 0.0
        for number in _looked_at(len(self.bits)):
            within_s = self.within_s[number]
            total = 0.0
            for network, wait_s in networks:
                total += network.supply.bits(within_s, q, wait_s)
            most = max(most, total)
            found.append((number, most))
        return found

    def _line(self, first: int, most: float, last: int, more: float) -> list[float]:
        from_s, to_s = self.within_s[first], self.within_s[last]
        slope = (more - most) / (to_s - from_s) if to_s > from_s else 0.0
        return [most + slope * (at_s - from_s) for at_s in self.within_s[first + 1 : last]]


@lru_cache(maxsize=64)
def _looked_at(count: int) -> tuple[int, ...]:
    found = list(range(min(count, _FIRST)))
    distance = 1.0
    while found and found[-1] < count - 1:
        distance *= _FARTHER
        found.append(min(found[-1] + int(distance) + 1, count - 1))
    return tuple(found)
