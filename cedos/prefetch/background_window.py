"""How much a server may send ahead of time: as much as the path holds, and hardly a queue. Pure.

What is prefetched shall not stand before what a person waits for. So its receive window follows the
round trip that it sees itself (in the spirit of LEDBAT, RFC 6817, at the receiving end): it grows while
the round trip is as short as ever, and shrinks once a queue builds up, whoever fills it.
"""

from typing import Final

FIRST_BYTES: Final = 32 * 1024
LEAST_BYTES: Final = 8 * 1024
MOST_BYTES: Final = 1 << 20
_QUEUE_S: Final = 0.002
"""So much of a queue is wanted: it shows that the path is full."""
_DOUBLES: Final = 2.0
_GROWS_BYTES: Final = 1_500
_SHRINKS: Final = 0.8


class BackgroundWindow:
    """Of one connection.

    Attributes:
        bytes: what may be on its way.
    """

    __slots__ = ("_ramps", "_rtt_least_s", "bytes")

    def __init__(self, rtt_least_s: float | None = None) -> None:
        """`rtt_least_s`: the shortest round trip so far, such as the handshake's."""
        self.bytes = FIRST_BYTES
        self._ramps = True
        self._rtt_least_s = rtt_least_s

    def observe(self, rtt_s: float | None, came_bytes: float) -> int:
        """Once a round trip: its length as data shows it, and what came in it; the window from now on."""
        if rtt_s is None or rtt_s <= 0.0:
            return self.bytes
        least_s = rtt_s if self._rtt_least_s is None else min(rtt_s, self._rtt_least_s)
        self._rtt_least_s = least_s
        if rtt_s - least_s > _QUEUE_S:
            self._ramps = False
            # What fills the path without the queue.
            fills = came_bytes * least_s / rtt_s if came_bytes else self.bytes
            self.bytes = int(max(_SHRINKS * self.bytes, min(self.bytes, fills)))
        elif came_bytes > self.bytes / 2:  # else the window is not what bounds it
            more = _DOUBLES * self.bytes if self._ramps else self.bytes + _GROWS_BYTES
            self.bytes = int(more)
        self.bytes = max(LEAST_BYTES, min(self.bytes, MOST_BYTES))
        return self.bytes
