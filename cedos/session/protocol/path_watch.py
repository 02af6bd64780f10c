"""Whether what was sent on a path is acknowledged as usual: silence is noticed by its length. Pure.

The kernel gives a connection up half a minute after the last word, and repeats itself ever more rarely
until then. Where another path lives, nothing waits for that.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

PAUSED_S: Final = 0.100
"""After so long without progress, nothing new is sent there if another path may carry it."""
SILENT_S: Final = 0.220
"""After so long, what is on the way there goes over another path as well."""
_PAUSED_FACTOR: Final = 2.0
_SILENT_FACTOR: Final = 3.0
# How much of the longest time between two signs of progress is remembered at the next one.
_REMEMBERED: Final = 0.9
# What is usual grows by half at most with each pause: one second of silence does not make the next
# death of the network take three.
_LEARNT: Final = 1.5 / _SILENT_FACTOR


class PathVoice(IntEnum):
    SPEAKS = 0  # or nothing waits for its word
    PAUSES = 1
    SILENT = 2


@dataclass(frozen=True, slots=True)
class PathProgress:
    """What the kernel says of a connection.

    `waits`: something is on the way; `delivered` counts what has arrived, in order or not, the last
    of it acknowledged at `acknowledged_at_s`. `repeated`: segments that the kernel has sent again.
    """

    waits: bool
    delivered: int
    acknowledged_at_s: float
    rtt_s: float | None
    rtt_min_s: float | None
    repeated: int


class PathWatch:
    """Of one path.

    Attributes:
        silent_s: how long something has waited without any progress.
        limit_s: after so long it counts as silent: three times the usual time between two signs of
            progress, which is a round trip at first and less where acknowledgements flow.
    """

    __slots__ = ("_delivered", "_repeated", "_since_s", "_usual_s", "limit_s", "silent_s", "voice")

    def __init__(self) -> None:
        self.voice = PathVoice.SPEAKS
        self.silent_s = 0.0
        self.limit_s = SILENT_S
        self._delivered = 0
        self._since_s: float | None = None  # the last progress; None: nothing waited
        self._usual_s: float | None = None
        self._repeated = 0  # so many when the wait began

    def observe(self, seen: PathProgress, now: float) -> PathVoice:
        if not seen.waits:
            self._since_s, self.silent_s = None, 0.0
            self.voice = PathVoice.SPEAKS
            return self.voice
        if self._since_s is None:
            self._since_s, self._usual_s, self._repeated = now, None, seen.repeated
        elif seen.delivered != self._delivered:
            self._progressed(max(self._since_s, seen.acknowledged_at_s), seen.repeated)
        self._delivered = seen.delivered
        usual_s = seen.rtt_s if self._usual_s is None else self._usual_s
        usual_s = max(usual_s or 0.0, seen.rtt_min_s or 0.0)
        self.limit_s = max(SILENT_S, _SILENT_FACTOR * usual_s)
        self.silent_s = now - self._since_s
        if self.silent_s >= self.limit_s:
            self.voice = PathVoice.SILENT
        elif self.silent_s >= max(PAUSED_S, _PAUSED_FACTOR * usual_s):
            self.voice = PathVoice.PAUSES
        else:
            self.voice = PathVoice.SPEAKS
        return self.voice

    def _progressed(self, at_s: float, repeated: int) -> None:
        assert self._since_s is not None
        gap_s, before_s = min(at_s - self._since_s, _LEARNT * self.limit_s), self._usual_s
        # A pause that the kernel had to break is no measure of what is usual; another one is.
        if repeated == self._repeated:
            self._usual_s = gap_s if before_s is None else max(gap_s, _REMEMBERED * before_s)
        self._since_s, self._repeated = at_s, repeated
