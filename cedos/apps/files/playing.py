"""A file that is played while it is received: from a pipe, or stored ahead over unmetered networks."""

import asyncio
import hashlib
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

from cedos.errors import TransferError
from cedos.host.monitor.bus import SystemBus
from cedos.host.monitor.providers import networkmanager, screen
from cedos.session.protocol.buffer_manager import BufferManager, PlaybackClock


class PipeTarget:
    """A pipe: bytes go to `write` in order and are not kept, so that there is one attempt only."""

    def __init__(self, write: Callable[[Any], Awaitable[None]]) -> None:
        self._write = write
        self.have = 0
        self.version = ""
        self._digest = hashlib.sha256()

    def begin(self, start: int, version: str, size: int) -> None:
        if start != self.have or (self.have and version != self.version):
            raise TransferError(
                f"the file changed on the server; {self.have} bytes of the older one were written"
            )
        self.version = version

    def write(self, data: Any) -> Awaitable[None]:
        self._digest.update(data)
        self.have += len(data)
        return self._write(data)

    def is_right(self, digest: bytes) -> bool:
        return self._digest.digest() == digest

    def discard(self) -> None:
        raise TransferError("the written data differs from the server's: its SHA-256 is another")

    def finish(self, modified_unix_s: float) -> None: ...


_DRAIN_LOOK_S: Final = 0.05
_ALL: Final = 1 << 60
_PIECE_BYTES: Final = 1 << 16


class PlayTarget(PipeTarget):
    """A store of up to `most_bytes` for a player, which takes them in order by `write`.

    `buffered_bytes` is what the player has for the time to come: here and there.
    """

    def __init__(
        self,
        write: Callable[[Any], Awaitable[None]],
        manager: BufferManager,
        bitrate_bps: float,
        most_bytes: int,
    ) -> None:
        super().__init__(self._store)
        self._play, self._manager = write, manager
        self._clock = PlaybackClock(bitrate_bps)
        self._most_bytes = most_bytes
        self._chunks: deque[bytearray] = deque()
        self._stored = self._handed = 0
        self._size: int | None = None
        self._more = asyncio.Event()
        self._handing: asyncio.Task[None] | None = None

    def buffered_bytes(self) -> int:
        """Return the received bytes that were not played yet; endless once all are here."""
        if self._size is not None and self.have >= self._size:
            return _ALL
        now = asyncio.get_running_loop().time()
        return self.have - self._clock.played_bytes(self._handed, now)

    def begin(self, start: int, version: str, size: int) -> None:
        super().begin(start, version, size)
        self._size = size
        if self._handing is None:
            self._handing = asyncio.get_running_loop().create_task(self._hand_on())

    async def _store(self, data: Any) -> None:
        """Store bytes, and wait until more may come."""
        # Join small pieces: each takes memory, and a thread, beside its bytes.
        if self._chunks and len(self._chunks[-1]) < _PIECE_BYTES:
            self._chunks[-1] += data
        else:
            self._chunks.append(bytearray(data))
        self._stored += len(data)
        self._more.set()
        # Stop reading while enough is stored: the session then leaves metered networks.
        while not self._manager.may_read(self._bytes_ahead(), self._most_bytes):
            assert self._handing is not None
            if self._handing.done():
                self._handing.result()  # the player has closed the pipe
            await asyncio.sleep(_DRAIN_LOOK_S)

    def _bytes_ahead(self) -> int:
        """Return the bytes stored here and in the player, by its clock: one limit holds for both."""
        return max(self._stored, self.buffered_bytes() % _ALL)

    async def _hand_on(self) -> None:
        while True:
            while not self._chunks:
                self._more.clear()
                await self._more.wait()
            chunk = self._chunks.popleft()
            await self._play(chunk)
            self._handed += len(chunk)
            self._stored -= len(chunk)

    async def drain(self) -> None:
        """Wait until the player has everything."""
        while self._handing is not None and (self._chunks or self._handed < self.have):
            if self._handing.done():
                self._handing.result()
            await asyncio.sleep(_DRAIN_LOOK_S)

    def close(self) -> None:
        if self._handing is not None:
            self._handing.cancel()


EVERY_S: Final = 5.0


async def search_wifi(bus: SystemBus, wanted: Callable[[], bool], every_s: float = EVERY_S) -> None:
    """Look for Wi-Fi while it is `wanted` and a person is at the screen, until cancelled.

    There is no scan while Wi-Fi carries the stream: a scan interrupts it.
    """
    try:
        while True:
            if wanted() and await screen.read(bus) is not False:
                await networkmanager.scan(bus)
            await asyncio.sleep(every_s)
    finally:
        await bus.close()
