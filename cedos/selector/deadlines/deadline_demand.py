"""What has to be carried by each deadline, held against what networks will have carried by then."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, compress, pairwise
from operator import itemgetter, sub
from typing import Final

from cedos.selector.deadlines.deadline_flow import DeadlineFlow
from cedos.selector.deadlines.network_state import NetworkState

DEADLINE: Final = itemgetter(DeadlineFlow._fields.index("deadline_at_s"))
LEFT: Final = itemgetter(DeadlineFlow._fields.index("left_bytes"))
"""Of a thousand flows: an attribute by its name takes twice as long."""

_FIRST: Final = 8
_FARTHER: Final = 1.7

Waiting = tuple[NetworkState, float]
"""A network, and for how long it waits before it carries anything, seconds."""

Point = tuple[int, float]
"""A deadline's number, and the bytes that will have been carried by then."""


@dataclass(frozen=True, slots=True)
class DeadlineDemand:
    """By deadline: when it is, the bytes of its flow, and those of all flows that are wanted by then."""

    at_s: Sequence[float]
    left_bytes: Sequence[float]
    bytes_by_then: Sequence[float]
    now: float

    @classmethod
    def of(cls, order: Sequence[DeadlineFlow], now: float) -> "DeadlineDemand":
        """`order`: by deadline."""
        left_bytes = list(map(LEFT, order))
        return cls(list(map(DEADLINE, order)), left_bytes, list(accumulate(left_bytes)), now)

    def only(self, stays: Sequence[int]) -> "DeadlineDemand":
        """Of the flows whose number has a 1."""
        left_bytes = list(compress(self.left_bytes, stays))
        at_s = list(compress(self.at_s, stays))
        return DeadlineDemand(at_s, left_bytes, list(accumulate(left_bytes)), self.now)

    def within_s(self, number: int) -> float:
        return self.at_s[number] - self.now

    def bits(self, number: int) -> float:
        return 8.0 * self.bytes_by_then[number]

    def short(self, points: Sequence[Point]) -> Iterator[int]:
        """Deadlines by which more is wanted than will have been carried.

        Of those that are not looked at themselves the worst one between two that are.
        """
        wanted = self.bytes_by_then
        before: tuple[int, float] | None = None
        for last, more in points:
            if before is not None:
                first, most = before
                # Nothing shrinks with time: what suffices for the first suffices for those between.
                if last > first + 1 and wanted[last - 1] > most:
                    line = self._line(first, most, last, more)
                    over = list(map(sub, wanted[first + 1 : last], line))
                    worst = max(range(len(over)), key=over.__getitem__)
                    if over[worst] > 0.0:
                        yield first + 1 + worst
            if wanted[last] > more:
                yield last
            before = last, more

    def most_bytes(self, points: Sequence[Point]) -> list[float]:
        """What will have been carried by each deadline."""
        found = [most for _, most in points[:1]]
        for (first, most), (last, more) in pairwise(points):
            found += self._line(first, most, last, more)
            found.append(more)
        return found

    def points(self, networks: Sequence[Waiting], q: float) -> list[Point]:
        """What will have been carried at this quantile by the first deadlines, and by some of the others.

        By those between as much as lies on the line.
        """
        found: list[Point] = []
        most = 0.0
        for number in _looked_at(len(self.at_s)):
            within_s = self.at_s[number] - self.now
            bits = 0.0
            for network, wait_s in networks:
                bits += network.supply.bits(within_s, q, wait_s)
            most = max(most, bits / 8.0)
            found.append((number, most))
        return found

    def _line(self, first: int, most: float, last: int, more: float) -> list[float]:
        from_s, to_s = self.at_s[first], self.at_s[last]
        slope = (more - most) / (to_s - from_s) if to_s > from_s else 0.0
        at_zero = most - slope * from_s
        return [at_zero + slope * at_s for at_s in self.at_s[first + 1 : last]]


@lru_cache(maxsize=64)
def _looked_at(count: int) -> tuple[int, ...]:
    found = list(range(min(count, _FIRST)))
    distance = 1.0
    while found and found[-1] < count - 1:
        distance *= _FARTHER
        found.append(min(found[-1] + int(distance) + 1, count - 1))
    return tuple(found)
