"""Bytes of one stream that wait to be sent or acknowledged: stream 0, or a large IROB."""

from bisect import bisect_right
from collections.abc import Callable
from typing import Final, TypeAlias

from cedos.errors import SessionError
from cedos.session.protocol.frames.frames import Chunk, Order
from cedos.session.protocol.frames.intervals import CumulativeSet

NO_LIMIT: Final = 1 << 63
Fetch: TypeAlias = Callable[[int, int], Chunk]
"""Gives `count` bytes from `offset` on, counted from where its source was written into the stream."""


class ByteQueue:
    """A stream's bytes from the first that is not acknowledged; its end takes a position of its own.

    What was written is kept by reference; a source keeps nothing, it is asked again. `fresh` is the first
    position that was never sent, `limit` where the peer's window ends.
    """

    __slots__ = (
        "_chunks",
        "_starts",
        "acked",
        "after",
        "counted",
        "ended",
        "fresh",
        "held_bytes",
        "irob",
        "limit",
        "listed",
        "order",
        "rank",
        "written",
    )

    def __init__(
        self,
        irob: int,
        rank: int,
        order: Order = Order.FREE,
        after: tuple[int, ...] = (),
        position: int = 0,
    ) -> None:
        self.irob = irob
        self.rank = rank
        self.order = order
        self.after = after
        self.written = position
        self.fresh = position
        self.limit = NO_LIMIT
        self.ended = False
        self.acked = CumulativeSet(position)
        self.held_bytes = 0
        self.counted = 0  # what a send queue has counted as waiting
        self.listed = False  # whether a send queue has it among those with fresh bytes
        self._starts: list[int] = []
        self._chunks: list[memoryview | tuple[Fetch, int]] = []

    @property
    def stop(self) -> int:
        """The first position that does not exist yet; the end of the stream counts as one."""
        return self.written + self.ended

    def sendable(self) -> int:
        if self.limit >= self.written:
            return self.written + self.ended - self.fresh
        return max(0, self.limit - self.fresh)

    def write(self, data: Chunk) -> None:
        self._starts.append(self.written)
        self._chunks.append(memoryview(data))
        self.written += len(data)
        self.held_bytes += len(data)

    def write_source(self, fetch: Fetch, length: int) -> None:
        self._starts.append(self.written)
        self._chunks.append((fetch, length))
        self.written += length

    def slices(self, start: int, stop: int) -> list[Chunk]:
        """The bytes from `start` to `stop`, all of which are still held, not joined."""
        parts: list[Chunk] = []
        at = bisect_right(self._starts, start) - 1
        while start < stop:
            begin, chunk = self._starts[at], self._chunks[at]
            length = len(chunk) if isinstance(chunk, memoryview) else chunk[1]
            last = min(stop, begin + length)
            if isinstance(chunk, memoryview):
                whole = start == begin and last == begin + length
                parts.append(chunk if whole else chunk[start - begin : last - begin])
            else:
                part = chunk[0](start - begin, last - start)
                if len(part) != last - start:
                    raise SessionError(
                        f"a source gives {len(part)} bytes instead of {last - start} at {start - begin}"
                    )
                parts.append(part)
            start = last
            at += 1
        return parts

    def acknowledge(self, start: int, stop: int) -> int:
        """The peer has these positions; how many bytes of memory that has freed."""
        acked = self.acked
        before = acked.floor
        acked.add(start, stop)
        floor = acked.floor
        if floor == before:
            return 0
        gone = 0
        freed = 0
        starts, chunks = self._starts, self._chunks
        for gone, chunk in enumerate(chunks):
            held = isinstance(chunk, memoryview)
            if starts[gone] + (len(chunk) if held else chunk[1]) > floor:
                break
            freed += len(chunk) if held else 0
        else:
            gone = len(chunks)
        del starts[:gone], chunks[:gone]
        self.held_bytes -= freed
        return freed
