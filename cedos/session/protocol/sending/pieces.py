"""What is sent in one go and kept until it is acknowledged: a run of bytes, or a run of messages.

A piece waits in a send queue (`queued` if it was there before), is in flight on the paths `on`, is held
back until the peer has said what it has, or is done. One that is cut or partly acknowledged is done,
and others take its place.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Final, TypeAlias

from cedos.session.protocol.frames import packing
from cedos.session.protocol.frames.frames import Chunk, Order
from cedos.session.protocol.frames.intervals import CumulativeSet
from cedos.session.protocol.sending.byte_queue import ByteQueue

BATCH_BYTES: Final = 60_000
"""A batch grows to this: about one record's worth, so that it is seldom cut."""


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
        """Header and payload, not copied; what was acknowledged is left out, it may be gone."""
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
        """Two that take its place, the first with at most `room_bytes`; None if it cannot be cut so."""
        if not 0 < room_bytes < self.size:
            return None
        self.done = True
        middle = self.start + room_bytes
        return BytePiece(self.queue, self.start, middle), BytePiece(self.queue, middle, self.stop)

    def acknowledged(self, _irobs: CumulativeSet) -> bool:
        return self.queue.acked.covers(self.start, self.stop)

    def rest(self, _irobs: CumulativeSet) -> "list[BytePiece]":
        holes = self.queue.acked.missing(self.start, self.stop)
        if holes == [(self.start, self.stop)]:
            return [self]
        self.done = True
        return [BytePiece(self.queue, start, stop) for start, stop in holes]


class MessageBatch:
    """`size` counts what the IROBs take in a record, `bytes` what the application handed in.

    An empty `payloads` with `abandoned` ids tells the peer that these will never come.
    """

    __slots__ = (
        "abandoned",
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
        abandoned: int = 0,
    ) -> None:
        self.first = first
        self.rank = rank
        self.order = order
        self.after = after
        self.payloads = payloads
        self.abandoned = abandoned
        self.bytes = sum(map(len, payloads))
        self.size = self.bytes + 2 * len(payloads) + 4 * len(after) + 1
        self.on: tuple[int, ...] = ()
        self.queued = False
        self.done = False

    @property
    def stop(self) -> int:
        return self.first + (self.abandoned or len(self.payloads))

    def grows(self, irob: int, order: Order) -> bool:
        return (
            irob == self.first + len(self.payloads)
            and order is self.order
            and not self.after
            and not self.abandoned
            and self.size < BATCH_BYTES
            and len(self.payloads) < packing.MAX_MESSAGES
        )

    def append(self, payload: bytes) -> None:
        self.payloads.append(payload)
        self.bytes += len(payload)
        self.size += len(payload) + 2

    def frame(self) -> list[Chunk]:
        if self.abandoned:
            return [packing.abandon(self.first, self.abandoned)]
        payloads = self.payloads
        head = packing.messages_header(
            self.first, self.rank, self.order, self.after, [len(each) for each in payloads]
        )
        return [head, payloads[0] if len(payloads) == 1 else b"".join(payloads)]

    def cut(self, room_bytes: int) -> "tuple[MessageBatch, MessageBatch] | None":
        sizes = accumulate((len(each) + 2 for each in self.payloads), initial=1)
        count = sum(1 for size in sizes if size <= room_bytes) - 1
        if not 0 < count < len(self.payloads):
            return None
        self.done = True
        return self._part(0, count), self._part(count, len(self.payloads))

    def _part(self, start: int, stop: int) -> "MessageBatch":
        payloads = self.payloads[start:stop]
        return MessageBatch(self.first + start, self.rank, self.order, self.after, payloads)

    def acknowledged(self, irobs: CumulativeSet) -> bool:
        return irobs.covers(self.first, self.stop)

    def rest(self, irobs: CumulativeSet) -> "list[MessageBatch]":
        holes = irobs.missing(self.first, self.stop)
        if holes == [(self.first, self.stop)]:
            return [self]
        self.done = True
        if self.abandoned:
            return [
                MessageBatch(start, self.rank, self.order, (), [], abandoned=stop - start)
                for start, stop in holes
            ]
        return [self._part(start - self.first, stop - self.first) for start, stop in holes]


Piece: TypeAlias = BytePiece | MessageBatch
Pieces: TypeAlias = Sequence[Piece]
