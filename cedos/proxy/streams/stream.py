"""One connection of many in a session: bytes both ways, ends, resets, and a window each way."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from cedos.model import Bulk, Label, Urgency
from cedos.proxy.answers import RefusedError
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

WINDOW_BYTES: Final = 1 << 20
"""So much may wait at one end for a program that does not read: the fastest path's second, at most."""

CHUNK_BYTES: Final = 16_384
"""Of a message nothing is handed on before all of it is there: on a slow path that should not be long."""

SMALL_BYTES: Final = 65_536
_PAUSE_S: Final = 1.0
"""What follows a pause is something new: it is small until it turns out not to be."""

_SMALL: Final = Label(Urgency.FOREGROUND, Bulk.SMALL)
_LARGE: Final = Label(Urgency.FOREGROUND, Bulk.LARGE)

Send = Callable[[bytes, Label, tuple[int, ...]], Awaitable[int]]
"""Sends a message with its label after those with these numbers; its own number."""


class StreamBrokenError(OSError):
    """The other end's connection broke, or the session did: this one is to break, too."""


class ProxiedStream:
    """Made by a `Multiplexer`, which tells it what came (`took`).

    Attributes:
        sent_bytes, received_bytes: of the programs.
    """

    def __init__(self, number: int, send: Send, forget: Callable[[int], None]) -> None:
        self.number = number
        self.sent_bytes = self.received_bytes = 0
        self._send, self._forget = send, forget
        self._loop = asyncio.get_running_loop()
        self._last: tuple[int, ...] = ()
        self._limit = WINDOW_BYTES
        self._granted = WINDOW_BYTES
        self._taken = 0
        self._waiting: deque[bytes] = deque()
        self._peer_ended = self._ended = self._accepted = False
        self._broken: Exception | None = None
        self._changed = asyncio.Event()
        self._burst_bytes, self._sent_at_s = 0, 0.0

    @property
    def finished(self) -> bool:
        """Whether this end has said that nothing follows."""
        return self._ended

    @property
    def over(self) -> bool:
        """Whether both ends have ended, and nothing broke."""
        return self._ended and self._peer_ended and self._broken is None

    # What a program's end calls

    async def ask(self, host: str, port: int) -> None:
        await self._say(OpenStream(self.number, host, port))

    async def accepted(self) -> None:
        """Waits until the connection stands. RefusedError: it does not; StreamBrokenError."""
        while not self._accepted:
            await self._something()

    async def accept(self) -> None:
        await self._say(StreamAccepted(self.number))

    async def refuse(self, error: RefusedError) -> None:
        await self._say(StreamRefused(self.number, error.status, error.kind, error.details))
        self._forget(self.number)

    async def read(self) -> bytes:
        """The next bytes; empty at the end. StreamBrokenError."""
        while not self._waiting:
            if self._peer_ended:
                return b""
            await self._something()
        data = self._waiting.popleft()
        self._taken += len(data)
        if self._taken + WINDOW_BYTES - self._granted >= WINDOW_BYTES // 2 and not self._peer_ended:
            self._granted = self._taken + WINDOW_BYTES
            await self._say(StreamWindow(self.number, self._granted), ordered=False)
        return data

    async def write(self, data: bytes) -> None:
        """Returns when the session has it. StreamBrokenError."""
        begin = 0
        while begin < len(data):
            while (room := self._limit - self.sent_bytes) <= 0:
                await self._something()
            self._check()
            chunk = data[begin : begin + min(room, CHUNK_BYTES)]
            frame = StreamBytes(self.number, self.sent_bytes, chunk)
            self.sent_bytes += len(chunk)
            begin += len(chunk)
            await self._say(frame)

    async def finish(self) -> None:
        """Nothing follows; what comes goes on."""
        self._check()
        await self._say(StreamEnd(self.number, self.sent_bytes))
        self._ended = True
        if self._peer_ended:
            self._forget(self.number)

    async def reset(self) -> None:
        """Breaks it for both ends; nothing happens where it is over."""
        if self._broken is None and not (self._ended and self._peer_ended):
            self._broken = StreamBrokenError("it was reset here")
            self._changed.set()
            self._forget(self.number)
            await self._send(StreamReset(self.number).pack(), _SMALL, ())

    # What the multiplexer calls

    def took(self, frame: Frame) -> None:
        """Takes what came. ValueError: what an honest end does not send."""
        match frame:
            case StreamBytes():
                self._took_data(frame)
            case StreamEnd():
                if frame.offset != self.received_bytes:
                    raise ValueError("a stream's end is not where its bytes ended")
                self._peer_ended = True
                if self._ended:
                    self._forget(self.number)
            case StreamWindow():
                self._limit = max(self._limit, frame.limit)
            case StreamAccepted():
                self._accepted = True
            case StreamRefused():
                self.broke(RefusedError(frame.status, frame.kind, frame.details))
            case StreamReset():
                self.broke(StreamBrokenError("the other end reset it"))
            case _:
                raise ValueError("a stream was opened twice")
        self._changed.set()

    def broke(self, error: Exception) -> None:
        """It is over: nothing is sent or read any more."""
        if self._broken is None:
            self._broken = error
        self._changed.set()
        self._forget(self.number)

    def _took_data(self, frame: StreamBytes) -> None:
        if frame.offset != self.received_bytes or self._peer_ended:
            raise ValueError("a stream's bytes came in another order than they were sent in")
        self.received_bytes += len(frame.data)
        if self.received_bytes > self._granted:
            raise ValueError("a stream brought more than its window")
        if frame.data:
            self._waiting.append(frame.data)

    async def _say(self, frame: Frame, *, ordered: bool = True) -> None:
        if not ordered:
            await self._send(frame.pack(), _SMALL, ())
            return
        count = len(frame.data) if isinstance(frame, StreamBytes) else 0
        number = await self._send(frame.pack(), self._label(count), self._last)
        self._last = (number,)

    def _label(self, count: int) -> Label:
        now_s = self._loop.time()
        if now_s - self._sent_at_s > _PAUSE_S:
            self._burst_bytes = 0
        self._sent_at_s = now_s
        self._burst_bytes += count
        return _LARGE if self._burst_bytes > SMALL_BYTES else _SMALL

    def _check(self) -> None:
        if self._broken is not None:
            raise self._broken

    async def _something(self) -> None:
        """Waits until anything has come. What broke it is raised, once there is nothing to read."""
        self._check()
        self._changed.clear()
        await self._changed.wait()
        if not self._waiting:
            self._check()
