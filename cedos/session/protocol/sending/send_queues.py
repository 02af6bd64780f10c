"""One label's queue: what waits to be sent, first come first served (dissertation, 2.3.2)."""

from collections import deque
from collections.abc import Iterator
from typing import Final, TypeAlias

from cedos.session.protocol.frames import packing
from cedos.session.protocol.frames.frames import Order
from cedos.session.protocol.sending.byte_queue import ByteQueue
from cedos.session.protocol.sending.pieces import BytePiece, MessageBatch, Piece

_Item: TypeAlias = ByteQueue | MessageBatch
PIECE_BYTES: Final = packing.RECORD_BYTES - 64
"""An extent with its header fits a record."""


class SendQueue:
    """Pieces that were sent and lost, or left for another path, before bytes that were never sent."""

    __slots__ = ("_items", "_pending", "rank", "waiting_bytes")

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._pending: deque[Piece] = deque()
        self._items: deque[_Item] = deque()
        self.waiting_bytes = 0  # may be sent now

    def message(self, irob: int, order: Order, after: tuple[int, ...], payload: bytes) -> None:
        items = self._items
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
        """A stream of this label has more, or may send more or less, than before."""
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
        """In front, in their order."""
        self._pending.extendleft(reversed(pieces))
        for each in pieces:
            each.queued = True
            self.waiting_bytes += each.size

    def pieces(self) -> Iterator[Piece]:
        """All that waits, but for streams' bytes that were never sent."""
        yield from self._pending
        for item in self._items:
            if isinstance(item, MessageBatch):
                yield item

    @property
    def has_pending(self) -> bool:
        return bool(self._pending)

    def take(self, room_bytes: int, skip_bytes: int = 0) -> Piece | None:
        """At most `room_bytes`, from `skip_bytes` behind the head, which stay; None: none fits."""
        if room_bytes < 1:
            return None
        if not (skip_bytes or self._pending):
            piece = self._carve(room_bytes)
            if piece is None or piece.size + piece.extra <= room_bytes:
                return piece
            self._pending.append(piece)
            self.waiting_bytes += piece.size
        skipped: list[Piece] = []
        while skip_bytes > 0:
            piece = self._next(skip_bytes, exact=False)
            if piece is None:
                break
            skipped.append(piece)
            skip_bytes -= piece.size
        taken = self._next(room_bytes, exact=True)
        if skipped:
            self.requeue(skipped)
        return taken

    def _next(self, room_bytes: int, *, exact: bool) -> Piece | None:
        """The first piece, cut to the room; where it cannot be cut, whole or (`exact`) not at all."""
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
