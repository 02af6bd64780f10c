"""How long what came on a stream lasts the program that reads it. Pure."""

from collections import deque
from math import inf
from typing import Final

_LEAST_BYTES: Final = 256_000
"""Less waits on the way to a program that reads at once, too."""

_OVER_S: Final = 10.0
_EVERY_S: Final = 0.5
_LEAST_S: Final = 1.0
_COMES_S: Final = 2.0
_MOST_S: Final = 60.0


class Reading:
    """Looks at one stream now and then, and so at its program's pace over the last ten seconds."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, int]] = deque()
        self._received, self._came_s = 0, -inf

    def lasts_s(self, now_s: float, received: int, read: int) -> float | None:
        """For how long what waits lasts; None: nothing comes, and little waits.

        Args:
            received, read: bytes so far, of which the program took those read.
        """
        if received > self._received:
            self._received, self._came_s = received, now_s
        if not self._looks or now_s - self._looks[-1][0] >= _EVERY_S:
            self._looks.append((now_s, read))
        while len(self._looks) > 1 and self._looks[1][0] <= now_s - _OVER_S:
            self._looks.popleft()
        waits = received - read
        if waits < _LEAST_BYTES:
            return 0.0 if now_s - self._came_s < _COMES_S else None
        first_s, before = self._looks[0]
        if now_s - first_s < _LEAST_S:
            return 0.0
        if read <= before:
            return _MOST_S
        return min(waits * (now_s - first_s) / (read - before), _MOST_S)
