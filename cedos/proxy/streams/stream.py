"""A connection of many in a session: bytes both ways, ends, resets, and a window each way.

| state | sent here | may follow |
| --- | --- | --- |
| asked (`ask`) | OPEN, early data | accepted, broken |
| accepted | data within the peer's window | finished, peer_ended, broken |
| finished | END; data still comes | over, broken |
| peer_ended | data; END came | over, broken |
| over | - | - |
| broken | RESET, unless the peer or the session broke it | - |

Each end counts offsets, so that bytes in another order end the session.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from cedos.model import Bulk, Direction, Label, Urgency, is_address
from cedos.proxy.http import RefusedError
from cedos.proxy.streams.expected_sizes import AnnouncedBodies, ExpectedBursts
from cedos.proxy.streams.frames import (
    Frame,
    OpenStream,
    StreamAccepted,
    StreamBytes,
    StreamEnd,
    StreamRefused,
    StreamReset,
    StreamWindow,
)
from cedos.proxy.streams.unread import CHUNK_BYTES, Reading, Share
from cedos.session.protocol.delivery import append

# The first window of each end (docs/stream-protocol.md), and the most bytes that wait for a
# program that never reads. It doubles when a whole window was read, or half of one while the
# session lends.
INITIAL_WINDOW_BYTES: Final = 1 << 18

# The largest window.
WINDOW_BYTES: Final = 1 << 21

LEAST_CHUNK_BYTES: Final = 16_384
MOST_CHUNK_BYTES: Final = 260_000  # in one record
# A message has the bytes that the receiving program reads in this time, because it is delivered
# whole.
_CHUNK_S: Final = 0.010

SMALL_BYTES: Final = 65_536
# Data after this pause are a new burst. It counts as small until it is large.
_PAUSE_S: Final = 1.0

SMALL: Final = Label(Urgency.FOREGROUND, Bulk.SMALL)
LARGE: Final = Label(Urgency.FOREGROUND, Bulk.LARGE)

Chunk = bytes | memoryview


class StreamBrokenError(OSError):
    """An error: the other end's connection broke, or the session; this end's has to break, too."""


class Numbered(Protocol):
    """A sender of frames: `after` is the number of the message behind which the next one goes."""

    number: int
    after: tuple[int, ...]


class StreamSession(Protocol):
    """The session of a stream."""

    def put(self, stream: Numbered, data: bytes, label: Label, *, ordered: bool) -> None:
        """Send a frame, as soon as there is room."""

    def try_put(self, stream: "ProxiedStream", head: bytes, data: Chunk, label: Label) -> bool:
        """Send a frame now, behind the stream's others; False: `changed` is called when to try again."""

    def forget(self, number: int) -> None:
        """Forget a stream that is over."""

    def on_announced(self, size_bytes: int, direction: Direction) -> None:
        """Note that so many bytes follow on a stream now; small bodies are not announced."""

    def lend(self, size_bytes: int) -> bool:
        """Lend so much of window beyond what a program has read, if there is enough."""


class ProxiedStream:
    """A connection of a program. Made by a `Multiplexer`, which calls `took` and `changed`.

    Attributes:
        lossy: False: all data that is sent arrives.
        host, port: the destination that this end asked for.
        after: the number of the message behind which the next one goes.
        sent_bytes, received_bytes: of the programs.
        lent_bytes: window that the session has lent it.
    """

    def __init__(
        self,
        number: int,
        session: StreamSession,
        unread: Share | None = None,  # bounds the waiting bytes of all streams together
        bodies: AnnouncedBodies | None = None,  # reads how much follows
        bursts: ExpectedBursts | None = None,  # expects how much follows where nothing says so
    ) -> None:
        self.number = number
        self.lossy = False
        self.host, self.port = "", 0
        self._session = session
        self._unread = unread
        self._bodies, self._bursts = bodies, bursts
        self._loop = asyncio.get_running_loop()
        self.sent_bytes = self.received_bytes = self.lent_bytes = 0
        self.after: tuple[int, ...] = ()
        self._limit = self._granted = self._window_bytes = INITIAL_WINDOW_BYTES
        self._window_from = 0  # bytes read when the window was last made larger
        self._waiting: deque[Chunk] = deque()
        self._waiting_bytes = 0
        self._peer_ended = self._ended = self._accepted = False
        self._broken: Exception | None = None
        self._answer: asyncio.Future[None] | None = None
        self._watcher: Callable[[], None] = lambda: None
        self._burst_bytes, self._sent_at_s, self._held = 0, 0.0, False
        self._chunk_bytes, self._widened_at_s = LEAST_CHUNK_BYTES, 0.0
        self._reading: Reading | None = None
        # Up to which byte large data goes, by direction, as it was announced or is expected; when the
        # last of expected data moved.
        self._due: dict[Direction, int] = dict.fromkeys(Direction, 0)
        self._moved_s = 0.0

    def watch(self, call: Callable[[], None]) -> None:
        """Call `call` in the loop when data has come, there is room, or the stream broke."""
        self._watcher = call

    @property
    def finished(self) -> bool:
        """Tell whether this end has sent END."""
        return self._ended

    @property
    def peer_ended(self) -> bool:
        """Tell whether END came: nothing follows the waiting bytes."""
        return self._peer_ended

    @property
    def over(self) -> bool:
        """Tell whether both ends have sent END, and nothing broke."""
        return self._ended and self._peer_ended and self._broken is None

    @property
    def broken(self) -> Exception | None:
        """The error that broke it: StreamBrokenError, or the RefusedError of the other end."""
        return self._broken

    @property
    def gone(self) -> bool:
        """Tell whether it carries nothing any more, whatever ended it."""
        return self.over or self._broken is not None

    @property
    def server(self) -> str:
        """The server's name: a redirected program asks for an address, its first bytes have the name."""
        named = self._bodies.server_name if self._bodies is not None else None
        return named if named is not None and is_address(self.host) else self.host

    # Called by the program's end

    def ask(self, host: str, port: int, user: int = 0) -> None:
        self.host, self.port = host, port
        self._say(OpenStream(self.number, host, port, user))

    async def wait_accepted(self) -> None:
        """Wait for the other end's answer. RefusedError; StreamBrokenError."""
        if not self._accepted and self._broken is None:
            self._answer = self._answer or self._loop.create_future()
            await asyncio.shield(self._answer)
        if not self._accepted and self._broken is not None:
            raise self._broken

    def accept(self) -> None:
        self._say(StreamAccepted(self.number))

    def refuse(self, error: RefusedError) -> None:
        self._say(StreamRefused(self.number, error.status, error.kind, error.details))
        self._session.forget(self.number)
        self._give_up()

    @property
    def waiting(self) -> deque[Chunk]:
        """Received data that was not taken, in order; `taken` removes it."""
        return self._waiting

    @property
    def read_bytes(self) -> int:
        """Received bytes that were taken."""
        return self.received_bytes - self._waiting_bytes

    @property
    def unread_bytes(self) -> int:
        """Received bytes that wait for the program."""
        return self._waiting_bytes

    def lasts_s(self, now_s: float) -> float | None:
        """Return how long the unread bytes last the program at its pace, s; None: nothing comes."""
        if self._reading is None:  # made when it is first asked for
            self._reading = Reading()
        return self._reading.lasts_s(now_s, self.received_bytes, self.read_bytes)

    def waits_for(self, direction: Direction, now_s: float) -> bool:
        """Return whether its program waits for the rest of large data.

        Less may come than was expected: after a pause it does not wait.
        """
        moved = self.sent_bytes if direction is Direction.UP else self.received_bytes
        announced = self._bodies is not None and self._bodies.says_lengths
        return moved < self._due[direction] and (announced or now_s - self._moved_s < _PAUSE_S)

    def on_read(self, count: int) -> None:
        """Remove so many waiting bytes, which the program has; widen the window as it reads."""
        # Remove whole pieces, and cut the last one.
        waiting = self._waiting
        self._waiting_bytes -= count
        while count:
            first = waiting[0]
            if len(first) > count:
                waiting[0] = memoryview(first)[count:]
                break
            count -= len(first)
            waiting.popleft()
        self._account()
        # Double the window once all of it was read, or half of it while the session lends and takes back.
        read = self.read_bytes
        if self._window_bytes < WINDOW_BYTES and not (self._peer_ended or self._broken):
            wider = min(2 * self._window_bytes, WINDOW_BYTES)
            reads = read - self._window_from
            if reads >= self._window_bytes or (
                reads >= self._window_bytes // 2 and self._borrow(wider)
            ):
                self._window_bytes, self._window_from = wider, read
        self._grant()

    @property
    def room_bytes(self) -> int:
        """Bytes for which the other end's window has room."""
        return 0 if self._broken else self._limit - self.sent_bytes

    def write(self, data: Chunk) -> int:
        """Send data; return the number of bytes taken. `changed` is called when to try the rest."""
        begin = 0
        view = memoryview(data)
        while begin < len(data) and (room := self.room_bytes) > 0:
            chunk = view[begin : begin + min(room, self._chunk_bytes)]
            head = StreamBytes.head(self.number, self.sent_bytes)
            held = self._held  # this data waited: it begins no new burst
            self._held = not self._session.try_put(self, head, chunk, self._label(len(chunk)))
            if self._held:
                break
            if self._bodies is not None:
                self._announce(self._bodies.sends(self.sent_bytes, chunk), Direction.UP)
            self._expect(Direction.UP, len(chunk), goes_on=held)
            self.sent_bytes += len(chunk)
            begin += len(chunk)
        return begin

    def finish(self) -> None:
        """Send END; data from the other end still comes."""
        if self._broken is None and not self._ended:
            self._say(StreamEnd(self.number, self.sent_bytes))
            self._ended = True
            if self._peer_ended:
                self._is_over()

    def drop(self) -> None:
        """Break it for both ends, unless it is over and was read, and drop the waiting bytes."""
        # Without these bytes the stream is not complete: forget the peer's end, so that the reader sees
        # a break.
        self._peer_ended = self._peer_ended and not self._waiting
        if self._broken is None and not (self._ended and self._peer_ended):
            # Behind the end that was sent: what the program said before it left arrives.
            self._say(StreamReset(self.number), ordered=self._ended)
            self.break_off(StreamBrokenError("it was reset here"))
        self._give_up()
        self.on_change()

    # Called by the multiplexer

    def on_change(self) -> None:
        self._watcher()

    def on_frame(self, frame: Frame) -> None:
        """Take a frame. ValueError: an honest end does not send it."""
        match frame:
            case StreamBytes():
                self._took_data(frame)
            case StreamEnd():
                if frame.offset != self.received_bytes or self._peer_ended:
                    raise ValueError("a stream's end is not where its bytes ended")
                self._peer_ended = True
                if self._ended:
                    self._is_over()
            case StreamWindow():
                self._widen(frame.limit)
            case StreamAccepted():
                self._accepted = True
                self._tell()
            case StreamRefused():
                self.break_off(RefusedError(frame.status, frame.kind, frame.details))
            case StreamReset():
                self.break_off(StreamBrokenError("the other end reset it"))
            case _:
                raise ValueError("a stream was opened twice")

    def break_off(self, error: Exception) -> None:
        """Break it here: nothing is sent or received any more."""
        if self._broken is None:
            self._broken = error
        if self._bursts is not None:
            self._bursts.on_cut_off()
        self._tell()
        self._session.forget(self.number)

    # Inside

    def _is_over(self) -> None:
        if self._bursts is not None:
            self._bursts.on_end()
        self._session.forget(self.number)

    def _took_data(self, frame: StreamBytes) -> None:
        if frame.offset != self.received_bytes or self._peer_ended:
            raise ValueError("a stream's bytes came in another order than they were sent in")
        if self._bodies is not None:
            self._announce(self._bodies.comes(frame.offset, frame.data), Direction.DOWN)
        self._expect(Direction.DOWN, len(frame.data), goes_on=True)
        self.received_bytes += len(frame.data)
        if self.received_bytes > self._granted:
            raise ValueError("a stream brought more than its window")
        if frame.data:
            append(self._waiting, frame.data)
            self._waiting_bytes += len(frame.data)
            self._account()

    def _announce(self, size_bytes: int, direction: Direction) -> None:
        if size_bytes <= SMALL_BYTES:
            return
        self._note_due(size_bytes, direction)
        wider = min(size_bytes, WINDOW_BYTES)
        if direction is Direction.DOWN and self._window_bytes < wider and self._borrow(wider):
            self._window_bytes, self._window_from = wider, self.read_bytes
            self._grant()

    def _expect(self, direction: Direction, count: int, *, goes_on: bool) -> None:
        """Learn from bytes that go one way; `goes_on`: they do not begin a request."""
        bursts, bodies = self._bursts, self._bodies
        if bursts is None or (bodies is not None and bodies.says_lengths):
            return
        now_s = self._loop.time()
        if not goes_on and bursts.is_new_request(now_s):
            bursts.begin(self.server, self.port)
        self._moved_s = now_s
        for way, size in bursts.moves(direction, count, now_s):
            if size > SMALL_BYTES:
                self._note_due(size, way)

    def _note_due(self, size_bytes: int, direction: Direction) -> None:
        """Note that so many bytes follow."""
        moved = self.sent_bytes if direction is Direction.UP else self.received_bytes
        self._due[direction] = moved + size_bytes
        self._session.on_announced(size_bytes - SMALL_BYTES, direction)

    def _borrow(self, window_bytes: int) -> bool:
        """Borrow the rest of a larger window from the session, if it lends."""
        more = window_bytes - self._window_bytes
        if not self._session.lend(more):
            return False
        self.lent_bytes += more
        return True

    def _grant(self) -> None:
        """Send WINDOW, if the limit has grown by half a window."""
        limit = self.read_bytes + self._window_bytes
        if limit - self._granted >= self._window_bytes // 2 and not self._peer_ended:
            self._granted = limit
            self._say(StreamWindow(self.number, limit), ordered=False)

    def _give_up(self) -> None:
        self._waiting.clear()
        self._waiting_bytes = 0
        self._account()

    def _account(self) -> None:
        if self._unread is not None:
            self._unread.waits(self, self._waiting_bytes + CHUNK_BYTES * len(self._waiting))

    def _widen(self, limit: int) -> None:
        """Take a WINDOW: the rate at which it grows is that of the other program's reading."""
        now_s, more = self._loop.time(), limit - self._limit
        if more <= 0:  # it came late
            return
        if self._widened_at_s:
            wanted = int(more / max(now_s - self._widened_at_s, 1e-6) * _CHUNK_S)
            self._chunk_bytes = max(LEAST_CHUNK_BYTES, min(MOST_CHUNK_BYTES, wanted))
        self._limit, self._widened_at_s = limit, now_s

    def _tell(self) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(None)

    def _say(self, frame: Frame, *, ordered: bool = True) -> None:
        label = self._label(0) if ordered else SMALL
        self._session.put(self, frame.pack(), label, ordered=ordered)

    def _label(self, count: int) -> Label:
        now_s = self._loop.time()
        if now_s - self._sent_at_s > _PAUSE_S and not self._held:
            self._burst_bytes = 0
        self._sent_at_s = now_s
        self._burst_bytes += count
        return LARGE if self._burst_bytes > SMALL_BYTES else SMALL
