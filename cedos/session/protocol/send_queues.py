"""Data that waits to be sent or acknowledged: bytes of streams, pieces, and a queue for each label.

A piece is a run of bytes or a run of small messages. It is sent in one go and kept until the peer has
acknowledged it:

| state | next | when |
|---|---|---|
| waiting in a send queue | in flight | a path with room takes it; `on` names the paths |
| in flight | done | the peer has acknowledged all of it |
| in flight | waiting | its path falls silent, and no living path carries it (`queued`) |
| in flight | held back, or waiting if small and urgent | its last path is lost |
| held back | waiting | the peer's Sync has said what it has; only the rest waits |

A piece that is cut or partly acknowledged is done, and others take its place. Each label has one queue,
first come first served (dissertation, 2.3.2).
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from itertools import accumulate
from typing import Final, TypeAlias

from cedos.errors import SessionError
from cedos.session.protocol import packing
from cedos.session.protocol.frames import Chunk, Order
from cedos.session.protocol.intervals import CumulativeSet

NO_LIMIT: Final = 1 << 63
# Returns `count` bytes of a source from `offset` on; 0 is the source's first byte.
Fetch: TypeAlias = Callable[[int, int], Chunk]
_JOINED_BYTES: Final = 4_096


class ByteQueue:
    """A stream's bytes from the first unacknowledged one on; its end takes a position of its own.

    Written data is kept by reference, but for small writes, which are joined; a source keeps nothing and
    is asked again. `fresh` is the first position that was never sent, and the peer's window ends at
    `limit`.
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
        self.counted = 0  # how many of its positions are part of a send queue's `waiting_bytes`
        self.listed = False  # whether a send queue lists it among the streams with bytes to send
        self._starts: list[int] = []
        self._chunks: list[memoryview | tuple[Fetch, int]] = []

    @property
    def stop(self) -> int:
        """Return the first position that does not exist yet; the stream's end counts as one."""
        return self.written + self.ended

    def sendable(self) -> int:
        # The end is a position without a byte. It needs no window, but all bytes before it do.
        if self.limit >= self.written:
            return self.written + self.ended - self.fresh
        return max(0, self.limit - self.fresh)

    def write(self, data: Chunk) -> None:
        last = self._chunks[-1] if self._chunks else None
        # Join small writes: each would take half a kilobyte beside its bytes.
        if isinstance(last, memoryview) and len(last) + len(data) <= _JOINED_BYTES:
            self._chunks[-1] = memoryview(b"".join((last, data)))
        else:
            self._starts.append(self.written)
            self._chunks.append(memoryview(data))
        self.written += len(data)
        self.held_bytes += len(data)

    def write_source(self, fetch: Fetch, length: int) -> None:
        self._starts.append(self.written)
        self._chunks.append((fetch, length))
        self.written += length

    def slices(self, start: int, stop: int) -> list[Chunk]:
        """Return the bytes from `start` to `stop`, all of which are still held, not joined."""
        parts: list[Chunk] = []
        # Find the chunk that holds the first byte, then go on chunk by chunk.
        at = bisect_right(self._starts, start) - 1
        while start < stop:
            begin, chunk = self._starts[at], self._chunks[at]
            length = len(chunk) if isinstance(chunk, memoryview) else chunk[1]
            last = min(stop, begin + length)
            if isinstance(chunk, memoryview):
                # A whole chunk is passed on as it is, without another view.
                whole = start == begin and last == begin + length
                parts.append(chunk if whole else chunk[start - begin : last - begin])
            else:
                # A source is read each time that its bytes are sent: nothing of it is kept.
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
        """Note that the peer has these positions; return how many bytes of memory that freed."""
        acked = self.acked
        before = acked.floor
        acked.add(start, stop)
        floor = acked.floor
        # Out-of-order acknowledgements free nothing: memory is freed from the front.
        if floor == before:
            return 0
        gone = 0
        freed = 0
        starts, chunks = self._starts, self._chunks
        # Count the chunks that lie wholly below the new floor.
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


# The largest batch: about one record, so that it is seldom cut.
BATCH_BYTES: Final = 60_000


class BytePiece:
    """Positions `start` to `stop` of a stream; the end of the stream is one position of its own."""

    __slots__ = ("done", "extra", "on", "queue", "queued", "rank", "size", "start", "stop")

    def __init__(self, queue: ByteQueue, start: int, stop: int) -> None:
        self.queue = queue
        self.rank = queue.rank
        self.start = start
        self.stop = stop
        self.size = stop - start
        self.extra = 4 * len(queue.after)
        self.on: tuple[int, ...] = ()
        self.queued = False
        self.done = False

    def frame(self) -> list[Chunk]:
        """Return header and payload, not copied, without acknowledged bytes, which may be gone."""
        queue = self.queue
        start = max(self.start, queue.acked.floor)
        last = min(self.stop, queue.written)
        end = self.stop > queue.written
        length = last - start
        if queue.irob:
            head = packing.extent_header(
                queue.irob, queue.rank, queue.order, queue.after, start, length, end
            )
        else:
            head = packing.stream_header(start, length, end)
        return [head, *queue.slices(start, last)]

    def cut(self, room_bytes: int) -> "tuple[BytePiece, BytePiece] | None":
        """Return two pieces in its place, the first of at most `room_bytes`, or None."""
        if not 0 < room_bytes < self.size:
            return None
        self.done = True
        middle = self.start + room_bytes
        return BytePiece(self.queue, self.start, middle), BytePiece(self.queue, middle, self.stop)

    def is_acknowledged(self, _irobs: CumulativeSet) -> bool:
        return self.queue.acked.covers(self.start, self.stop)

    def rest(self, _irobs: CumulativeSet) -> "list[BytePiece]":
        # Only the bytes that the peer lacks are sent again.
        holes = self.queue.acked.missing(self.start, self.stop)
        if holes == [(self.start, self.stop)]:
            return [self]
        self.done = True
        return [BytePiece(self.queue, start, stop) for start, stop in holes]


class MessageBatch:
    """A run of small messages; `size` counts bytes in a record, `bytes` those of the application."""

    __slots__ = (
        "after",
        "bytes",
        "done",
        "first",
        "on",
        "order",
        "payloads",
        "queued",
        "rank",
        "size",
    )

    extra: Final = 0

    def __init__(
        self,
        first: int,
        rank: int,
        order: Order,
        after: tuple[int, ...],
        payloads: list[bytes],
    ) -> None:
        self.first = first
        self.rank = rank
        self.order = order
        self.after = after
        self.payloads = payloads
        self.bytes = sum(map(len, payloads))
        self.size = self.bytes + 2 * len(payloads) + 4 * len(after) + 1
        self.on: tuple[int, ...] = ()
        self.queued = False
        self.done = False

    @property
    def stop(self) -> int:
        return self.first + len(self.payloads)

    def grows(self, irob: int, order: Order) -> bool:
        # A Messages frame has consecutive ids and one order, and is hardly larger than a record.
        return (
            irob == self.first + len(self.payloads)
            and order is self.order
            and not self.after
            and self.size < BATCH_BYTES
            and len(self.payloads) < packing.MAX_MESSAGES
        )

    def append(self, payload: bytes) -> None:
        self.payloads.append(payload)
        self.bytes += len(payload)
        self.size += len(payload) + 2

    def frame(self) -> list[Chunk]:
        payloads = self.payloads
        head = packing.messages_header(
            self.first, self.rank, self.order, self.after, [len(each) for each in payloads]
        )
        return [head, payloads[0] if len(payloads) == 1 else b"".join(payloads)]

    def cut(self, room_bytes: int) -> "tuple[MessageBatch, MessageBatch] | None":
        # Each message costs its bytes and a length of two: count the whole messages that fit.
        sizes = accumulate((len(each) + 2 for each in self.payloads), initial=1)
        count = sum(1 for size in sizes if size <= room_bytes) - 1
        if not 0 < count < len(self.payloads):
            return None
        self.done = True
        return self._part(0, count), self._part(count, len(self.payloads))

    def _part(self, start: int, stop: int) -> "MessageBatch":
        payloads = self.payloads[start:stop]
        return MessageBatch(self.first + start, self.rank, self.order, self.after, payloads)

    def is_acknowledged(self, irobs: CumulativeSet) -> bool:
        return irobs.covers(self.first, self.stop)

    def rest(self, irobs: CumulativeSet) -> "list[MessageBatch]":
        # Only the missing messages are sent again.
        holes = irobs.missing(self.first, self.stop)
        if holes == [(self.first, self.stop)]:
            return [self]
        self.done = True
        return [self._part(start - self.first, stop - self.first) for start, stop in holes]


Piece: TypeAlias = BytePiece | MessageBatch


_Item: TypeAlias = ByteQueue | MessageBatch
# The largest piece: with its header it fits a record.
PIECE_BYTES: Final = packing.RECORD_BYTES - 64


class SendQueue:
    """The queue of one label: lost or skipped pieces come before bytes that were never sent."""

    __slots__ = ("_items", "_pending", "rank", "waiting_bytes")

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._pending: deque[Piece] = deque()
        self._items: deque[_Item] = deque()
        self.waiting_bytes = 0  # bytes in records that the peer's window lets this end send now

    def message(self, irob: int, order: Order, after: tuple[int, ...], payload: bytes) -> None:
        items = self._items
        # A small message joins the batch at the tail, if its number and order continue it.
        if items and not after:
            last = items[-1]
            if type(last) is MessageBatch and last.grows(irob, order):
                last.append(payload)
                self.waiting_bytes += len(payload) + 2
                return
        batch = MessageBatch(irob, self.rank, order, after, [payload])
        items.append(batch)
        self.waiting_bytes += batch.size

    def batch(self, batch: MessageBatch) -> None:
        self._items.append(batch)
        self.waiting_bytes += batch.size

    def update(self, queue: ByteQueue) -> None:
        """Note that a stream of this label has more data, or another limit."""
        # Count the difference to the last call, and list a stream once while it has data.
        sendable = queue.sendable()
        self.waiting_bytes += sendable - queue.counted
        queue.counted = sendable
        if sendable and not queue.listed:
            queue.listed = True
            self._items.append(queue)

    def leave(self, queue: ByteQueue) -> None:
        if queue.listed:
            self._items.remove(queue)
            queue.listed = False
        self.waiting_bytes -= queue.counted
        queue.counted = 0

    def requeue(self, pieces: list[Piece]) -> None:
        """Put pieces in front, in their order."""
        self._pending.extendleft(reversed(pieces))
        for each in pieces:
            each.queued = True
            self.waiting_bytes += each.size

    @property
    def pending(self) -> int:
        """Return how many pieces wait to be sent again."""
        return len(self._pending)

    def take(self, room_bytes: int, skip_bytes: int = 0) -> Piece | None:
        """Return a piece of at most `room_bytes`, `skip_bytes` behind the head; None: none fits."""
        if room_bytes < 1:
            return None
        # Fast path: take unsent bytes from the head.
        if not (skip_bytes or self._pending):
            piece = self._carve(room_bytes)
            if piece is None or piece.size + piece.extra <= room_bytes:
                return piece
            # A batch that does not fit: put it in front, where `_next_piece` cuts it.
            self._pending.append(piece)
            self.waiting_bytes += piece.size
        # Leave `skip_bytes` to another path: take them off, and put them back afterwards.
        skipped: list[Piece] = []
        while skip_bytes > 0:
            piece = self._next_piece(skip_bytes, exact=False)
            if piece is None:
                break
            skipped.append(piece)
            skip_bytes -= piece.size
        taken = self._next_piece(room_bytes, exact=True)
        if skipped:
            self.requeue(skipped)
        return taken

    def _next_piece(self, room_bytes: int, *, exact: bool) -> Piece | None:
        """Return the first piece, cut to the room.

        A piece that cannot be cut is returned whole or, with `exact`, not at all.
        """
        if not self._pending:
            piece = self._carve(room_bytes)
            if piece is None:
                return None
        else:
            piece = self._pending.popleft()
            self.waiting_bytes -= piece.size
        room_bytes -= piece.extra
        if piece.size <= room_bytes:
            return piece
        # Too large: send the first part now, and put the rest back in front.
        parts = piece.cut(room_bytes)
        if parts is not None:
            parts[0].queued = piece.queued
            self.requeue([parts[1]])
            piece = parts[0]
        elif exact:
            self.requeue([piece])
            return None
        return piece

    def _carve(self, room_bytes: int) -> Piece | None:
        items = self._items
        while items:
            item = items[0]
            # A batch goes whole; of a stream the unsent bytes that fit.
            if isinstance(item, MessageBatch):
                items.popleft()
                self.waiting_bytes -= item.size
                return item
            count = min(item.counted, min(room_bytes, PIECE_BYTES) - 4 * len(item.after))
            if count <= 0 < item.counted:
                return None  # its dependencies alone take the room
            start = item.fresh
            item.fresh = stop = start + count
            item.counted -= count
            self.waiting_bytes -= count
            if not item.counted:
                items.popleft()
                item.listed = False
            if count:
                return BytePiece(item, start, stop)
        return None
