"""Whether a stream that is played may use metered networks now, by what its paths have measured."""

from collections import deque
from collections.abc import Iterable
from typing import Final

from cedos.session.io.path import SessionPath
from cedos.session.protocol.buffer_manager import BufferManager, BufferSituation

_OVER_S: Final = 1.0
_FIRST_BYTES: Final = 2_000  # more than a handshake: what was wanted is coming


class BufferGate:
    """A `BufferManager` with what it has to know of paths; what a network that went had is remembered."""

    CHECK_S = 0.1

    def __init__(self, buffer: BufferManager) -> None:
        self.buffer = buffer
        self.open = True
        self._metered_bps: float | None = None
        self._rtt_s: float | None = None
        self._counted: dict[int, int] = {}
        self._unmetered_bytes = 0
        self._marks: deque[tuple[float, int]] = deque()
        self._up_s: float | None = None
        self._received = 0
        self._came_s = 0.0
        self._opened_s: float | None = None

    def update(
        self,
        paths: Iterable[SessionPath],
        received_bytes: int,
        buffered_bytes: int,
        now: float,
    ) -> bool:
        """Decides again; whether it comes out otherwise than before."""
        paths = list(paths)
        living = [path for path in paths if path.facts.stalled_at_s is None]
        for path in living:
            rate_bps = path.rate_towards_us_bps()
            if path.facts.metered and rate_bps is not None:
                self._metered_bps = rate_bps
            if path.facts.metered and path.facts.rtt_s is not None:
                self._rtt_s = path.facts.rtt_s
        unmetered_bps = self._count(paths, now)
        if received_bytes != self._received:
            self._received, self._came_s = received_bytes, now
        up = any(not path.facts.metered for path in living)
        self._up_s = (now if self._up_s is None else self._up_s) if up else None
        situation = BufferSituation(
            buffered_bytes,
            None if self._up_s is None else now - self._up_s,
            unmetered_bps,
            self._metered_bps,
            self._rtt_s,
            now - self._came_s,
        )
        wanted = self.buffer.metered_wanted(situation)
        before, self.open = self.open, wanted
        if self.open and not before:
            self._opened_s = now
        return self.open is not before

    def _count(self, paths: list[SessionPath], now: float) -> float:
        """Bits per second over unmetered paths; tells the buffer how long a metered one took to start."""
        for path in paths:
            came = path.received_bytes - self._counted.get(path.path_id, 0)
            if not path.facts.metered:
                self._unmetered_bytes += came
            elif self._opened_s is not None and path.received_bytes >= _FIRST_BYTES:
                self.buffer.started(now - self._opened_s)
                self._opened_s = None
        self._counted = {path.path_id: path.received_bytes for path in paths}
        marks = self._marks
        marks.append((now, self._unmetered_bytes))
        while len(marks) > 2 and marks[1][0] <= now - _OVER_S:
            marks.popleft()
        over_s = max(now - marks[0][0], _OVER_S)
        return 8 * (self._unmetered_bytes - marks[0][1]) / over_s
