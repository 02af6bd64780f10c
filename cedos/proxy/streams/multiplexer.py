"""The streams of one session: what is theirs of what comes, and who opens them."""

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Final

import structlog

from cedos.errors import SessionError
from cedos.model import Label
from cedos.proxy.streams.frames import Frame, OpenStream, StreamBytes, StreamEnd, parse
from cedos.proxy.streams.kept import KeptFrame, KeptStreams
from cedos.proxy.streams.stream import LARGE, SMALL, ProxiedStream, StreamBrokenError
from cedos.session.sockets.connection import Connection

_LAST_STREAM: Final = (1 << 32) - 1
_MOST_AHEAD: Final = 65_536
"""Streams may be opened in another order than they were numbered in, but not by any distance."""

_MOST_WAITING: Final = 65_536
"""Frames without room in the session; bytes of programs are not among them."""

_log = structlog.get_logger(__name__)


class Multiplexer:
    """Both ends have one; the end that dialled opens streams.

    It works in the session's own callbacks: between what comes and the program's socket lies no task.

    Args:
        opened: called with a stream that the other end opens, and what it asks for; None: it may not.
        kept: what another process had of this session's streams.
    """

    def __init__(
        self,
        connection: Connection,
        opened: Callable[[ProxiedStream, OpenStream], None] | None = None,
        kept: KeptStreams | None = None,
    ) -> None:
        self.connection = connection
        self._opened = opened
        self._streams: dict[int, ProxiedStream] = {}
        self._numbers = count(1)
        self._all_opened_to = 0
        self._opened_ahead: set[int] = set()
        self._waiting: deque[tuple[ProxiedStream, bytes, Label, bool]] = deque()
        self._no_room: dict[int, ProxiedStream] = {}
        self._over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._turning = self._again = False
        if kept is not None:
            self._take_up(kept)

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def streams(self) -> dict[int, ProxiedStream]:
        """Those that live, by number."""
        return self._streams

    def open(self, host: str, port: int) -> ProxiedStream:
        """Asks for a connection; what is written to it need not wait until it stands.

        Errors: StreamBrokenError, the session has ended.
        """
        number = next(self._numbers)
        if number > _LAST_STREAM:
            raise StreamBrokenError("the session has had all its streams")
        if self.connection.ended:
            raise StreamBrokenError(str(self.connection.failure or "the session has ended"))
        stream = self._made(number)
        stream.ask(host, port)
        return stream

    async def run(self) -> None:
        """Takes what comes until the session ends, which ends all streams."""
        why = "the session ended"
        self.connection.on_change(self._changed)
        try:
            self._changed()
            why = await self._over
        finally:
            self.connection.on_change(None)
            for stream in list(self._streams.values()):
                stream.broke(StreamBrokenError(why))
                stream.changed()

    def keep(self) -> KeptStreams:
        """For the process that goes on with it; nothing is taken or sent here any more."""
        self.connection.on_change(None)
        return KeptStreams(
            self._all_opened_to,
            sorted(self._opened_ahead),
            [stream.keep() for stream in self._streams.values()],
            [
                KeptFrame(stream.number, data, label is LARGE, ordered)
                for stream, data, label, ordered in self._waiting
            ],
        )

    # What streams call

    def put(self, stream: ProxiedStream, data: bytes, label: Label, *, ordered: bool) -> None:
        if self._waiting or not self._sent(stream, data, label, ordered=ordered):
            self._waiting.append((stream, data, label, ordered))
            if len(self._waiting) > _MOST_WAITING:
                self.connection.abort("the other end takes no answers")

    def try_put(self, stream: ProxiedStream, data: bytes, label: Label) -> bool:
        done = not self._waiting and self._sent(stream, data, label, ordered=True)
        if not done:
            self._no_room[stream.number] = stream
        return done

    def forget(self, number: int) -> None:
        self._streams.pop(number, None)
        self._no_room.pop(number, None)

    # Inside

    def _sent(self, stream: ProxiedStream, data: bytes, label: Label, *, ordered: bool) -> bool:
        try:
            sent = self.connection.send_now(data, label, after=stream.after if ordered else ())
        except SessionError:
            return False  # the streams are told when it has ended
        if sent and ordered:
            stream.after = (sent,)
        return bool(sent)

    def _changed(self) -> None:
        self._again = True
        if self._turning:
            return
        self._turning = True
        try:
            while self._again and not self._over.done():
                self._again = False
                self._turn()
        except ValueError as error:
            why = f"not the stream protocol: {error}"
            _log.warning("a session is ended", why=why)
            self._over.set_result(why)
            self.connection.abort(why)
        finally:
            self._turning = False

    def _turn(self) -> None:
        """Takes what there is, then sends what has room now."""
        connection = self.connection
        touched: dict[int, ProxiedStream] = {}
        while messages := connection.receive_many_now():
            for message in messages:
                frame = parse(message.data)
                if (stream := self._taken(frame)) is not None:
                    touched[frame.stream] = stream
        while self._waiting:
            stream, data, label, ordered = self._waiting[0]
            if not self._sent(stream, data, label, ordered=ordered):
                break
            self._waiting.popleft()
        if self._no_room and not self._waiting:
            touched |= self._no_room
            self._no_room.clear()
        for stream in touched.values():
            stream.changed()
        if connection.ended:
            self._over.set_result(str(connection.failure or "the session ended"))
        elif connection.peer_closed:
            self._over.set_result("the session ended")

    def _taken(self, frame: Frame) -> ProxiedStream | None:
        """The stream that took a frame; None: no stream has to be told."""
        stream = self._streams.get(frame.stream)
        if stream is not None:
            stream.took(frame)
            return stream
        if isinstance(frame, OpenStream):
            self._open(frame)
        elif (
            self._opened is not None
            and isinstance(frame, StreamBytes | StreamEnd)
            and self._new(frame.stream)
        ):
            raise ValueError("bytes of a stream that nobody opened")
        # Else it is over at this end, and the other one did not know yet.
        return None

    def _open(self, frame: OpenStream) -> None:
        number = frame.stream
        if self._opened is None or not self._new(number):
            raise ValueError("a stream was opened twice, or by the end that may not")
        if number > self._all_opened_to + _MOST_AHEAD:
            raise ValueError("a stream was opened far ahead of the others")
        self._opened_ahead.add(number)
        while self._all_opened_to + 1 in self._opened_ahead:
            self._all_opened_to += 1
            self._opened_ahead.discard(self._all_opened_to)
        self._opened(self._made(number), frame)

    def _new(self, number: int) -> bool:
        return number > self._all_opened_to and number not in self._opened_ahead

    def _made(self, number: int) -> ProxiedStream:
        stream = self._streams[number] = ProxiedStream(number, self)
        return stream

    def _take_up(self, kept: KeptStreams) -> None:
        self._all_opened_to, self._opened_ahead = kept.opened_to, set(kept.opened_ahead)
        made = {each.number: ProxiedStream(each.number, self, each) for each in kept.streams}
        self._streams.update(made)
        for frame in kept.frames:
            # (Of a stream that is over, what is left to be said may be its reset or its end.)
            stream = made.get(frame.stream) or ProxiedStream(frame.stream, self)
            label = LARGE if frame.large else SMALL
            self._waiting.append((stream, frame.data, label, frame.ordered))
