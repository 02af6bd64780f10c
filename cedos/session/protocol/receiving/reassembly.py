"""Extents of one stream put in order: late, twice, overlapping, over any path."""

from collections import deque
from typing import Final

from cedos.errors import ProtocolError
from cedos.session.protocol.frames.frames import Chunk
from cedos.session.protocol.frames.intervals import CumulativeSet

MAX_GAPS: Final = 20_000
"""More separate pieces than any sender of this protocol has on the way at once."""
_SMALL_BYTES: Final = 512
_JOINED_BYTES: Final = 4_096


class StreamReassembly:
    """`ready` are the bytes in order that nobody took yet; `waiting_bytes` lie behind a gap.

    The end of the stream is received like a byte behind the last one: `received` covers it.
    """

    __slots__ = (
        "_ahead",
        "_next",
        "_top",
        "end",
        "ready",
        "ready_bytes",
        "received",
        "waiting_bytes",
    )

    def __init__(self, position: int = 0) -> None:
        self.received = CumulativeSet(position)
        self.ready: deque[Chunk] = deque()
        self.ready_bytes = 0
        self.waiting_bytes = 0
        self.end: int | None = None
        self._next = position  # of the first byte that is not ready
        self._top = position  # behind the last byte received
        self._ahead: dict[int, Chunk] = {}  # by where they begin; they do not overlap

    @property
    def pieces(self) -> int:
        return len(self._ahead)

    @property
    def complete(self) -> bool:
        return self.end is not None and self.received.floor > self.end

    def add(self, offset: int, payload: Chunk, end: bool) -> int:
        """How many bytes are new; `payload` must not change. ProtocolError: another end, many pieces."""
        stop = offset + len(payload)
        if end or self.end is not None:
            self._check_end(stop, end)
        received = self.received
        if offset == received.floor and not received.beyond:
            received.floor = stop + end
            self._top = self._next = stop
            self.ready_bytes += len(payload)
            if len(payload) < _SMALL_BYTES:
                self._append_small(payload)
            else:
                self.ready.append(payload)
            return len(payload)
        return self._add_late(offset, stop, payload, end)

    def _add_late(self, offset: int, stop: int, payload: Chunk, end: bool) -> int:
        new = 0
        view = memoryview(payload)
        for low, high in self.received.missing(offset, stop):
            self._ahead[low] = view[low - offset : high - offset]
            new += high - low
        self.received.add(offset, stop + end)
        self._top = max(self._top, stop)
        self.waiting_bytes += new
        while (chunk := self._ahead.pop(self._next, None)) is not None:
            self._next += len(chunk)
            self.waiting_bytes -= len(chunk)
            self.ready_bytes += len(chunk)
            if len(chunk) < _SMALL_BYTES:
                self._append_small(chunk)
            else:
                self.ready.append(chunk)
        if len(self._ahead) > MAX_GAPS:
            raise ProtocolError(f"a stream arrives in more than {MAX_GAPS} separate pieces")
        return new

    def parts(self) -> list[tuple[int, bytes]]:
        """What is here, by offset."""
        ready = b"".join(self.ready)
        first = [(self._next - len(ready), ready)] if ready else []
        return first + [(offset, bytes(chunk)) for offset, chunk in sorted(self._ahead.items())]

    def _append_small(self, chunk: Chunk) -> None:
        """Whoever sends single bytes shall not cost fifty times as much memory."""
        if self.ready and chunk and len(self.ready[-1]) < _JOINED_BYTES:
            self.ready[-1] = b"".join((self.ready[-1], chunk))
        elif chunk:
            self.ready.append(chunk)

    def _check_end(self, stop: int, end: bool) -> None:
        if end and self.end is None:
            self.end = stop
        if self.end is not None and (
            stop > self.end or self._top > self.end or (end and stop != self.end)
        ):
            raise ProtocolError(f"a stream that ended at {self.end} ends at, or goes on to, {stop}")

    def take(self, limit_bytes: int) -> Chunk:
        if not self.ready or limit_bytes < 1:
            return b""
        chunk = self.ready.popleft()
        if len(chunk) > limit_bytes:
            view = memoryview(chunk)
            self.ready.appendleft(view[limit_bytes:])
            chunk = view[:limit_bytes]
        self.ready_bytes -= len(chunk)
        return chunk
