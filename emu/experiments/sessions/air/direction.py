"""One direction of a scripted link: a drop-tail queue, delivery opportunities, a delay. Pure."""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from typing import Final

OPPORTUNITY_BYTES: Final = 1500


class Direction:
    """Packets in, packets out with the instants at which they arrive, as Mahimahi's link does it.

    An opportunity carries 1500 bytes of one packet or of several; unused ones are lost. A packet leaves
    with its last byte, and arrives one delay later, never before the one ahead of it.

    Args:
        times_ms: opportunities of one period, never decreasing, within 0 and the period.
        period_ms: after it they repeat.
        queue_packets: more than these wait for no opportunity: they are dropped.
        delays: (from second, delay in seconds), the first from 0; they repeat with the period.
    """

    def __init__(
        self,
        times_ms: Sequence[int],
        period_ms: int,
        queue_packets: int,
        delays: Sequence[tuple[float, float]],
    ) -> None:
        self._times = times_ms
        self._period_ms = period_ms
        self._limit = queue_packets
        self._changes_ms = [1e3 * since_s for since_s, _ in delays]
        self._delays_ms = [1e3 * delay_s for _, delay_s in delays]
        self._queue: deque[tuple[bytes, int]] = deque()
        self._left = 0  # bytes of the first packet that have not been carried yet
        self._next = 0  # the opportunity that comes next, counted over all periods
        self._flying: deque[tuple[float, bytes]] = deque()
        self.dropped = 0

    def arrive(self, packet: bytes, size: int, now_ms: float) -> None:
        """A packet of `size` bytes (of IP) joins the queue, or is dropped."""
        if len(self._queue) >= self._limit:
            self.lost()
            return
        if not self._queue:
            self._next = max(self._next, self._first_from(now_ms))
            self._left = size
        self._queue.append((packet, size))

    def lost(self) -> None:
        self.dropped += 1

    def leave(self, now_ms: float) -> list[bytes]:
        while self._queue and (at_ms := self._at_ms(self._next)) <= now_ms:
            self._carry(at_ms)
            self._next += 1
        arrived = []
        while self._flying and self._flying[0][0] <= now_ms:
            arrived.append(self._flying.popleft()[1])
        return arrived

    def next_ms(self) -> float | None:
        """When `leave` has something to do again; None: nothing is on its way."""
        due = [self._flying[0][0]] if self._flying else []
        if self._queue:
            due.append(self._at_ms(self._next))
        return min(due) if due else None

    def clear(self) -> None:
        """The network is gone, with what was queued and flying."""
        self._queue.clear()
        self._flying.clear()

    def _carry(self, at_ms: float) -> None:
        budget = OPPORTUNITY_BYTES
        while self._queue and budget > 0:
            carried = min(budget, self._left)
            budget -= carried
            self._left -= carried
            if self._left:
                return
            packet, _ = self._queue.popleft()
            if self._queue:
                self._left = self._queue[0][1]
            arrives_ms = at_ms + self._delay_ms(at_ms)
            if self._flying:
                arrives_ms = max(arrives_ms, self._flying[-1][0])
            self._flying.append((arrives_ms, packet))

    def _at_ms(self, number: int) -> float:
        periods, index = divmod(number, len(self._times))
        return periods * self._period_ms + self._times[index]

    def _first_from(self, now_ms: float) -> int:
        periods, within = divmod(now_ms, self._period_ms)
        return int(periods) * len(self._times) + bisect_left(self._times, within)

    def _delay_ms(self, at_ms: float) -> float:
        found = bisect_right(self._changes_ms, at_ms % self._period_ms) - 1
        return self._delays_ms[max(found, 0)]
