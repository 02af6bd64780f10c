"""A file that is played while it comes: stored ahead over unmetered networks, handed on steadily."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

from cedos.files.pipe_target import PipeTarget
from cedos.session.protocol.buffer_manager import BufferManager
from cedos.session.protocol.playback_clock import PlaybackClock

_LOOK_S: Final = 0.05
_ALL: Final = 1 << 60


class PlayTarget:
    """Stores up to `most_bytes` and hands them to `write`, in order, as quickly as they are taken.

    `buffered_bytes` is what the player has for the time to come: here and there.
    """

    def __init__(
        self,
        write: Callable[[Any], Awaitable[None]],
        manager: BufferManager,
        bitrate_bps: float,
        most_bytes: int,
    ) -> None:
        self._pipe = PipeTarget(self._store)
        self._write, self._manager = write, manager
        self._clock = PlaybackClock(bitrate_bps)
        self._most_bytes = most_bytes
        self._chunks: deque[Any] = deque()
        self._stored = self._handed = 0
        self._size: int | None = None
        self._more = asyncio.Event()
        self._handing: asyncio.Task[None] | None = None

    @property
    def have(self) -> int:
        return self._pipe.have

    @property
    def version(self) -> str:
        return self._pipe.version

    def buffered_bytes(self) -> int:
        """What came and was not played yet; endless once everything has come."""
        if self._size is not None and self.have >= self._size:
            return _ALL
        now = asyncio.get_running_loop().time()
        return self.have - self._clock.played_bytes(self._handed, now)

    def begin(self, start: int, version: str, size: int) -> None:
        self._pipe.begin(start, version, size)
        self._size = size
        if self._handing is None:
            self._handing = asyncio.get_running_loop().create_task(self._hand_on())

    def write(self, data: Any) -> Awaitable[None]:
        return self._pipe.write(data)

    async def _store(self, data: Any) -> None:
        """Keeps it, and waits until more may come."""
        self._chunks.append(bytes(data))
        self._stored += len(data)
        self._more.set()
        while not self._manager.may_read(self._ahead(), self._most_bytes):
            assert self._handing is not None
            if self._handing.done():
                self._handing.result()  # nobody reads any more
            await asyncio.sleep(_LOOK_S)

    def _ahead(self) -> int:
        """Stored here, and in the player by its clock: one limit for both."""
        return max(self._stored, self.buffered_bytes() % _ALL)

    async def _hand_on(self) -> None:
        while True:
            while not self._chunks:
                self._more.clear()
                await self._more.wait()
            chunk = self._chunks.popleft()
            await self._write(chunk)
            self._handed += len(chunk)
            self._stored -= len(chunk)

    def is_right(self, digest: bytes) -> bool:
        return self._pipe.is_right(digest)

    def discard(self) -> None:
        self._pipe.discard()

    def finish(self, modified_unix_s: float) -> None: ...

    async def drained(self) -> None:
        """Waits until everything was handed on."""
        while self._handing is not None and (self._chunks or self._handed < self.have):
            if self._handing.done():
                self._handing.result()
            await asyncio.sleep(_LOOK_S)

    def close(self) -> None:
        if self._handing is not None:
            self._handing.cancel()
