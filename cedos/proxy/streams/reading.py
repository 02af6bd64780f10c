"""How long what came on a stream lasts the program that reads it. Pure."""

from collections import deque
from typing import Final

ENOUGH_BYTES: Final = 256_000
"""Less waits on the way to a program that reads at once, too."""

_COMES_BYTES, _COMES_S = 32_000, 2.0
"""What brings less in this time (a conversation) is not waited for with the large data."""

_EVERY_S: Final = 0.5
_OVER_S: Final = 10.0
_LEAST_S: Final = 1.0
_MOST_S: Final = 60.0
_FORGOTTEN_S: Final = 5.0
"""Nobody looks while nothing goes: what was before says nothing of the pace."""


class Reading:
    """Looks at one stream now and then, and so at its program's pace over the last ten seconds."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, int, int]] = deque()

    def lasts_s(self, now_s: float, received: int, read: int) -> float | None:
        """For how long what waits lasts; None: next to nothing comes, and little waits.

        Args:
            received, read: bytes so far, of which the program took those read.
        """
        looks = self._looks
        if looks and now_s - looks[-1][0] > _FORGOTTEN_S:
            looks.clear()
        if not looks or now_s - looks[-1][0] >= _EVERY_S:
            looks.append((now_s, received, read))
        while len(looks) > 1 and looks[1][0] <= now_s - _OVER_S:
            looks.popleft()
        waits = received - read
        if waits < ENOUGH_BYTES:
            before = next((came for at_s, came, _ in looks if at_s >= now_s - _COMES_S), received)
            return 0.0 if received - before >= _COMES_BYTES else None
        first_s, _, before = looks[0]
        if now_s - first_s < _LEAST_S:
            return 0.0
        if read <= before:
            return _MOST_S
        return min(waits * (now_s - first_s) / (read - before), _MOST_S)
