"""Uploads of programs that the gateway puts together before their origin sees them (D2Prox, uplink)."""

import asyncio
from typing import Protocol

from cedos.errors import TransferError
from cedos.proxy.gateway.fetched_answer import FetchedAnswer, Fields, say
from cedos.proxy.streams.stream import ProxiedStream, StreamBrokenError

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class ProgramBody(Protocol):
    """`length` bytes that are to come, `written` of them are here.

    `expects`: its program waits for a word before it sends them.
    """

    length: int
    expects: bool
    written: int

    def write(self, data: bytes | memoryview) -> None:
        """The next ones. TransferError: there is no room for them."""

    async def sent(self) -> FetchedAnswer:
        """All of it to the origin. TransferError: no answer came, and why."""

    def doubtful(self) -> str:
        """Why it may not be sent once more, where nobody heard what became of it; empty: it may."""

    def detach(self) -> int:
        """Its file, which stays open, for another process: here it is over."""

    def close(self) -> None: ...


class UploadGatherer(Protocol):
    """Takes uploads for programs."""

    def gather(
        self,
        client: bytes,
        host: str,
        port: int,
        method: bytes,
        target: bytes,
        fields: Fields,
        file: int | None = None,
    ) -> ProgramBody | None:
        """None: this one goes to its origin as it comes. `file`: what the process before this one had."""

    def changed(self, client: bytes, host: str, port: int, target: bytes) -> None:
        """An origin was told to change what is there."""


class GatheredUpload:
    """One, over a stream from which its head was taken.

    Attributes:
        body: what it puts together.
        said: what the program has been answered by now.
        asking: whether the origin has been asked.
    """

    def __init__(
        self, stream: ProxiedStream, body: ProgramBody, said: bytes = b"", *, asking: bool = False
    ) -> None:
        self._stream, self.body = stream, body
        self.said, self.asking = said, asking
        self._suspended = False

    def suspend(self) -> None:
        """Another process goes on with it: whatever ends `run` leaves the body as it is."""
        self._suspended = True

    async def run(self) -> FetchedAnswer:
        """Until the origin answers.

        Raises:
            TransferError: it does not, or there is no room here.
            StreamBrokenError: the program has gone before it had sent all.
        """
        stream, body = self._stream, self.body
        try:
            if self.asking and (doubtful := body.doubtful()):
                raise TransferError(doubtful)
            if body.expects and not (self.said or body.written or stream.waiting):
                await say(stream, _CONTINUE)
                self.said = _CONTINUE
            changed = asyncio.Event()
            stream.watch(changed.set)
            while left := body.length - body.written:
                changed.clear()
                if not stream.waiting:
                    if stream.broken is not None or stream.peer_ended:
                        raise StreamBrokenError("the program has gone in the middle of its upload")
                    await changed.wait()
                    continue
                data = stream.waiting[0][:left]
                body.write(data)
                stream.taken(len(data))
            self.asking = True
            return await body.sent()
        finally:
            stream.watch(lambda: None)
            if not self._suspended:
                body.close()
