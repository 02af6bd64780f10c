"""When a connection that may wait uses a metered network (Cedos, III-C and III-D). Pure.

With a deadline and an expected size, the metered network is used only from the moment on when the rest
could otherwise come too late; what is played follows the thresholds of its buffer (`BufferManager`).
"""

from dataclasses import dataclass
from typing import Final

from cedos.session.protocol.buffer_manager import BufferManager, BufferSituation

# Delphi's and Cedos' networks need up to 0.9 s to carry anything after a switch (Cedos, V-A).
_SWITCH_S: Final = 1.0
# Rates of mobile networks vary by half within minutes: begun earlier by this factor it is in time.
_MARGIN: Final = 1.5
_UNKNOWN_BPS: Final = 1e6


@dataclass(slots=True)
class Situation:
    """Rates are of the way towards us, None: never measured."""

    received_bytes: int
    unmetered_bps: float | None
    unmetered_up: bool
    metered_bps: float | None
    buffer: BufferSituation


class MeteredPolicy:
    """`expected_bytes` (0: unknown) by `deadline_at_s`; `buffer` of what is played, None: nothing is."""

    def __init__(self) -> None:
        self.deadline_at_s: float | None = None
        self.expected_bytes = 0
        self.buffer: BufferManager | None = None

    def choose(
        self, deadline_at_s: float | None, expected_bytes: int, buffer: BufferManager | None
    ) -> None:
        self.deadline_at_s, self.expected_bytes = deadline_at_s, expected_bytes
        self.buffer = buffer

    @property
    def active(self) -> bool:
        return self.buffer is not None or (
            self.deadline_at_s is not None and self.expected_bytes > 0
        )

    def metered_allowed(self, situation: Situation, now: float) -> bool:
        if not self.active:
            return True
        if self.buffer is not None:
            return self.buffer.metered_wanted(situation.buffer)
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
