"""The segments of a DASH list in ticks: runs of equal ones, however many, are never written out. Pure."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

_MOST_DIGITS: Final = 20
_KNOWN = frozenset({"t", "d", "r"})


def whole(attributes: Mapping[str, str], name: str, default: int | None = None) -> int:
    """A number of up to 20 digits; ValueError: it is none, or is not there and has no default."""
    text = attributes.get(name)
    if text is None and default is not None:
        return default
    if text is None or len(text) > _MOST_DIGITS or not (text.isascii() and text.isdigit()):
        raise ValueError(name)
    return int(text)


class _Run(NamedTuple):
    """`segments` of `length` ticks, which are the `first`th and so on; None: as many as come."""

    start: int
    length: int
    first: int
    segments: int | None

    def segment(self, place: int) -> tuple[int, int] | None:
        if self.segments is not None and place >= self.segments:
            return None
        return self.start + place * self.length, self.length


class SegmentRuns:
    """`at` by a segment's place in the list (from 0 on), `beginning` by its time.

    Both give when it begins, and how long it is; None: there is none.
    """

    def __init__(self, runs: list[_Run]) -> None:
        """ValueError: there are none, or a segment has no length, or begins no later than one before."""
        last = -1
        for run in runs:
            if run.length <= 0 or run.start <= last:
                raise ValueError("segments that cannot be")
            last = run.start + ((run.segments or 1) - 1) * run.length
        self._runs = runs
        self._starts = [run.start for run in runs]
        self._firsts = [run.first for run in runs]
        self.longest = max(run.length for run in runs)

    @classmethod
    def equal(cls, length: int) -> "SegmentRuns":
        """Each as long as the other, as many as come."""
        return cls([_Run(0, length, 0, None)])

    @classmethod
    def of_timeline(cls, listed: Iterable[Mapping[str, str]]) -> "SegmentRuns":
        """By the attributes of each `S`.

        ValueError: they are none. What nobody knows here may change what the others mean.
        """
        entries = list(listed)
        runs: list[_Run] = []
        start = first = 0
        for entry, following in zip(entries, [*entries[1:], None], strict=True):
            if not _KNOWN.issuperset(entry):
                raise ValueError("an attribute that nobody knows")
            start, length = whole(entry, "t", start), whole(entry, "d")
            count = None
            if entry.get("r") != "-1":
                count = whole(entry, "r", 0) + 1
            elif following is not None:
                count = -(-(whole(following, "t") - start) // max(length, 1))
            runs.append(_Run(start, length, first, count))
            if count is not None and count <= 0:
                raise ValueError("a run of nothing")
            start, first = start + (count or 0) * length, first + (count or 0)
        return cls(runs)

    def at(self, place: int) -> tuple[int, int] | None:
        number = bisect_right(self._firsts, place) - 1
        return None if number < 0 else self._runs[number].segment(place - self._firsts[number])

    def beginning(self, time: int) -> tuple[int, int] | None:
        number = bisect_right(self._starts, time) - 1
        if number < 0:
            return None
        place, rest = divmod(time - self._starts[number], self._runs[number].length)
        return None if rest else self._runs[number].segment(place)
