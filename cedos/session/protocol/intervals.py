"""Sets of positions as intervals: received, acknowledged or delivered ones.

All intervals are half-open, `start <= position < end`. Everything else in a session follows from these
sets: an extent may come over any path any number of times, and only what is new in it counts.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class IntervalSet:
    """Disjoint, ascending intervals that do not touch; a binary search each, O(1) behind the last."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._ends, strict=True)

    @property
    def top(self) -> int:
        """Return the position behind the highest one; the set must not be empty."""
        return self._ends[-1]

    def add(self, start: int, end: int) -> None:
        if start >= end:
            return
        starts, ends = self._starts, self._ends
        if not ends or start > ends[-1]:
            starts.append(start)
            ends.append(end)
            return
        first = bisect_left(ends, start)  # the first that touches or overlaps
        behind = bisect_right(starts, end)  # the first that lies wholly behind
        if first < behind:
            start = min(start, starts[first])
            end = max(end, ends[behind - 1])
        starts[first:behind] = [start]
        ends[first:behind] = [end]

    def covers(self, start: int, end: int) -> bool:
        if start >= end:
            return True
        at = bisect_right(self._starts, start) - 1
        return at >= 0 and self._ends[at] >= end

    def touches(self, start: int, end: int) -> bool:
        """Return whether an interval would join others, and not be one more."""
        at = bisect_left(self._ends, start)
        return at < len(self._starts) and self._starts[at] <= end

    def missing(self, start: int, end: int) -> list[tuple[int, int]]:
        # Walk from the first interval that ends behind `start`; the holes lie between the intervals.
        holes = []
        for at in range(bisect_right(self._ends, start), len(self._starts)):
            if self._starts[at] >= end:
                break
            if start < self._starts[at]:
                holes.append((start, self._starts[at]))
            start = self._ends[at]
        if start < end:
            holes.append((start, end))
        return holes

    def absorb(self, floor: int) -> int:
        """Remove intervals that begin at or below `floor`; return the end of the last one, or `floor`."""
        count = bisect_right(self._starts, floor)
        if count:
            floor = max(floor, self._ends[count - 1])
            del self._starts[:count], self._ends[:count]
        return floor


class CumulativeSet:
    """A set that fills up from below: everything under `floor`, and the intervals `beyond` it."""

    __slots__ = ("beyond", "floor")

    def __init__(self, floor: int = 0) -> None:
        self.floor = floor
        self.beyond = IntervalSet()

    def add(self, start: int, end: int) -> None:
        if start > self.floor:
            # A run that reaches the floor raises it, and with it all intervals that touch it then.
            self.beyond.add(start, end)
        elif end > self.floor:
            self.floor = self.beyond.absorb(end) if self.beyond else end

    @property
    def top(self) -> int:
        return self.beyond.top if self.beyond else self.floor

    def covers(self, start: int, end: int) -> bool:
        return end <= self.floor or self.beyond.covers(max(start, self.floor), end)

    def missing(self, start: int, end: int) -> list[tuple[int, int]]:
        return self.beyond.missing(max(start, self.floor), end)
