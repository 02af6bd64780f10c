"""The order in which received data reaches the application: bytes of a stream, and whole IROBs.

Extents of one stream are put in order however they arrive: late, twice, overlapping, over any path. An
IROB is eligible once the application has received those it waits for (dissertation, 2.3.2). Of the
eligible ones the most urgent label is first; within a label they keep their order of arrival.
"""

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Final

from msgspec import Struct

from cedos.errors import ProtocolError
from cedos.session.protocol.frames import Chunk, Order
from cedos.session.protocol.intervals import CumulativeSet

# The most gaps in a stream. No sender of this protocol leaves more.
MAX_GAPS: Final = 20_000
# A chunk below the first size is joined with the one before it, if that is below the second size.
_SMALL_BYTES: Final = 512
_JOINED_BYTES: Final = 4_096


def append(chunks: deque[Chunk], chunk: Chunk) -> None:
    """Append a chunk; join small ones: a sender of single bytes must not cost fifty times the memory."""
    if len(chunk) >= _SMALL_BYTES:
        chunks.append(chunk)
    elif chunks and chunk and len(chunks[-1]) < _JOINED_BYTES:
        chunks[-1] = b"".join((chunks[-1], chunk))
    elif chunk:
        chunks.append(chunk)


class StreamReassembly:
    """The received bytes of one stream: `ready` in order and unread, others behind a gap.

    `waiting_bytes` lie behind a gap. The end of the stream is received like a byte behind the last
    one: `received` covers it.
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
        """Add an extent; return how many of its bytes are new. `payload` must not change.

        ProtocolError: the stream ends elsewhere, or in too many pieces.
        """
        stop = offset + len(payload)
        if end or self.end is not None:
            self._check_end(stop, end)
        received = self.received
        # Fast path: the next bytes in order, and nothing lies behind a gap.
        if offset == received.floor and not received.beyond:
            received.floor = stop + end
            self._top = self._next = stop
            self.ready_bytes += len(payload)
            append(self.ready, payload)
            return len(payload)
        return self._add_late(offset, stop, payload, end)

    def _add_late(self, offset: int, stop: int, payload: Chunk, end: bool) -> int:
        new = 0
        # Keep only what is new. Bytes that came before, over whatever path, are dropped.
        view = memoryview(payload)
        for low, high in self.received.missing(offset, stop):
            piece: Chunk = view[low - offset : high - offset]
            # A view keeps the whole payload in memory, also for one new byte in it.
            self._ahead[low] = piece if 2 * len(piece) > len(view) else bytes(piece)
            new += high - low
        self.received.add(offset, stop + end)
        self._top = max(self._top, stop)
        self.waiting_bytes += new
        # A gap may have closed: all chunks that follow it directly are ready now.
        while (chunk := self._ahead.pop(self._next, None)) is not None:
            self._next += len(chunk)
            self.waiting_bytes -= len(chunk)
            self.ready_bytes += len(chunk)
            append(self.ready, chunk)
        if len(self._ahead) > MAX_GAPS:
            raise ProtocolError(f"a stream arrives in more than {MAX_GAPS} separate pieces")
        return new

    def _check_end(self, stop: int, end: bool) -> None:
        if end and self.end is None:
            self.end = stop
        # The end must not move, and no byte may lie behind it.
        if self.end is not None and (
            stop > self.end or self._top > self.end or (end and stop != self.end)
        ):
            raise ProtocolError(f"a stream that ended at {self.end} ends at, or goes on to, {stop}")

    def take(self, limit_bytes: int) -> Chunk:
        if not self.ready or limit_bytes < 1:
            return b""
        chunk = self.ready.popleft()
        # Return a part, and leave the rest in front.
        if len(chunk) > limit_bytes:
            view = memoryview(chunk)
            self.ready.appendleft(view[limit_bytes:])
            chunk = view[:limit_bytes]
        self.ready_bytes -= len(chunk)
        return chunk


class Run(Struct, gc=False):
    """IROBs of one label with consecutive ids from `first` on."""

    first: int
    rank: int
    payloads: Sequence[Chunk]


# The memory of a list of waiting runs, and of an entry in it.
_LIST_BYTES, _ENTRY_BYTES = 200, 8


class _Blocked(Struct):
    """A run that waits for `missing` of its listed IROBs."""

    run: Run
    missing: int


class Delivery:
    """The received IROBs that the application has not taken yet.

    Eligible ones are in a queue for each label. The others wait in two places: for all lower ids, in a
    heap; for listed ids, under each id that is missing.
    """

    __slots__ = (
        "_after_all", "_awaited", "_listed", "_ready", "_taken", "count", "delivered",
    )  # fmt: skip

    def __init__(self, first: int = 1) -> None:
        self.delivered = CumulativeSet(first)
        self.count = 0  # eligible now
        self._awaited = 0  # entries of all lists of `_listed`
        self._ready: tuple[deque[Run], ...] = (deque(), deque(), deque(), deque())
        self._taken = [0, 0, 0, 0]  # how many of each label's first run were taken
        self._after_all: list[tuple[int, Run]] = []  # heap by id
        self._listed: dict[int, list[_Blocked]] = {}  # by the id that they wait for

    def arrive(self, run: Run, order: Order, after: tuple[int, ...]) -> None:
        if order is Order.AFTER_ALL and self.delivered.floor < run.first:
            heappush(self._after_all, (run.first, run))
            return
        if order is Order.LISTED:
            # Listed IROBs that were delivered already are no reason to wait.
            missing = [each for each in set(after) if not self.delivered.covers(each, each + 1)]
            if missing:
                blocked = _Blocked(run, len(missing))
                self._awaited += len(missing)
                for each in missing:
                    self._listed.setdefault(each, []).append(blocked)
                return
        self._eligible(run)

    def pop(self, limit: int) -> Run | None:
        """Return at most `limit` IROBs of one label in order, or None.

        It returns several only if none of them makes another one eligible.
        """
        # The most urgent label that has anything.
        for queue in self._ready:
            if queue:
                break
        else:
            return None
        run = queue[0]
        payloads, rank = run.payloads, run.rank
        start = self._taken[rank]
        # A listed IROB may become eligible by any of these, and be more urgent: return one at a time. An
        # IROB that waits for all lower ids cannot become eligible within a run.
        if self._listed:
            limit = 1
        stop = min(start + limit, len(payloads))
        if stop == len(payloads):
            queue.popleft()
            self._taken[rank] = 0
        else:
            self._taken[rank] = stop
        if stop - start < len(payloads):
            run = Run(run.first + start, rank, payloads[start:stop])
        self.count -= stop - start
        self._on_done(run.first, run.first + stop - start)
        return run

    @property
    def waiting(self) -> bool:
        return bool(self.count or self._after_all or self._listed)

    @property
    def list_bytes(self) -> int:
        """Return the memory of the lists of IROBs that wait for others."""
        return _LIST_BYTES * len(self._listed) + _ENTRY_BYTES * self._awaited

    def _eligible(self, run: Run) -> None:
        self._ready[run.rank].append(run)
        self.count += len(run.payloads)

    def _on_done(self, first: int, stop: int) -> None:
        self.delivered.add(first, stop)
        # Those that wait for all lower ids, the lowest id first.
        while self._after_all and self._after_all[0][0] <= self.delivered.floor:
            self._eligible(heappop(self._after_all)[1])
        # Those that wait for one of these ids.
        if self._listed:
            for irob in range(first, stop):
                for blocked in self._listed.pop(irob, ()):
                    blocked.missing -= 1
                    self._awaited -= 1
                    if not blocked.missing:
                        self._eligible(blocked.run)
