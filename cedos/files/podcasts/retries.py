"""When an episode that did not come is tried again: pauses grow until more of it is here."""

import time
from typing import Final

_PAUSE_S: Final = 5.0
_LONGEST_S: Final = 300.0
_ENOUGH: Final = 4
"""So often in a row in vain: who does not stay leaves it to the next run."""


class Retries:
    """Attempts at one episode; of these, `failures` in a row brought nothing that is of use."""

    def __init__(self, have_bytes: int) -> None:
        self.failures = 0
        self._furthest_bytes = have_bytes
        self._again_s = 0.0

    @property
    def waits(self) -> bool:
        """Whether it is in its pause."""
        return time.monotonic() < self._again_s

    @property
    def enough(self) -> bool:
        return self.failures >= _ENOUGH

    def came(self, have_bytes: int) -> None:
        """So much is here now; what began anew is no gain before it is more than ever."""
        if have_bytes > self._furthest_bytes:
            self._furthest_bytes, self.failures = have_bytes, 0

    def failed(self) -> float:
        """One more in vain; how long the pause is, in seconds."""
        self.failures += 1
        # (A bound for the power, too: who stays may fail for years.)
        pause_s = min(_PAUSE_S * 2.0 ** min(self.failures - 1, 20), _LONGEST_S)
        self._again_s = time.monotonic() + pause_s
        return pause_s

    def anew(self) -> None:
        """Another network is there: what was in vain says nothing of it."""
        self.failures, self._again_s = 0, 0.0
