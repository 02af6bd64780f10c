"""Bounds of what others may ask for: a rate with a burst, and a table with a share for each user.

Pure: `now` is an argument.
"""

import math
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

# Users from here on count together: they may be subordinate numbers, of which one user has many.
SUBORDINATE: Final = 1 << 16


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

    def charge(self, now: float, count: float) -> None:
        """Take `count` tokens, also such as are not there: they are owed."""
        self.available(now)
        self._left -= count

    @property
    def wait_s(self) -> float:
        """Seconds from the last `take` to the next token."""
        return max(1 - self._left, 0.0) / self.per_s if self.per_s else math.inf


Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class UsersTable(Generic[Key, Value]):
    """A table that this host's users fill: beyond `most` entries the user who has most loses the oldest.

    What several have put lasts as long as one of them keeps it; the newest value counts.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._of_user: dict[int, dict[Key, None]] = {}  # the oldest first
        self._holders: dict[Key, dict[int, Value]] = {}  # the newest last

    def __contains__(self, key: Key) -> bool:
        return key in self._holders

    def __len__(self) -> int:
        return sum(map(len, self._of_user.values()))

    def get(self, key: Key) -> Value | None:
        holders = self._holders.get(key)
        return None if holders is None else next(reversed(holders.values()))

    def user_of(self, key: Key) -> int | None:
        """Return who has put the newest value there."""
        holders = self._holders.get(key)
        return None if holders is None else next(reversed(holders))

    def put(self, key: Key, value: Value, user: int) -> None:
        """Add or renew an entry for a user."""
        self._pop(key, user)
        self._of_user.setdefault(user, {})[key] = None
        self._holders.setdefault(key, {})[user] = value
        if len(self) > self._most:
            most, held = max(self._of_user.items(), key=lambda each: len(each[1]))
            self._pop(next(iter(held)), most)

    def pop(self, key: Key) -> None:
        """Remove what all users have put there, if anything."""
        for user in list(self._holders.get(key, ())):
            self._pop(key, user)

    def _pop(self, key: Key, user: int) -> None:
        if user not in self._holders.get(key, ()):
            return
        del self._holders[key][user], self._of_user[user][key]
        if not self._holders[key]:
            del self._holders[key]
        if not self._of_user[user]:
            del self._of_user[user]
