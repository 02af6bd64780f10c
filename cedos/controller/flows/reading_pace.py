"""Measure how fast a program reads if the program and not the network sets the pace. Pure."""

# A program that was slower than its network counts as slow for this time.
_HOLDS_S = 5.0

# At so many of the looks of so long a time. (A program may stop for a moment; and when a gap in
# what came is filled, all of it waits for an instant.)
_SHARE, _SHARE_S = 0.5, 10.0

# The time over which a program's pace is measured, because programs read in bursts (a player, a
# limited rate).
_OVER_S = 30.0

_LEAST_S = 1.0
_LEAST_LOOKS = 2


class ReadingPace:
    """Looks at a download. Between two at which its socket was full, as much was read as came."""

    __slots__ = ("_full", "_looks")  # each flow has one, and most have nothing in it

    def __init__(self) -> None:
        self._looks: list[tuple[float, bool]] = []  # none before the first full one
        self._full: list[tuple[float, int]] = []

    def observe(self, at_s: float, carried_bytes: int, *, unread: bool) -> None:
        """Note what has been read; `unread`: the socket is full (`FlowSample.unread`)."""
        if self._full and at_s - self._full[-1][0] > _HOLDS_S:
            self.clear()
        if unread:
            self._full.append((at_s, carried_bytes))
            while self._full[0][0] < at_s - _OVER_S:
                del self._full[0]
        if self._full:
            self._looks.append((at_s, unread))
            while self._looks[0][0] < at_s - _SHARE_S:
                del self._looks[0]

    @property
    def known(self) -> bool:
        """Return whether anything was noted that a further look changes."""
        return bool(self._full or self._looks)

    def clear(self) -> None:
        """Begin anew: the flow carries something else now, or the network sets the pace."""
        self._full.clear()
        self._looks.clear()

    def sets(self, now_s: float) -> bool:
        """Return whether the program sets the pace."""
        full = sum(unread for _, unread in self._looks)
        if full < max(_LEAST_LOOKS, _SHARE * len(self._looks)):
            return False
        return now_s - self._full[-1][0] <= _HOLDS_S

    def rate_bps(self, now_s: float) -> float | None:
        """Return the program's pace, 0 if it reads nothing; None if unknown or set by the network."""
        if not self.sets(now_s):
            return None
        (first_s, before), (last_s, after) = self._full[0], self._full[-1]
        if last_s - first_s < _LEAST_S:
            return None
        return 8.0 * max(after - before, 0) / (last_s - first_s)
