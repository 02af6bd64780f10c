"""The sending half of a session: the application's data, until the peer has acknowledged it.

The data are one stream of bytes and any number of IROBs (Isolated Reliable Ordered Bytestreams;
dissertation, 2.2). An IROB is a message that the peer's application receives whole. The sending
application chooses which other IROBs the peer delivers before it. A frame holds several small IROBs. A
large one is sent in extents.
"""

from typing import Final

from cedos.errors import ProtocolError, SessionError
from cedos.session.protocol.frames import Ack, Chunk, Order, Space, Window
from cedos.session.protocol.intervals import CumulativeSet
from cedos.session.protocol.packing import MAX_DEPENDENCIES, MAX_POSITION
from cedos.session.protocol.room import (
    INITIAL_STREAM_BYTES,
    IROB_COST,
    Credit,
    ReplayAccount,
    ReplayMemory,
)
from cedos.session.protocol.send_queues import ByteQueue, Fetch, SendQueue

# Returned instead of an IROB's id if no path may carry its label now. The application is notified
# once one may.
DEFERRED: Final = -1


# A complete IROB up to this size travels in a frame with others and is never cut.
SMALL_BYTES: Final = 4_096

# The most gaps of a session that acknowledgements leave. Each costs memory, and a piece once the data is
# sent again. A range that would make one more is not noted: its data counts as not acknowledged.
MOST_GAPS: Final = 1_024

# The largest distance of an id in use from the lowest unacknowledged one.
ID_SPAN: Final = 1 << 20

# Returned instead of an IROB's id if replay memory, ids or the peer's window are used up.
NO_ROOM: Final = 0


class Sender:
    """The stream and the IROBs of one session that the peer has not acknowledged.

    Data are kept in replay memory until then, as they may have to be sent again over another path. An
    IROB also needs a reservation of the peer's memory before its first byte is sent (`Credit`).
    """

    def __init__(self, memory: ReplayMemory, limit_bytes: int, owner: object) -> None:
        self.replay = ReplayAccount(memory, limit_bytes, owner)
        self.stream = ByteQueue(0, 0)
        self.stream.limit = INITIAL_STREAM_BYTES
        self.irobs = CumulativeSet(1)  # the ids that the peer has received whole
        self.next_irob = 1
        self.gaps = 0  # below ranges that are acknowledged, of the stream and all IROBs
        self.credit = Credit()
        self.send_queues = tuple(SendQueue(rank) for rank in range(4))
        self._large: dict[int, ByteQueue] = {}  # by id: IROBs that are sent in extents

    @property
    def waits(self) -> bool:
        """Return whether there is data that the peer's window lets this end send now."""
        first, second, third, last = self.send_queues
        return bool(
            first.waiting_bytes or second.waiting_bytes or third.waiting_bytes or last.waiting_bytes
        )

    # The stream

    def write(self, data: bytes) -> int:
        """Take as much of the stream's data as there is room for; return how many bytes."""
        stream = self.stream
        self._check_stream_open()
        fitting = self.replay.fitting(data, stream.rank, self.room_bytes)
        if fitting:
            stream.write(fitting)
            self.send_queues[stream.rank].update(stream)
        return len(fitting)

    @property
    def room_bytes(self) -> int:
        return self.replay.stream_room_bytes(self.stream.rank)

    def write_source(self, fetch: Fetch, length: int) -> None:
        """Add bytes to the stream that are fetched when they are sent; they need no replay memory."""
        self._check_stream_open()
        if length > 0:
            self.stream.write_source(fetch, length)
            self.send_queues[self.stream.rank].update(self.stream)

    def finish(self) -> None:
        self.stream.ended = True
        self.send_queues[self.stream.rank].update(self.stream)

    def label_stream(self, rank: int) -> None:
        """Give the stream another label; data that was sent keeps the earlier label."""
        self.send_queues[self.stream.rank].leave(self.stream)
        self.stream.rank = rank
        self.send_queues[rank].update(self.stream)

    # IROBs

    def send(
        self, data: Chunk, rank: int, order: Order, after: tuple[int, ...], head: bytes = b""
    ) -> int:
        """Send a whole IROB, which is `head` and `data`; return its id or `NO_ROOM`."""
        size = len(head) + len(data)
        if size > SMALL_BYTES:
            self._check_size(size)
        if after:
            self._check_after(after)
        irob = self.take_id(size, rank)
        if not irob:
            return NO_ROOM
        # A small IROB joins the label's batch. A large one gets a byte queue, which is cut into extents.
        if size <= SMALL_BYTES:
            self.send_queues[rank].message(irob, order, after, head + bytes(data))
        else:
            queue = self._large[irob] = ByteQueue(irob, rank, order, after)
            if head:
                queue.write(head)
            queue.write(data)
            queue.ended = True
            self.send_queues[rank].update(queue)
        return irob

    def take_id(self, size: int, rank: int) -> int:
        """Take the next id with credit and replay memory for a whole IROB; or return `NO_ROOM`."""
        irob = self.next_irob
        if irob - self.irobs.floor >= ID_SPAN or not self._take_whole(size, 1, rank):
            return NO_ROOM
        self.next_irob = irob + 1
        return irob

    # What the peer says

    def acknowledge(self, ack: Ack) -> None:
        """Take an acknowledgement. ProtocolError: it names data that was never sent."""
        last = ack.ranges[-1][1] if ack.ranges else ack.floor
        # Positions are bytes of the stream, bytes of one large IROB, or ids of whole IROBs.
        if ack.space is Space.STREAM:
            self._acknowledge_bytes(self.stream, ack, last)
        elif ack.space is Space.EXTENTS:
            # A peer may also acknowledge a part of an IROB that this end forgot in a restart: ignore it.
            if ack.irob >= self.next_irob:
                raise ProtocolError(
                    f"the peer acknowledges a part of IROB {ack.irob}, which was never begun"
                )
            queue = self._large.get(ack.irob)
            if queue is not None:
                self._acknowledge_bytes(queue, ack, last)
        else:
            if last > self.next_irob:
                raise ProtocolError(
                    f"the peer acknowledges IROB {last - 1}; the last one begun is {self.next_irob - 1}"
                )
            self._acknowledge_irobs(self.irobs.floor, ack.floor)
            for start, stop in ack.ranges:
                self._acknowledge_irobs(start, stop)

    def window(self, window: Window) -> None:
        """Raise the limits to those of a window; an older window that comes late changes nothing."""
        stream, credit = self.stream, self.credit
        if window.stream_limit > stream.limit:
            stream.limit = window.stream_limit
            self.send_queues[stream.rank].update(stream)
        credit.irob_bytes = max(credit.irob_bytes, window.irob_bytes)
        credit.window_known = True
        credit.credit = max(credit.credit, window.irob_credit)

    @property
    def acknowledged_bytes(self) -> int:
        """Return how many bytes of the stream are acknowledged; its end counts as none."""
        return min(self.stream.acked.floor, self.stream.written)

    @property
    def arrived_bytes(self) -> int:
        """Return how much has arrived, since the session was in memory: once or twice what was sent."""
        return self.stream.acked.floor + self.replay.earned_bytes

    def everything_acknowledged(self) -> bool:
        return self.irobs.floor == self.next_irob and self.stream.acked.floor == self.stream.stop

    def restore(
        self, stop: int, room: int, rank: int, next_irob: int, credit: Credit, *, ended: bool
    ) -> None:
        """Begin as if the peer had acknowledged the stream below `stop` and all IROBs below `next_irob`.

        Args:
            stop: the first position of the stream that does not exist yet; the end is a position.
            room: the bytes of the stream that the peer lets this end send from there on.
            rank: the rank of the stream's label.
        """
        stream = self.stream = ByteQueue(0, rank, position=stop - ended)
        stream.ended = ended
        stream.fresh = stop
        stream.acked.add(0, stop)
        stream.limit = stream.written + room
        self.next_irob = next_irob
        self.irobs = CumulativeSet(next_irob)
        self.credit = credit

    def forget(self) -> None:
        self.replay.give_all()
        self._large.clear()
        self.gaps = len(self.stream.acked.beyond) + len(self.irobs.beyond)

    # Inside

    def _take_whole(self, size: int, count: int, rank: int) -> bool:
        """Take credit and replay memory for `count` IROBs of `size` bytes in all; both or neither."""
        if not self.credit.take(size + count * IROB_COST, rank):
            return False
        if self.replay.take(size, rank):
            return True
        self.credit.give_back(size + count * IROB_COST)
        return False

    def _check_after(self, after: tuple[int, ...]) -> None:
        if len(after) > MAX_DEPENDENCIES:
            raise SessionError(f"an IROB may wait for {MAX_DEPENDENCIES} others, not {len(after)}")
        if not 0 < min(after) <= max(after) < self.next_irob:
            raise SessionError(f"an IROB may wait for ids 1 to {self.next_irob - 1}, not {after}")

    def _check_stream_open(self) -> None:
        if self.stream.ended:
            raise SessionError("the stream has been finished; nothing more can be written")

    def _check_size(self, size: int) -> None:
        most = min(
            self.replay.limit_bytes,
            self.credit.irob_bytes if self.credit.window_known else MAX_POSITION,
        )
        if size > most:
            raise SessionError(f"an IROB of {size} bytes; at most {most} can be sent in one")

    def _acknowledge_bytes(self, queue: ByteQueue, ack: Ack, last: int) -> None:
        if last > queue.fresh:
            raise ProtocolError(
                f"the peer acknowledges up to {last} of stream {queue.irob}; sent were {queue.fresh}"
            )
        freed, acked = 0, queue.acked
        for start, stop in ((0, ack.floor), *ack.ranges):
            if self._may_note(acked, start, stop):
                before = len(acked.beyond)
                freed += queue.acknowledge(start, stop)
                self.gaps += len(acked.beyond) - before
        if freed:
            self.replay.give(freed)

    def _acknowledge_irobs(self, start: int, stop: int) -> None:
        if not self._may_note(self.irobs, start, stop):
            return
        if self._large:
            # Drop the large ones of the newly acknowledged IROBs. Look through the shorter of two lists.
            for low, high in self.irobs.missing(start, stop):
                few = range(low, high) if high - low < len(self._large) else sorted(self._large)
                for irob in few:
                    queue = self._large.get(irob)
                    if queue is not None and low <= irob < high:
                        self._drop(queue)
        before = len(self.irobs.beyond)
        self.irobs.add(start, stop)
        self.gaps += len(self.irobs.beyond) - before

    def _may_note(self, acked: CumulativeSet, start: int, stop: int) -> bool:
        """Return whether an acknowledged range makes no gap more, or there may be one more."""
        return self.gaps < MOST_GAPS or start <= acked.floor or acked.beyond.touches(start, stop)

    def _drop(self, queue: ByteQueue) -> None:
        """Forget a large IROB, which the peer has."""
        del self._large[queue.irob]
        self.send_queues[queue.rank].leave(queue)
        self.replay.give(queue.held_bytes)
        queue.held_bytes = 0
        # Pieces of it that are still in flight count as acknowledged: nothing sends them again.
        self.gaps -= len(queue.acked.beyond)
        queue.acked.add(0, MAX_POSITION)
