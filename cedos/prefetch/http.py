"""Fetches a URL, and goes on where an earlier attempt ended (RFC 9110, 13.1.5 and 14: ranges).

A part that was received is used again only where the server says by its validator that it is still the
same thing. Without a strong one the next attempt begins anew: half of one version and half of another
is worse than a second download.
"""

import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import aiohttp
from aiohttp import hdrs

from cedos.model import Urgency
from cedos.prefetch.bound import bind_to
from cedos.prefetch.turn import FetchError, NotThereError, Turn
from cedos.prefetch.yielding import Yielding

_BLOCK_BYTES = 16 * 1024
_CONNECT_S = 15.0
_SILENCE_S = 30.0
_GONE = frozenset({400, 401, 403, 404, 405, 406, 410, 414, 451})


@dataclass(frozen=True, slots=True)
class Body:
    """What was fetched: where it came from in the end, its type, and its bytes or its file."""

    url: str
    content_type: str
    content: bytes | Path


class HttpFetcher:
    """Fetches one URL, into a file that appears when it is complete, or into memory."""

    def __init__(
        self,
        url: str,
        *,
        into: Path | None = None,
        headers: dict[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.url = url
        self._into = into
        self._headers = headers or {}
        self._tls = tls
        self._part: _ReceivedPart = _MemoryPart() if into is None else _FilePart(into)

    @property
    def title(self) -> str:
        """What people call it; what stands behind "?" is often secret, before "@" always."""
        scheme, separator, rest = self.url.partition("?")[0].partition("://")
        authority, slash, path = rest.partition("/")
        return f"{scheme}{separator}{authority.rpartition('@')[2]}{slash}{path}"

    async def fetch(self, turn: Turn) -> Body:
        """The body.

        Raises:
            NotThereError: the server does not have it, or not for us.
            FetchError: it did not come, or not whole; what came is kept for the next attempt.
        """
        try:
            async with self._session(turn) as session:
                return await self._fetch(session, turn)
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError) as error:
            raise NotThereError(f"{self.url} is no URL that can be fetched") from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise FetchError(f"{self.url}: {error or type(error).__name__}") from error

    def _session(self, turn: Turn) -> aiohttp.ClientSession:
        def make(address: Any) -> socket.socket:
            family, kind, protocol, *_ = address
            turn.connects()
            one = socket.socket(family, kind, protocol)
            try:
                one.setblocking(False)
                background = turn.label.urgency is Urgency.BACKGROUND
                bind_to(one, turn.interface, background=background)
            except BaseException:
                one.close()
                raise
            return one

        connector = aiohttp.TCPConnector(
            socket_factory=make, ssl=self._tls if self._tls is not None else True, limit=1
        )
        limits = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_SILENCE_S)
        return aiohttp.ClientSession(
            connector=connector, timeout=limits, read_bufsize=_BLOCK_BYTES, trust_env=False
        )

    async def _fetch(self, session: aiohttp.ClientSession, turn: Turn) -> Body:
        part = self._part
        # A compressed body has no ranges of its own.
        headers = {**self._headers, hdrs.ACCEPT_ENCODING: "identity"}
        if part.size and part.validator:
            headers[hdrs.RANGE] = f"bytes={part.size}-"
            headers[hdrs.IF_RANGE] = part.validator
        await turn.turn()
        async with session.get(self.url, headers=headers) as answer:
            total = self._begin(answer)
            turn.received(part.size, total)
            # (What fits into the first packets is there already, and its connection handed back.)
            connection = answer.connection
            async with Yielding(None if connection is None else connection.transport, turn) as slow:
                await turn.turn()
                async for block in answer.content.iter_chunked(_BLOCK_BYTES):
                    part.append(block)
                    slow.received(len(block))
                    turn.received(part.size, total)
                    await turn.turn()
        if total is not None and part.size != total:
            raise FetchError(f"{self.url}: {part.size} of {total} bytes came")
        return Body(str(answer.url), answer.content_type, part.finish())

    def _begin(self, answer: aiohttp.ClientResponse) -> int | None:
        """Takes the head of an answer; returns the size of the whole thing, None where not told."""
        part = self._part
        if answer.status == 206:
            span = _content_range(answer.headers.get(hdrs.CONTENT_RANGE, ""))
            if span is not None and span[0] == part.size:
                return span[1]
            part.restart(None)
            raise FetchError(f"{self.url}: the server sent another part than was asked for")
        if answer.status == 416:
            part.restart(None)
            raise FetchError(f"{self.url}: it became shorter; it is fetched anew")
        if answer.status in _GONE:
            raise NotThereError(f"{self.url}: {answer.status} {answer.reason}")
        if answer.status != 200:
            raise FetchError(f"{self.url}: {answer.status} {answer.reason}")
        part.restart(_validator(answer))
        return answer.content_length

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    def discard(self) -> None:
        self._part.restart(None)


def _validator(answer: aiohttp.ClientResponse) -> str | None:
    """What tells one version from another: a strong entity tag, else a date that is old enough."""
    tag = answer.headers.get(hdrs.ETAG, "")
    if tag and not tag.startswith("W/"):
        return tag
    modified, date = answer.headers.get(hdrs.LAST_MODIFIED), answer.headers.get(hdrs.DATE)
    # It may have changed again within the second that the date counts in (RFC 9110, 8.8.2.2).
    return modified if modified and date and modified != date else None


def _content_range(text: str) -> tuple[int, int | None] | None:
    """`bytes 100-199/1000` -> (100, 1000); None where it is something else."""
    unit, _, rest = text.partition(" ")
    span, _, total = rest.partition("/")
    first, _, last = span.partition("-")
    if unit.lower() != "bytes" or not (_number(first) and _number(last)):
        return None
    if total != "*" and not (_number(total) and int(first) <= int(last) < int(total)):
        return None
    return int(first), None if total == "*" else int(total)


def _number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 19


class _ReceivedPart(Protocol):
    """What was received so far, and the validator of what it is a part of."""

    validator: str | None
    size: int

    def append(self, block: bytes) -> None: ...

    def restart(self, validator: str | None) -> None: ...

    def finish(self) -> bytes | Path: ...


class _MemoryPart:
    def __init__(self) -> None:
        self.validator: str | None = None
        self.size = 0
        self._content = bytearray()

    def append(self, block: bytes) -> None:
        self._content += block
        self.size = len(self._content)

    def restart(self, validator: str | None) -> None:
        self._content.clear()
        self.size, self.validator = 0, validator

    def finish(self) -> bytes:
        return bytes(self._content)


class _FilePart:
    """A file beside the wanted one, until it is complete; gone with the program that began it."""

    def __init__(self, into: Path) -> None:
        self.validator: str | None = None
        self.size = 0
        self._into = into
        self._beside = into.with_name(f".{into.name}.part")

    def append(self, block: bytes) -> None:
        with self._beside.open("ab" if self.size else "wb") as file:
            file.write(block)
        self.size += len(block)

    def restart(self, validator: str | None) -> None:
        self._beside.unlink(missing_ok=True)
        self.size, self.validator = 0, validator

    def finish(self) -> Path:
        if not self.size:
            self._beside.write_bytes(b"")
        self._beside.replace(self._into)
        self.size, self.validator = 0, None
        return self._into
