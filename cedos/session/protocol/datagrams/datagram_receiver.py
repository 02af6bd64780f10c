"""What comes of the peer's datagrams: each once, none late, and no more than the program takes. Pure."""

from collections import deque
from typing import Final

from cedos.session.protocol.datagrams.lateness import Lateness
from cedos.session.protocol.frames.frames import Datagram

WINDOW: Final = 1_024
"""So many numbers below the highest are told apart; what is older came long ago, or never will."""

MOST_UNREAD: Final = 1_024
MOST_UNREAD_BYTES: Final = 1 << 20
_RETIRED: Final = 8


class DatagramReceiver:
    """Attributes: `dropped`, those that were late, or that the program did not take in time."""

    __slots__ = ("_bytes", "_epoch", "_highest", "_lateness", "_retired", "_seen", "_waiting",
                 "dropped")  # fmt: skip

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._epoch: int | None = None
        self._retired: deque[int] = deque(maxlen=_RETIRED)
        self._highest = 0
        self._seen = 0  # a bit for each number, from the highest down
        self._lateness = Lateness()
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def held_bytes(self) -> int:
        return self._bytes

    def received(self, frame: Datagram, now: float) -> None:
        if not self._is_new(frame.epoch, frame.number):
            return
        if self._lateness.of(frame.sent_ms, now) * 1000 > frame.lifetime_ms:
            self.dropped += 1
            return
        self._waiting.append(frame.payload)
        self._bytes += len(frame.payload)
        while self._bytes > MOST_UNREAD_BYTES or len(self._waiting) > MOST_UNREAD:
            self._bytes -= len(self._waiting.popleft())
            self.dropped += 1

    def take(self) -> list[bytes]:
        """All that came, in the order in which it came."""
        taken = list(self._waiting)
        self._waiting.clear()
        self._bytes = 0
        return taken

    def _is_new(self, epoch: int, number: int) -> bool:
        if epoch != self._epoch:
            if epoch in self._retired:
                return False
            if self._epoch is not None:
                self._retired.append(self._epoch)
            self._epoch, self._highest, self._seen = epoch, number, 1
            self._lateness = Lateness()
            return True
        ahead = number - self._highest
        if ahead > 0:
            self._highest = number
            self._seen = ((self._seen << min(ahead, WINDOW)) | 1) & ((1 << WINDOW) - 1)
            return True
        bit = 1 << -ahead if -ahead < WINDOW else 0
        if not bit or self._seen & bit:
            return False
        self._seen |= bit
        return True
