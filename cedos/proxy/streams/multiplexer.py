"""The streams of one session: what is theirs of what comes, and who opens them."""

from collections.abc import Callable
from itertools import count
from typing import Final

import structlog

from cedos.errors import SessionError
from cedos.model import Label
from cedos.proxy.streams.frames import Frame, OpenStream, StreamBytes, StreamEnd, parse
from cedos.proxy.streams.stream import ProxiedStream, StreamBrokenError
from cedos.session.sockets.connection import Connection

_LAST_STREAM: Final = (1 << 32) - 1
_MOST_AHEAD: Final = 65_536
"""Streams may be opened in another order than they were numbered in, but not by any distance."""

_log = structlog.get_logger(__name__)


class Multiplexer:
    """Both ends have one; the end that dialled opens streams.

    Args:
        opened: called with a stream that the other end opens, and what it asks for; None: it may not.
    """

    def __init__(
        self,
        connection: Connection,
        opened: Callable[[ProxiedStream, OpenStream], None] | None = None,
    ) -> None:
        self.connection = connection
        self._opened = opened
        self._streams: dict[int, ProxiedStream] = {}
        self._numbers = count(1)
        self._all_opened_to = 0
        self._opened_ahead: set[int] = set()

    def __len__(self) -> int:
        return len(self._streams)

    async def open(self, host: str, port: int) -> ProxiedStream:
        """Asks for a connection; what is written to it need not wait until it stands.

        Errors: StreamBrokenError, the session has ended.
        """
        number = next(self._numbers)
        if number > _LAST_STREAM:
            raise StreamBrokenError("the session has had all its streams")
        stream = self._made(number)
        await stream.ask(host, port)
        return stream

    async def run(self) -> None:
        """Takes what comes until the session ends, which ends all streams."""
        why = "the session ended"
        try:
            while messages := await self.connection.receive_many():
                for message in messages:
                    self._take(parse(message.data))
        except SessionError as error:
            why = str(error)
        except ValueError as error:
            why = f"not the stream protocol: {error}"
            _log.warning("a session is ended", why=why)
            self.connection.abort(why)
        finally:
            for stream in list(self._streams.values()):
                stream.broke(StreamBrokenError(why))

    def _take(self, frame: Frame) -> None:
        stream = self._streams.get(frame.stream)
        if stream is not None:
            stream.took(frame)
        elif isinstance(frame, OpenStream):
            self._open(frame)
        elif (
            self._opened is not None
            and isinstance(frame, StreamBytes | StreamEnd)
            and self._new(frame.stream)
        ):
            raise ValueError("bytes of a stream that nobody opened")
        # Else it is over at this end, and the other one did not know yet.

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
        stream = ProxiedStream(number, self._send, self._forget)
        self._streams[number] = stream
        return stream

    def _forget(self, number: int) -> None:
        self._streams.pop(number, None)

    async def _send(self, data: bytes, label: Label, after: tuple[int, ...]) -> int:
        try:
            sent = await self.connection.send(data, label, after=after)
        except SessionError as error:
            raise StreamBrokenError(str(error)) from error
        assert sent is not None  # without a thunk nothing is put off
        return sent
