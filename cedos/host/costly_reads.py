"""Pauses between reads of the kernel's tables, which others can make long."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

# What takes less of the processor needs no pause.
_CHEAP_S: Final = 0.02
# The pause, in times of what the last read took, and the longest one.
_PAUSE, _LONGEST_S = 9.0, 10.0


class CostlyReads:
    """The pause before the next read of the kernel's tables.

    A neighbour can announce 100,000 prefixes, which take 0.2 s to read, and then come and go as a router
    50 times a second. So a pause follows each costly read: reads take a tenth of the time at most.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        processor: Callable[[], float] = time.thread_time,
    ) -> None:
        self._clock, self._processor = clock, processor
        self._not_before_s = 0.0

    @property
    def pause_s(self) -> float:
        return max(self._not_before_s - self._clock(), 0.0)

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Measure a read, whether or not it succeeds."""
        began_s = self._processor()
        try:
            yield
        finally:
            took_s = self._processor() - began_s
            if took_s > _CHEAP_S:
                self._not_before_s = self._clock() + min(_PAUSE * took_s, _LONGEST_S)
