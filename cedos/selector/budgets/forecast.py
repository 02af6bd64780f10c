"""What a budget will have been used at its end, if it goes on as lately: a range, for people."""

from math import exp, sqrt
from typing import Final, NamedTuple

_BLOCKS: Final = 100
"""The period in pieces: what is used within one counts as one thing, as a download or an evening does."""
_MEMORY_BLOCKS: Final = 16.0
_MOST_SEED_BLOCKS: Final = 4.0
_WIDE: Final = 1.645
"""Deviations on either side of 90 %."""


class Expected(NamedTuple):
    """Units at the end: the likely use, and the 90 % range."""

    low: float
    likely: float
    high: float


class Forecast:
    """Of one period; before a hundredth of it was seen, there is none."""

    def __init__(self, begins_s: float, ends_s: float) -> None:
        self._block_s = (ends_s - begins_s) / _BLOCKS
        self._open = self._open_s = 0.0
        self._count = self._sum = self._squares = 0.0  # of blocks, fading

    def known(self, used: float, elapsed_s: float) -> None:
        """What was used of the period before this one was there; how evenly is not known.

        Nothing at all says only that it was not counted.
        """
        blocks = elapsed_s / self._block_s
        if used > 0.0 and blocks >= 1.0:
            mean, count = used / blocks, min(blocks, _MOST_SEED_BLOCKS)
            self._count, self._sum, self._squares = count, count * mean, 2.0 * count * mean**2

    def add(self, used: float, elapsed_s: float) -> None:
        blocks = min((self._open_s + elapsed_s) / self._block_s, float(_BLOCKS))
        if blocks < 1.0:
            self._open += used
            self._open_s += elapsed_s
            return
        # What came in one piece of news over several blocks is spread over them.
        block = (self._open + used) / blocks
        for _ in range(int(blocks)):
            fading = exp(-1.0 / _MEMORY_BLOCKS)
            self._count = fading * self._count + 1.0
            self._sum = fading * self._sum + block
            self._squares = fading * self._squares + block**2
        self._open, self._open_s = 0.0, 0.0

    def at_end(self, used: float, left_s: float) -> Expected | None:
        if self._count < 1.0:
            return None
        left = left_s / self._block_s
        mean = self._sum / self._count
        variance = max(self._squares / self._count - mean**2, 0.0)
        if self._count < 2.0:
            variance = max(variance, mean**2)  # one says nothing of how different they are
        likely = used + left * mean
        # The blocks to come differ, and the mean of those seen may be wrong for all of them.
        beside = _WIDE * sqrt(variance * left * (1.0 + left / self._count))
        return Expected(max(used, likely - beside), likely, likely + beside)
