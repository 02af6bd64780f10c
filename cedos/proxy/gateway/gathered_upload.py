"""Uploads of programs that the gateway puts together before their origin sees them (D2Prox, uplink)."""

import asyncio
from typing import Protocol

from cedos.proxy.gateway.fetched_answer import FetchedAnswer, Fields, say
from cedos.proxy.streams.stream import ProxiedStream, StreamBrokenError

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class ProgramBody(Protocol):
    """`length` bytes that are to come; `expects`: its program waits for a word before it sends them."""

    length: int
    expects: bool

    def write(self, data: bytes | memoryview) -> None:
        """The next ones. TransferError: there is no room for them."""

    async def sent(self) -> FetchedAnswer:
        """All of it to the origin. TransferError: no answer came, and why."""

    def close(self) -> None: ...


class UploadGatherer(Protocol):
    """Takes uploads for programs."""

    def gather(
        self, client: bytes, host: str, port: int, method: bytes, target: bytes, fields: Fields
    ) -> ProgramBody | None:
        """None: this one goes to its origin as it comes."""

    def changed(self, client: bytes, host: str, port: int, target: bytes) -> None:
        """An origin was told to change what is there."""


class GatheredUpload:
    """One, over a stream from which its head was taken.

    Attributes:
        said: what the program has been answered by now.
    """

    def __init__(self, stream: ProxiedStream, body: ProgramBody) -> None:
        self._stream, self._body = stream, body
        self.said = b""

    async def run(self) -> FetchedAnswer:
        """Until the origin answers.

        Raises:
            TransferError: it does not, or there is no room here.
            StreamBrokenError: the program has gone before it had sent all.
        """
        stream, body = self._stream, self._body
        try:
            if body.expects and not stream.waiting:
                await say(stream, _CONTINUE)
                self.said = _CONTINUE
            changed = asyncio.Event()
            stream.watch(changed.set)
            left = body.length
            while left:
                changed.clear()
                if not stream.waiting:
                    if stream.broken is not None or stream.peer_ended:
                        raise StreamBrokenError("the program has gone in the middle of its upload")
                    await changed.wait()
                    continue
                data = stream.waiting[0][:left]
                body.write(data)
                stream.taken(len(data))
                left -= len(data)
            return await body.sent()
        finally:
            stream.watch(lambda: None)
            body.close()
