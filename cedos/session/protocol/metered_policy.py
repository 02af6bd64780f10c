"""When a connection that may wait uses a metered network (Cedos, III-C and III-D). Pure.

With a deadline and an expected size, the metered network is used only from the moment on when the rest
could otherwise come too late; with thresholds of the application's buffer (D2BufMgr), from when the
buffer falls below the low one until it has reached the high one.
"""

from dataclasses import dataclass
from typing import Final

# Delphi's and Cedos' networks need up to 0.9 s to carry anything after a switch (Cedos, V-A).
_SWITCH_S: Final = 1.0
# Rates of mobile networks vary by half within minutes: begun earlier by this factor it is in time.
_MARGIN: Final = 1.5
_UNKNOWN_BPS: Final = 1e6


@dataclass(slots=True)
class Situation:
    """Rates are of the way towards us, None: never measured; `buffered_bytes` came and were not read."""

    received_bytes: int
    buffered_bytes: int
    unmetered_bps: float | None
    unmetered_up: bool
    metered_bps: float | None


class MeteredPolicy:
    """`expected_bytes` (0: unknown) by `deadline_at_s`; `low_bytes`, `high_bytes` in the buffer."""

    def __init__(self) -> None:
        self.deadline_at_s: float | None = None
        self.expected_bytes = 0
        self.low_bytes: int | None = None
        self.high_bytes: int | None = None
        self._filling = False

    def choose(
        self,
        deadline_at_s: float | None,
        expected_bytes: int,
        low_bytes: int | None,
        high_bytes: int | None,
    ) -> None:
        self.deadline_at_s, self.expected_bytes = deadline_at_s, expected_bytes
        self.low_bytes, self.high_bytes = low_bytes, high_bytes

    @property
    def active(self) -> bool:
        return self.low_bytes is not None or (
            self.deadline_at_s is not None and self.expected_bytes > 0
        )

    def metered_allowed(self, situation: Situation, now: float) -> bool:
        if not self.active:
            return True
        if self.low_bytes is not None:
            return self._buffer(situation)
        assert self.deadline_at_s is not None
        left = self.expected_bytes - situation.received_bytes
        if left <= 0:
            return False
        left_s = self.deadline_at_s - now
        wifi_bps = situation.unmetered_bps if situation.unmetered_up else None
        if wifi_bps and 8 * left / wifi_bps * _MARGIN <= left_s:
            return False
        needed_s = _SWITCH_S + 8 * left / (situation.metered_bps or _UNKNOWN_BPS) * _MARGIN
        return needed_s >= left_s

    def _buffer(self, situation: Situation) -> bool:
        assert self.low_bytes is not None
        high = max(self.low_bytes, self.high_bytes or self.low_bytes)
        if situation.buffered_bytes <= self.low_bytes:
            self._filling = True
        elif situation.buffered_bytes >= high:
            self._filling = False
        return self._filling
