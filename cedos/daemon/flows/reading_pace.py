"""How fast a program takes what comes for it, where it and not the network sets the pace. Pure."""

from collections import deque

_HOLDS_S = 5.0
"""A program that was slower than its network is taken to be so for so long."""

_OVER_S = 30.0
"""Programs read in bursts (a player, a limited rate): the pace is that of so long."""

_LEAST_S = 1.0

_LEAST_LOOKS = 2
"""A single look may be the moment at which a gap in what came was filled."""


class ReadingPace:
    """Looks at a download. Between two at which its socket was full, as much was read as came."""

    def __init__(self) -> None:
        self._full: deque[tuple[float, int]] = deque()

    def observe(self, at_s: float, carried_bytes: int, *, unread: bool) -> None:
        """`unread`: its socket is full (`FlowSample.unread`)."""
        if self._full and at_s - self._full[-1][0] > _HOLDS_S:
            self._full.clear()
        if unread:
            self._full.append((at_s, carried_bytes))
            while self._full[0][0] < at_s - _OVER_S:
                self._full.popleft()

    def clear(self) -> None:
        """It carries something else now."""
        self._full.clear()

    def sets(self, now_s: float) -> bool:
        """Whether the program sets the pace."""
        return len(self._full) >= _LEAST_LOOKS and now_s - self._full[-1][0] <= _HOLDS_S

    def rate_bps(self, now_s: float) -> float | None:
        """The pace; None where the network sets it, or the program's is not known yet."""
        if not self.sets(now_s):
            return None
        (first_s, before), (last_s, after) = self._full[0], self._full[-1]
        if last_s - first_s < _LEAST_S or after <= before:
            return None
        return 8.0 * (after - before) / (last_s - first_s)
