"""The receiving half of a session: it takes extents in any order, and keeps them for the application.

A record with an acknowledgement alone costs both ends a packet, and an acknowledgement in each record of
data costs a frame. So data takes one along at most each 5 ms. One is sent alone only after a delay, or
after enough received bytes (`DelayedAcks`).
"""

from itertools import islice
from typing import Final

from cedos.errors import ProtocolError
from cedos.session.protocol import packing
from cedos.session.protocol.delivery import MAX_GAPS, Delivery, Run, StreamReassembly
from cedos.session.protocol.frames import Extent, Messages, Space, StreamData, Window
from cedos.session.protocol.intervals import CumulativeSet
from cedos.session.protocol.room import (
    INITIAL_IROB_BYTES,
    INITIAL_IROB_CREDIT,
    INITIAL_STREAM_BYTES,
    IROB_COST,
)
from cedos.session.protocol.sender import ID_SPAN

# The most gaps in the ids of received IROBs. No sender of this protocol leaves more, so a peer that does
# is refused.
MAX_ID_GAPS: Final = 20_000

# The most IROBs that came in part of which a statement tells. The peer sends the others once more.
_MOST_STATED: Final = 1_024

# Memory of an IROB of which only a part has come, beside `IROB_COST`.
_PARTIAL_BYTES: Final = 1_600

# Memory of an id that such an IROB waits for.
_AWAITED_BYTES: Final = 40

# Memory of a piece behind a gap, with its place in two tables.
_PIECE_BYTES: Final = 448

# The most memory beside the windows. A sender of this protocol causes 150 MB at most: by 65,536 empty
# IROBs, for which the window has room, that each wait for 256 others.
MOST_EXTRA_BYTES: Final = 256 << 20


class _Partial:
    """A large IROB of which only some extents have arrived."""

    __slots__ = ("after", "arrivals", "order", "rank")

    def __init__(self, extent: Extent) -> None:
        self.rank = extent.rank
        self.order = extent.order
        self.after = extent.after
        self.arrivals = StreamReassembly()

    def agrees(self, extent: Extent) -> bool:
        return (self.rank, self.order, self.after) == (extent.rank, extent.order, extent.after)


class Receiver:
    """The receiving half of a session."""

    def __init__(self, stream_window: int, irob_window: int, irob_bytes: int) -> None:
        self.stream = StreamReassembly()
        self.irobs = CumulativeSet(1)  # the ids received whole
        self.delivery = Delivery()
        self.unacknowledged_bytes = 0  # the bytes that arrived since the last acknowledgement
        self.irobs_bytes = [0, 0, 0, 0]  # the bytes of all IROBs that arrived so far, by rank
        # The most bytes that one IROB may have.
        self.irob_bytes = max(irob_bytes, INITIAL_IROB_BYTES)
        self._stream_window = max(stream_window, INITIAL_STREAM_BYTES)
        # The largest IROB must fit beside what background data leaves to urgent ones.
        self._irob_window = max(irob_window, INITIAL_IROB_CREDIT, 2 * (irob_bytes + IROB_COST))
        self._taken = 0  # stream bytes that the application has read
        # The last Window that the peer was told: the end of the stream's window, the credit for IROBs.
        self._stream_limit = INITIAL_STREAM_BYTES
        self._credit_granted = INITIAL_IROB_CREDIT
        # Whether the window has grown so much that the peer has to be told.
        self.owes_window = False
        # The credit that the delivered IROBs took: their bytes, and `IROB_COST` each.
        self.delivered_cost = 0
        self._pieces = 0  # pieces of large IROBs that lie behind gaps
        # The credit of IROBs that arrived, whole or in part, and were not delivered.
        self._held_cost = 0
        self._partial: dict[int, _Partial] = {}
        self._partial_awaited = 0  # the ids that all of them wait for
        # What arrived since it was last acknowledged.
        self._dirty_stream = False
        self._dirty_irobs = False
        self._dirty_partial: set[int] = set()

    # Frames

    def on_stream(self, extent: StreamData, record: bytes | memoryview) -> None:
        stop = extent.offset + len(extent.payload)
        if stop > self._stream_limit:
            raise ProtocolError(
                f"stream bytes up to {stop}; the window ends at {self._stream_limit}"
            )
        self.unacknowledged_bytes += self.stream.add(
            extent.offset, keep(extent.payload, record), extent.end
        )
        self._dirty_stream = True

    def on_extent(self, extent: Extent, record: bytes | memoryview) -> None:
        irob = extent.irob
        self._check_id(irob)
        self._check_memory()
        self._dirty_irobs = True
        # A copy of an IROB that is here already needs an acknowledgement only.
        if self.irobs.covers(irob, irob + 1):
            return
        stop = extent.offset + len(extent.payload)
        if stop > self.irob_bytes:
            raise ProtocolError(
                f"IROB {irob} has at least {stop} bytes; allowed are {self.irob_bytes}"
            )
        partial = self._partial.get(irob)
        # Fast path: nearly always all of it arrives at once.
        if partial is None and extent.end and not extent.offset:
            self.unacknowledged_bytes += stop
            self.irobs_bytes[extent.rank] += stop
            self._hold(stop + IROB_COST)
            self.irobs.add(irob, irob + 1)
            data = keep(extent.payload, record)
            self.delivery.arrive(Run(irob, extent.rank, [data]), extent.order, extent.after)
            return
        # Slow path: the IROB comes in several extents, in any order.
        if partial is None:
            partial = self._partial[irob] = _Partial(extent)
            self._partial_awaited += len(extent.after)
            self._hold(IROB_COST)
        elif not partial.agrees(extent):
            raise ProtocolError(f"IROB {irob} has two labels or orders")
        arrivals = partial.arrivals
        # Count the pieces of all partial IROBs together, so that a peer cannot open many at little cost.
        self._pieces -= arrivals.pieces
        new = arrivals.add(extent.offset, keep(extent.payload, record), extent.end)
        self._pieces += arrivals.pieces
        self.unacknowledged_bytes += new
        self.irobs_bytes[extent.rank] += new
        self._hold(new)
        if self._pieces > MAX_GAPS:
            raise ProtocolError(f"IROBs arrive in more than {MAX_GAPS} separate pieces")
        # Deliver the IROB once it is whole.
        if not arrivals.complete:
            self._dirty_partial.add(irob)
            return
        del self._partial[irob]
        self._partial_awaited -= len(partial.after)
        self._dirty_partial.discard(irob)
        self.irobs.add(irob, irob + 1)
        whole = b"".join(arrivals.ready)
        self.delivery.arrive(Run(irob, partial.rank, [whole]), partial.order, partial.after)

    def on_messages(self, table: Messages) -> None:
        first, payloads = table.first, table.payloads
        stop = first + len(payloads)
        self._check_id(stop - 1)
        if table.after:
            self._check_memory()
        self._dirty_irobs = True
        irobs = self.irobs
        # Nearly always they are in order, and all of them new.
        all_new = first == irobs.floor and not irobs.beyond
        # Take the ids that are new; copies that came over another path are dropped.
        for low, high in ((first, stop),) if all_new else irobs.missing(first, stop):
            part = payloads if high - low == len(payloads) else payloads[low - first : high - first]
            size = sum(map(len, part))
            self.unacknowledged_bytes += size + len(part)
            self.irobs_bytes[table.rank] += size
            self._hold(size + len(part) * IROB_COST)
            if self._partial:
                self._refuse_partial(low, high)
            irobs.add(low, high)
            self.delivery.arrive(Run(low, table.rank, part), table.order, table.after)
        if len(irobs.beyond) > MAX_ID_GAPS:
            raise ProtocolError(f"IROBs arrive with more than {MAX_ID_GAPS} gaps in their ids")

    # The application

    def read(self, limit_bytes: int) -> bytes | memoryview:
        chunk = self.stream.take(limit_bytes)
        self._taken += len(chunk)
        window = self._stream_window
        # Tell the peer once it may send a quarter of the window more than it knows.
        if self._taken + window - self._stream_limit >= window // 4:
            self.owes_window = True
        return chunk

    def pop(self, limit: int) -> Run | None:
        run = self.delivery.pop(limit)
        if run is not None:
            cost = sum(map(len, run.payloads)) + len(run.payloads) * IROB_COST
            self._held_cost -= cost
            self.delivered_cost += cost
            window = self._irob_window
            if self.delivered_cost + window - self._credit_granted >= window // 4:
                self.owes_window = True
        return run

    @property
    def held_bytes(self) -> int:
        """Return the memory of what arrived and was not read; data in parts has more than its credit."""
        pieces = self._pieces + self.stream.pieces + len(self.irobs.beyond)
        extra = _PARTIAL_BYTES * len(self._partial) + _AWAITED_BYTES * self._partial_awaited
        extra += self.delivery.list_bytes
        extra += _PIECE_BYTES * pieces
        return self._held_cost + extra + self.stream.ready_bytes + self.stream.waiting_bytes

    @property
    def at_end(self) -> bool:
        return self.stream.complete and not self.stream.ready

    @property
    def idle(self) -> bool:
        """Return whether all that arrived was read, and nothing lies behind a gap."""
        return not (
            self._held_cost
            or self.stream.ready
            or self.stream.received.beyond
            or self.irobs.beyond
            or self.delivery.waiting
        )

    # To the peer

    def acknowledgements(self, *, everything: bool) -> list[bytes]:
        """Return acknowledgements for what arrived since the last ones, or for `everything`.

        Of everything, those of IROBs that came in part are left out where they are too many.
        """
        frames = []
        if self._dirty_stream or everything:
            frames.append(_ack(Space.STREAM, 0, self.stream.received))
        if self._dirty_irobs or everything:
            frames.append(_ack(Space.IROBS, 0, self.irobs))
        partial = islice(self._partial, _MOST_STATED) if everything else self._dirty_partial
        told = sorted(partial)
        frames += [
            _ack(Space.EXTENTS, irob, self._partial[irob].arrivals.received) for irob in told
        ]
        self._dirty_stream = self._dirty_irobs = False
        self._dirty_partial.difference_update(told)
        self.unacknowledged_bytes = 0
        return frames

    @property
    def owes_acknowledgement(self) -> bool:
        return self._dirty_stream or self._dirty_irobs

    def resize(self, stream_window: int) -> None:
        """Change how much the peer may send ahead; what it was granted before stays granted."""
        self._stream_window = stream_window

    def window(self) -> bytes:
        """Return a Window frame: how far the peer may send now. It never takes back what it granted."""
        self.owes_window = False
        self._stream_limit = max(self._taken + self._stream_window, self._stream_limit)
        self._credit_granted = max(self.delivered_cost + self._irob_window, self._credit_granted)
        window = Window(self._stream_limit, self._credit_granted, self.irob_bytes)
        return packing.pack_fixed(window)

    # Sleep

    def grants(self) -> tuple[int, int]:
        """Return how much of the stream, and credit of IROBs, the peer may send beyond what was read."""
        return self._stream_limit - self._taken, self._credit_granted - self.delivered_cost

    def restore(
        self, stop: int, next_irob: int, delivered: int, granted: tuple[int, int], *, ended: bool
    ) -> None:
        """Start from positions below which all was received and read; `granted`: from `grants()`.

        `stop`: behind the last received position of the stream; its end, if `ended`, takes one.
        """
        self.stream = StreamReassembly(stop - ended)
        if ended:
            self.stream.add(stop - 1, b"", end=True)
        self.irobs = CumulativeSet(next_irob)
        self.delivery = Delivery(next_irob)
        self.delivered_cost = delivered
        self._taken = stop - ended
        self._stream_limit = self._taken + granted[0]
        self._credit_granted = delivered + granted[1]

    # Inside

    def _check_id(self, irob: int) -> None:
        if irob >= self.irobs.floor + ID_SPAN:
            raise ProtocolError(
                f"IROB {irob}, while {self.irobs.floor} is the lowest that is missing"
            )

    def _check_memory(self) -> None:
        most_bytes = self._stream_window + self._irob_window + MOST_EXTRA_BYTES
        if self.held_bytes > most_bytes:
            raise ProtocolError(
                f"parts and IROBs that wait for others hold more than {most_bytes} bytes"
            )

    def _hold(self, cost: int) -> None:
        """Add to the credit of IROBs that are held. ProtocolError: the peer sent more than its window."""
        self._held_cost += cost
        if self._held_cost > self._irob_window:
            raise ProtocolError(f"more IROBs than the window of {self._irob_window} bytes allows")

    def _refuse_partial(self, low: int, high: int) -> None:
        # There are no more ids than the frame has messages.
        if irob := next((each for each in range(low, high) if each in self._partial), None):
            raise ProtocolError(f"IROB {irob} comes as a small one after it came as a large one")


def keep(payload: memoryview, record: bytes | memoryview) -> bytes | memoryview:
    """Return the payload in memory that does not change: a copy, or the payload itself.

    A record that is a `bytes` object never changes, a view may. But a payload in it keeps the whole
    record in memory, so a small one is copied.
    """
    if type(record) is bytes and 2 * len(payload) > len(record):
        return payload
    return bytes(payload)


def _ack(space: Space, irob: int, progress: CumulativeSet) -> bytes:
    ranges = []
    # An Ack holds at most `MAX_RANGES` ranges. The others follow once lower gaps have closed.
    for each in progress.beyond:
        ranges.append(each)
        if len(ranges) == packing.MAX_RANGES:
            break
    return packing.ack(space, irob, progress.floor, ranges)


# Data carry an acknowledgement if the last one was sent at least this long ago.
_ALONG_S: Final = 0.005


class DelayedAcks:
    """The timer of acknowledgements: one is sent after `enough_bytes`, or after `delay_s` at the latest.

    Attributes:
        due: an acknowledgement has to be sent now, alone if no data waits.
        along: the next record of data takes one along.
        at: when one becomes due, `delay_s` after the first unacknowledged byte; None: nothing to
            acknowledge.
    """

    __slots__ = ("_delay_s", "_enough_bytes", "_receiver", "_sent_s", "along", "at", "due")

    def __init__(self, receiver: Receiver, enough_bytes: int, delay_s: float) -> None:
        self.due = self.along = False
        self.at: float | None = None
        self._receiver = receiver
        self._enough_bytes = enough_bytes
        self._delay_s = delay_s
        self._sent_s = float("-inf")

    def on_received(self, now: float) -> None:
        receiver = self._receiver
        if not receiver.owes_acknowledgement:
            return
        # Much data is acknowledged at once, little after a delay; and data of this end takes an
        # acknowledgement along, though not each record.
        if receiver.unacknowledged_bytes >= self._enough_bytes:
            self.due = True
        elif self.at is None:
            self.at = now + self._delay_s
        self.along = now - self._sent_s >= _ALONG_S

    def on_sent(self, now: float) -> None:
        self.due = self.along = False
        self.at = None
        self._sent_s = now

    def at_once(self) -> None:
        self.due |= self._receiver.owes_acknowledgement

    def tick(self, now: float) -> None:
        if self.at is not None and self.at <= now:
            self.at = None
            self.due = self._receiver.owes_acknowledgement
