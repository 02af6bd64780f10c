"""Fetches a URL, resumes it (RFC 9110, 13.1.5 and 14), and keeps out of other programs' way.

Received bytes are used again only if the server says by its validator that they are of the same version.
Without a strong validator the next attempt begins anew: half of one version and half of another is worse
than a second download.

What is prefetched must not delay what a person waits for. The receive window follows the round trip that
the host sees (in the spirit of LEDBAT, RFC 6817, at the receiving end): it grows while the round trip is
short, and shrinks once a queue builds up. While another program begins something, the window is closed.
"""

import asyncio
import socket
import ssl
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
from aiohttp import hdrs

from cedos import web
from cedos.apps.prefetch.surroundings import FetchError, NotThereError, Turn
from cedos.errors import TransferError
from cedos.kernel.tcp_info import receive_rtt_s, tcp_info
from cedos.model import Urgency
from cedos.web import AnswerHead, WebWay

FIRST_BYTES: Final = 32 * 1024
LEAST_BYTES: Final = 8 * 1024
MOST_BYTES: Final = 1 << 20
# The queue that the window aims at. A short queue shows that the path is full.
_WANTED_QUEUE_S: Final = 0.002
_DOUBLES: Final = 2.0
_GROWS_BYTES: Final = 1_500
_SHRINKS: Final = 0.8


class BackgroundWindow:
    """The receive window of one connection."""

    __slots__ = ("_ramps", "_rtt_least_s", "bytes")

    def __init__(self, rtt_least_s: float | None = None) -> None:
        """Begin with the shortest round trip so far, such as the handshake's."""
        self.bytes = FIRST_BYTES  # what may be on its way
        self._ramps = True
        self._rtt_least_s = rtt_least_s

    def observe(self, rtt_s: float | None, came_bytes: float) -> int:
        """Take a round trip and the bytes received in it; return the window in bytes."""
        if rtt_s is None or rtt_s <= 0.0:
            return self.bytes
        least_s = rtt_s if self._rtt_least_s is None else min(rtt_s, self._rtt_least_s)
        self._rtt_least_s = least_s
        if rtt_s - least_s > _WANTED_QUEUE_S:
            self._ramps = False
            # What fills the path without the queue.
            fills = came_bytes * least_s / rtt_s if came_bytes else self.bytes
            self.bytes = int(max(_SHRINKS * self.bytes, min(self.bytes, fills)))
        elif came_bytes > self.bytes / 2:  # else the window is not what bounds it
            more = _DOUBLES * self.bytes if self._ramps else self.bytes + _GROWS_BYTES
            self.bytes = int(more)
        self.bytes = max(LEAST_BYTES, min(self.bytes, MOST_BYTES))
        return self.bytes


# The bytes that a server may send ahead of time before the fetch can step back.
_BACKGROUND_BUFFER = 256 * 1024

_TCP_WINDOW_CLAMP = 10


def clamp_window(one: Any, size_bytes: int) -> None:
    """Limit what the other end may send from now on; what it has been granted stays granted."""
    # A connection that is over has nothing on its way.
    with suppress(OSError):
        one.setsockopt(socket.IPPROTO_TCP, _TCP_WINDOW_CLAMP, size_bytes)


# The time between two looks for other programs' connections. A first packet and its answer take
# longer.
_LOOK_S: Final = 0.010
_LEAST_ROUND_S: Final = 0.020
# A window clamp so small that the kernel replaces it by its minimum, one small segment a round
# trip.
_HARDLY_ANY_BYTES: Final = 1


class Yielding:
    """A `with` block in which a connection reads only what leaves other programs their rate.

    Its window keeps its queue short (`BackgroundWindow`). While other programs begin something, or this
    one's user waits for something else, the window is closed; so the other end stops within a round trip.

    Args:
        transport: of the connection; None: it has been handed back already.
    """

    def __init__(self, transport: asyncio.Transport | None, turn: Turn) -> None:
        self._transport = transport
        self._turn = turn
        self._socket: Any = None if transport is None else transport.get_extra_info("socket")
        info = None if self._socket is None else tcp_info(self._socket)
        self._window = BackgroundWindow(None if info is None else info.rtt_min_s)
        self._came = 0
        self._round_at_s = 0.0
        self._paused = False
        self._listened_s, self._since_s = 0.0, time.monotonic()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Yielding":
        if self._socket is not None and self._behind:
            clamp_window(self._socket, self._window.bytes)
            self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            self._pause(False)

    def on_bytes(self, count: int) -> None:
        self._came += count

    @property
    def listened_s(self) -> float:
        """Seconds in which the other end might send."""
        return self._listened_s + (0.0 if self._paused else time.monotonic() - self._since_s)

    @property
    def _behind(self) -> bool:
        return self._turn.label.urgency is Urgency.BACKGROUND

    async def _watch(self) -> None:
        while self._behind:
            self._pause(self._turn.waits())
            if not self._paused:
                self._steer(time.monotonic())
            await asyncio.sleep(_LOOK_S)
        self._pause(False)
        clamp_window(self._socket, MOST_BYTES)

    def _steer(self, now_s: float) -> None:
        rtt_s = receive_rtt_s(self._socket)
        if now_s - self._round_at_s < max(rtt_s or 0.0, _LEAST_ROUND_S):
            return
        self._round_at_s = now_s
        before = self._window.bytes
        came, self._came = self._came, 0
        if self._window.observe(rtt_s, came) != before:
            clamp_window(self._socket, self._window.bytes)

    def _pause(self, pauses: bool) -> None:
        transport = self._transport
        if pauses is self._paused or transport is None or transport.is_closing():
            return
        self._listened_s, self._since_s = self.listened_s, time.monotonic()
        self._paused = pauses
        if pauses:
            transport.pause_reading()
            # Else as much would still come as the kernel's buffer holds.
            clamp_window(self._socket, _HARDLY_ANY_BYTES)
        else:
            transport.resume_reading()
            clamp_window(self._socket, self._window.bytes)
            self._came, self._round_at_s = 0, time.monotonic()


_BLOCK_BYTES = 16 * 1024
MOST_IN_MEMORY_BYTES: Final = 1 << 28
_SILENCE_S = 30.0
# A server that drops what has come could have it sent without end.
MOST_ANEW: Final = 10
_GONE = frozenset({400, 401, 403, 404, 405, 406, 410, 414, 451})


@dataclass(frozen=True, slots=True)
class Body:
    """A fetched body: its final URL, its type, and its bytes."""

    url: str
    content_type: str
    content: bytes


class HttpFetcher:
    """A fetcher of one URL into memory."""

    def __init__(
        self,
        url: str,
        *,
        headers: dict[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.url = url
        self._headers = headers or {}
        self._tls = tls
        self._part = _Part(url)

    @property
    def title(self) -> str:
        """Return the URL for people, without its query and user, which are secrets."""
        scheme, separator, rest = self.url.partition("?")[0].partition("://")
        authority, slash, path = rest.partition("/")
        return f"{scheme}{separator}{authority.rpartition('@')[2]}{slash}{path}"

    async def fetch(self, turn: Turn) -> Body:
        """Fetch the body.

        NotThereError: the server does not have it, or not for us, or leads to what is nearer to this
        host. FetchError: it did not come, or not whole; what came is kept for the next attempt.
        """
        way = WebWay(turn.interface)
        try:
            async with self._session(turn, way) as session:
                return await self._fetch(session, turn)
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError) as error:
            raise NotThereError(f"{self.url} is no URL that can be fetched") from error
        except (aiohttp.ClientError, OSError, TimeoutError, TransferError) as error:
            if way.refused:
                raise NotThereError(f"{self.url}: {way.refused}") from error
            raise FetchError(f"{self.url}: {error or type(error).__name__}") from error

    def _session(self, turn: Turn, way: WebWay) -> aiohttp.ClientSession:
        def make(address: Any) -> socket.socket:
            turn.connects()
            one = way.socket(address)
            if turn.label.urgency is Urgency.BACKGROUND:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BACKGROUND_BUFFER)
            return one

        async def on_redirect(
            _session: object, _context: object, found: aiohttp.TraceRequestRedirectParams
        ) -> None:
            way.on_answer()
            # aiohttp reads any place, for seconds if need be.
            try:
                there = AnswerHead.of(found.response.url, found.response).redirect()
            except TransferError as error:
                found.response.close()
                raise NotThereError(f"{self.url}: {error}") from error
            if there is None:
                found.response.close()
                raise FetchError(f"{self.url}: the server leads nowhere")

        trace = aiohttp.TraceConfig()
        trace.on_request_redirect.append(on_redirect)
        return web.client(
            make, silence_s=_SILENCE_S, tls=self._tls,
            read_bufsize=_BLOCK_BYTES, traces=[trace], limit=1,
        )  # fmt: skip

    async def _fetch(self, session: aiohttp.ClientSession, turn: Turn) -> Body:
        part = self._part
        headers = {**self._headers, hdrs.ACCEPT_ENCODING: "identity"}
        if part.size and part.validator:
            headers[hdrs.RANGE] = f"bytes={part.size}-"
            headers[hdrs.IF_RANGE] = part.validator
        await turn.turn()
        async with session.get(self.url, headers=headers) as answer:
            total = self._begin(answer)
            turn.received(part.size, total)
            # A small body came with the first packets; its connection was returned already.
            connection = answer.connection
            async with Yielding(None if connection is None else connection.transport, turn) as slow:
                await turn.turn()
                # The server's time: this end may step back for as long as others want.
                pace = web.LeastPace(lambda: slow.listened_s)
                async for block in answer.content.iter_chunked(_BLOCK_BYTES):
                    part.append(block)
                    slow.on_bytes(len(block))
                    if not pace.take(len(block)) and slow.listened_s > pace.until_s:
                        raise FetchError(
                            f"{self.url}: less than {web.LEAST_BYTES} bytes came"
                            f" in {web.SILENCE_S:g} s"
                        )
                    turn.received(part.size, total)
                    await turn.turn()
        if total is not None and part.size != total:
            raise FetchError(f"{self.url}: {part.size} of {total} bytes came")
        return Body(str(answer.url), answer.content_type, part.taken())

    def _begin(self, answer: aiohttp.ClientResponse) -> int | None:
        """Take the head of an answer; return the size of the whole, None if it is unknown."""
        part, head = self._part, AnswerHead.of(answer.url, answer)
        if head.status == 206:
            if head.part is not None and head.continues(part.size, part.validator, part.total):
                part.total = head.part[1]
                return part.total
            part.restart("")
            raise FetchError(f"{self.url}: the server sent another part than requested")
        if head.status == 416:
            part.restart("")
            raise FetchError(f"{self.url}: it became shorter; it is fetched anew")
        if head.status != 200:
            kind = NotThereError if head.status in _GONE else FetchError
            raise kind(f"{self.url}: {head.says}")
        if head.field(hdrs.CONTENT_ENCODING).strip().lower() not in ("", "identity"):
            # Nothing here decodes: a megabyte on the way could be a gigabyte in memory.
            raise NotThereError(f"{self.url}: the server has it compressed alone")
        part.restart(head.validator)
        part.total = head.size
        return part.total


class _Part:
    """The received part of a body, and its version."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.validator = ""
        self.total: int | None = None  # its whole size, if the server has said it
        self._content = bytearray()
        self._anew = 0

    @property
    def size(self) -> int:
        return len(self._content)

    def append(self, block: bytes) -> None:
        if self.size + len(block) > MOST_IN_MEMORY_BYTES:
            self.restart("")
            raise NotThereError(f"{self._url}: it has more than {MOST_IN_MEMORY_BYTES} bytes")
        self._content += block

    def restart(self, validator: str) -> None:
        """Drop what has come. NotThereError: the server had that done too often."""
        self._anew += self.size > 0
        self._content.clear()
        self.validator = validator
        if self._anew > MOST_ANEW:
            raise NotThereError(f"{self._url}: the server began it anew {MOST_ANEW} times")

    def taken(self) -> bytes:
        """Return the whole body; the next fetch is a new one."""
        content, self._content, self.validator = self._content, bytearray(), ""
        return bytes(content)
