"""A rate with a burst. Pure: `now` is an argument."""

import math


class TokenBucket:
    """A bucket that gains `per_s` tokens a second, holds `burst` and begins full."""

    __slots__ = ("_at_s", "_left", "burst", "per_s")

    def __init__(self, per_s: float, burst: float, now: float) -> None:
        self.per_s, self.burst = per_s, burst
        self._left, self._at_s = burst, now

    def available(self, now: float) -> float:
        """Return the tokens that are left now. A clock that went back adds none."""
        passed = max(now - self._at_s, 0.0)
        self._left = min(self._left + passed * self.per_s, self.burst)
        self._at_s = now
        return self._left

    def take(self, now: float, count: float = 1) -> bool:
        """Take `count` tokens; return False where fewer are left."""
        if self.available(now) < count:
            return False
        self._left -= count
        return True

    @property
    def wait_s(self) -> float:
        """Seconds from the last `take` to the next token."""
        return max(1 - self._left, 0.0) / self.per_s if self.per_s else math.inf
