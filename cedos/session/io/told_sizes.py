"""What somebody said is about to be carried, by label and direction, for as long as it counts."""

from collections import deque
from dataclasses import dataclass
from typing import Final

from cedos.model import Direction
from cedos.session.protocol.schedulers.interface import LABELS

MOST_TOLD_BYTES: Final = 10**12
"""Whoever promises more is not believed, and a daemon refuses questions about absurd sizes."""

_PARTS: Final = 8
"""What is told within such a part of the time counts as told at once: so there is a bound to it."""


@dataclass(slots=True)
class _Told:
    at_s: float
    by_rank: dict[Direction, list[int]]


class ToldSizes:
    """`add` what is told; `bytes_by_rank` of what was told within `valid_s`."""

    def __init__(self, valid_s: float) -> None:
        self._valid_s = valid_s
        self._parts: deque[_Told] = deque(maxlen=_PARTS)

    def add(self, now: float, rank: int, size_bytes: int, direction: Direction) -> None:
        if not self._parts or now - self._parts[-1].at_s >= self._valid_s / _PARTS:
            self._parts.append(_Told(now, _nothing()))
        self._parts[-1].by_rank[direction][rank] += size_bytes

    def bytes_by_rank(self, now: float) -> dict[Direction, list[int]]:
        while self._parts and now - self._parts[0].at_s >= self._valid_s:
            self._parts.popleft()
        found = _nothing()
        for part in self._parts:
            for direction, sizes in part.by_rank.items():
                for rank, size in enumerate(sizes):
                    found[direction][rank] = min(found[direction][rank] + size, MOST_TOLD_BYTES)
        return found


def _nothing() -> dict[Direction, list[int]]:
    return {direction: [0] * len(LABELS) for direction in Direction}
