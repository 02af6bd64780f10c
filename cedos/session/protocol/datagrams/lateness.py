"""How late a datagram is, of two hosts whose clocks have nothing in common. Pure.

The quickest datagram of the last half minute is the measure: what took longer by so much is so late.
"""

from typing import Final

_HALF_S: Final = 15.0
_CLOCK: Final = 1 << 32  # the sender's milliseconds, which come round after 49 days


class Lateness:
    """Of one sender's clock."""

    __slots__ = ("_before", "_begun_s", "_least")

    def __init__(self) -> None:
        self._least: int | None = None
        self._before: int | None = None
        self._begun_s = 0.0

    def of(self, sent_ms: int, now: float) -> float:
        """Seconds by which a datagram that was sent then came later than the quickest."""
        took = (int(now * 1000) - sent_ms) % _CLOCK
        if now - self._begun_s >= _HALF_S:
            self._before = self._least if now - self._begun_s < 2 * _HALF_S else None
            self._least, self._begun_s = None, now
        if self._least is None or _before(took, self._least):
            self._least = took
        least = self._least
        if self._before is not None and _before(self._before, least):
            least = self._before
        return (took - least) % _CLOCK / 1000


def _before(one: int, other: int) -> bool:
    return (one - other) % _CLOCK >= _CLOCK // 2
