"""When an episode that did not come is tried again: ever more seldom, until its deadline has passed."""

import time
from typing import Final

_PAUSE_S: Final = 5.0
_LONGEST_S: Final = 3600.0
_SOON_S: Final = 300.0
"""No pause that is longer than this is longer than half of what is left until the deadline."""

_ENOUGH: Final = 4
"""So often in a row in vain, and its deadline passed: who does not stay leaves it to the next run."""


class Retries:
    """Attempts at one episode; of these, `failures` in a row brought nothing that is of use."""

    def __init__(self, have_bytes: int, by_unix_s: float) -> None:
        self.failures = 0
        self._furthest_bytes, self._by_unix_s = have_bytes, by_unix_s
        self._again_s = 0.0

    @property
    def again_unix_s(self) -> float | None:
        """When its pause is over; None: it is in none."""
        left_s = self._again_s - _clock_s()
        return time.time() + left_s if left_s > 0.0 else None

    @property
    def enough(self) -> bool:
        return self.failures >= _ENOUGH and time.time() >= self._by_unix_s

    @property
    def rounds(self) -> int:
        """How many times it has failed as often as would be enough."""
        return self.failures // _ENOUGH

    def came(self, have_bytes: int) -> None:
        """So much is here now; what began anew is no gain before it is more than ever."""
        if have_bytes > self._furthest_bytes:
            self._furthest_bytes, self.failures = have_bytes, 0

    def failed(self) -> float:
        """One more in vain; how long the pause is, in seconds."""
        self.failures += 1
        left_s = self._by_unix_s - time.time()
        longest_s = min(max(left_s / 2.0, _SOON_S), _LONGEST_S)
        # (A bound for the power, too: who stays may fail for years.)
        pause_s = min(_PAUSE_S * 2.0 ** min(self.failures - 1, 20), longest_s)
        self._again_s = _clock_s() + pause_s
        return pause_s

    def anew(self) -> None:
        """Another network is there: what was in vain says nothing of it."""
        self.failures, self._again_s = 0, 0.0


def _clock_s() -> float:
    """What a host sleeps away counts."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
