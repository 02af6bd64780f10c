"""Programs' requests that the gateway answers itself, from objects that it fetches (D2Prox)."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, Protocol, TypeVar

from cedos.errors import TransferError
from cedos.proxy.http import LONGEST_HEAD, forwarded
from cedos.proxy.streams.carry import waiting_head
from cedos.proxy.streams.frames import OpenStream
from cedos.proxy.streams.stream import ProxiedStream, StreamBrokenError

_HEAD_S: Final = 1.0
_HEAD_END: Final = b"\r\n\r\n"

_T = TypeVar("_T")
Fields = list[tuple[bytes, bytes]]


class FetchedAnswer(Protocol):
    """An answer: its `head`, then its body, piece by piece."""

    head: bytes

    def body(self, offset: int) -> Coroutine[Any, Any, bytes]:
        """Return bytes from `offset` on, as soon as there are any; empty: the end. TransferError."""

    def close(self, *, whole: bool) -> None:
        """Release it; `whole`: the program has all of it."""


class RequestFetcher(Protocol):
    """A fetcher of objects for programs."""

    async def fetch(
        self, client: bytes, host: str, port: int, target: bytes, fields: Fields
    ) -> FetchedAnswer | None:
        """Return the answer; None: the request goes to its origin as it is."""


async def unless_broken(stream: ProxiedStream, work: Coroutine[Any, Any, _T]) -> _T:
    """Return the work's result. If the stream breaks first, cancel the work: StreamBrokenError."""
    working = asyncio.get_running_loop().create_task(work)

    def changed() -> None:
        if stream.broken is not None:
            working.cancel()

    stream.watch(changed)
    changed()
    try:
        return await working
    except asyncio.CancelledError:
        if stream.broken is None:
            raise  # the caller cancelled this task
        raise StreamBrokenError("the program has gone") from None
    finally:
        stream.watch(lambda: None)


async def send_answer(stream: ProxiedStream, answer: FetchedAnswer) -> None:
    """Send the answer until the program has all of it, or either side broke."""
    whole = False
    try:
        stream.accept()
        # The request needs no origin: count its bytes as read, so that the program's window opens again.
        stream.on_read(sum(map(len, stream.waiting)))
        # `sent_bytes` tells how far the answer has got: first the head, then the body.
        while (at := stream.sent_bytes) < len(answer.head):
            await _say(stream, answer.head[at:])
        while block := await unless_broken(
            stream, answer.body(stream.sent_bytes - len(answer.head))
        ):
            await _say(stream, block)
        stream.finish()
        whole = True
    except (TransferError, StreamBrokenError):
        stream.reset()
    finally:
        stream.watch(lambda: None)
        answer.close(whole=whole)


async def _say(stream: ProxiedStream, data: bytes) -> None:
    """Send all data as the stream's window opens. StreamBrokenError: the program has gone."""
    view, changed = memoryview(data), asyncio.Event()
    stream.watch(changed.set)
    while True:
        changed.clear()
        view = view[stream.write(view) :]
        if stream.broken is not None:
            raise StreamBrokenError("the program has gone")
        if not view:
            return
        await changed.wait()


async def request_head(stream: ProxiedStream) -> bytes | None:
    """Return the head of a stream's only request, without its blank line; None if there is none.

    Its bytes stay in the stream. Bytes behind the head could be another request: then there is none.
    """
    come = await waiting_head(stream, LONGEST_HEAD, _HEAD_S)
    request, _, rest = (come or b"").partition(_HEAD_END)
    return None if rest or not request else request


async def fetched(
    fetcher: RequestFetcher, client: bytes, asked: OpenStream, request: bytes
) -> FetchedAnswer | None:
    """Return the answer to a request; None: only its origin can answer."""
    if (parsed := forwarded(request)) is None or parsed[0] != b"GET":
        return None
    return await fetcher.fetch(client, asked.host, asked.port, *parsed[1:])
