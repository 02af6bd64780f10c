"""The wall clock, as far as what others left here may expire by it."""

import time
from collections.abc import Callable


def _wall_s() -> float:
    return time.time()


def _since_boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class UnhurriedClock:
    """Unix seconds that go no faster than time, with the host's sleep.

    A clock that is set forward (by a lying time server, say) and back again would end all sessions that
    sleep, and remove uploads that wait for their clients, long before their time.
    """

    def __init__(
        self,
        wall: Callable[[], float] = _wall_s,
        steady: Callable[[], float] = _since_boot_s,
    ) -> None:
        self._wall, self._steady = wall, steady
        self._began_s = wall() - steady()

    def now_s(self) -> float:
        return min(self._wall(), self._began_s + self._steady())
