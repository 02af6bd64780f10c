"""The host's sleep, which the monotonic clock does not count: after it everything known is old."""

import time
from collections.abc import Callable

# The shortest sleep that counts. The two clocks are read one after the other.
_SHORTEST_S = 0.5


def _boottime_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SleepWatch:
    """A watch for sleep: time that CLOCK_BOOTTIME counts and CLOCK_MONOTONIC does not."""

    def __init__(
        self,
        monotonic_s: Callable[[], float] = time.monotonic,
        boottime_s: Callable[[], float] = _boottime_s,
    ) -> None:
        self._monotonic_s = monotonic_s
        self._boottime_s = boottime_s
        self._difference_s = boottime_s() - monotonic_s()

    def slept_s(self) -> float:
        """Return seconds slept since this was last asked; 0 where the host was awake."""
        difference_s = self._boottime_s() - self._monotonic_s()
        slept_s = difference_s - self._difference_s
        if slept_s < _SHORTEST_S:
            return 0.0
        self._difference_s = difference_s
        return slept_s
