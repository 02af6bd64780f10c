"""Programs' plain requests that the gateway fetches for them: whole and at once, kept by HTTP's rules.

Only what every user would get: a GET that names no user; of stored objects also a range, or the word
that its program has the same.
All else goes to its origin as it is, and so does what the gateway has no room for.
"""

import os
import time
from typing import Final

import aiohttp
from yarl import URL

from cedos.errors import TransferError
from cedos.files.objects.http_rules import not_modified, one_range
from cedos.files.objects.object_fetcher import ObjectFetcher
from cedos.files.objects.object_store import StoredObject
from cedos.session.protocol.crypto import host_id

_BLOCK: Final = 1 << 18
_NOT_OURS: Final = frozenset(
    (b"authorization", b"cookie", b"if-match", b"if-unmodified-since", b"if-range",
     b"content-length", b"transfer-encoding", b"expect", b"upgrade")
)  # fmt: skip
_CONDITIONS: Final[tuple[str, ...]] = ("if-none-match", "if-modified-since")
_HOP_BY_HOP: Final = frozenset(
    ("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
     "via", "age")
)  # fmt: skip


class ProgramRequests:
    """The answers to programs' plain HTTP requests (`cedos.proxy.gateway.fetched_answer`)."""

    def __init__(self, fetcher: ObjectFetcher) -> None:
        self._fetcher = fetcher

    async def fetch(
        self, client: bytes, host: str, port: int, target: bytes, fields: list[tuple[bytes, bytes]]
    ) -> "StoredAnswer | PassedAnswer | None":
        asked: dict[str, str] = {}
        hosts: list[bytes] = []
        for name, value in fields:
            lower = name.lower()
            if lower in _NOT_OURS or lower.decode() in asked:
                return None
            if lower == b"host":
                hosts.append(value)
            elif lower != b"connection":
                asked[lower.decode()] = value.decode("latin-1")
        whose = host_id(client).hex()[:32]
        try:
            url = program_url(host, port, target, hosts)
            conditions = {each: asked.pop(each) for each in _CONDITIONS if each in asked}
            if (wanted := asked.pop("range", None)) is not None:
                return None if conditions else self._part(whose, url, asked, wanted)
            if conditions:
                return self._on_condition(whose, url, asked, conditions)
            found = await self._fetcher.answer(whose, url, asked)
        except (TransferError, ValueError):
            return None  # its origin itself says what is wrong
        if found is None:
            return None
        if isinstance(found, aiohttp.ClientResponse):
            return PassedAnswer(found)
        try:
            return StoredAnswer(self._fetcher, whose, found)
        except OSError:
            return None

    def _on_condition(
        self, client: str, url: URL, asked: dict[str, str], conditions: dict[str, str]
    ) -> "StoredAnswer | None":
        """Answer a conditional request from a fresh object (RFC 9111, 4.3.2)."""
        found = self._fetcher.kept(client, url, asked)
        if found is None or not not_modified(conditions, found.record.headers):
            return None
        try:
            return StoredAnswer(self._fetcher, client, found, unchanged=True)
        except OSError:
            return None

    def _part(
        self, client: str, url: URL, asked: dict[str, str], wanted: str
    ) -> "StoredAnswer | None":
        found = self._fetcher.kept(client, url, asked)
        if found is None or (part := one_range(wanted, found.record.size or 0)) is None:
            return None
        try:
            return StoredAnswer(self._fetcher, client, found, part)
        except OSError:
            return None


class StoredAnswer:
    """An object of the store, which may still grow, or a range of one.

    `unchanged`: its program has it, and hears just that.
    """

    def __init__(
        self,
        fetcher: ObjectFetcher,
        client: str,
        found: StoredObject,
        part: tuple[int, int] | None = None,
        *,
        unchanged: bool = False,
    ) -> None:
        self._fetcher, self._client, self._found = fetcher, client, found
        self._number = os.open(found.path, os.O_RDONLY | os.O_CLOEXEC)
        found.users += 1
        record = found.record
        size = record.size or 0
        self._first, self._end = (0, 0) if unchanged else part or (0, size)
        fields = [
            (name, value)
            for name, values in record.headers.items()
            if name not in _HOP_BY_HOP and name != "content-length"
            for value in values
        ]
        age_s = max(0, int(time.time() - record.received_unix_s))
        own = [("content-length", str(self._end - self._first)), ("age", str(age_s))]
        if unchanged:
            self.head = _head(304, "Not Modified", [*fields, ("age", str(age_s))])
        elif part is None:
            self.head = _head(200, "OK", [*fields, *own])
        else:
            own.append(("content-range", f"bytes {self._first}-{self._end - 1}/{size}"))
            self.head = _head(206, "Partial Content", [*fields, *own])
        fetcher.store.used(found)

    async def body(self, offset: int) -> bytes:
        at = self._first + offset
        if at >= self._end:
            return b""
        have = min(self._end, await self._found.beyond(at, 1))
        return os.pread(self._number, min(_BLOCK, have - at), at)

    def close(self, *, whole: bool) -> None:
        os.close(self._number)
        self._found.users -= 1
        self._fetcher.unwanted(self._client, self._found)


class PassedAnswer:
    """An origin's answer that is not stored, passed on as it arrives."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer, self._left = answer, answer.content_length
        fields = [
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in answer.raw_headers
            if name.decode("latin-1").lower() not in _HOP_BY_HOP
        ]
        self.head = _head(answer.status, answer.reason or "", fields)

    async def body(self, offset: int) -> bytes:
        try:
            return await self._answer.content.readany()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise TransferError(f"the origin broke off: {error}") from error

    def close(self, *, whole: bool) -> None:
        if whole:
            self._answer.release()
        else:
            self._answer.close()


def program_url(host: str, port: int, target: bytes, hosts: list[bytes]) -> URL:
    """Return the URL of a program's request. ValueError: its `Host` names another server."""
    there = f"[{host}]" if ":" in host else host
    there = there if port == 80 else f"{there}:{port}"
    for each in hosts:
        if each.decode("latin-1").lower() not in (there.lower(), f"{there.lower()}:80"):
            raise ValueError("another host than that of the connection")
    return URL(f"http://{there}{target.decode()}", encoded=True)


def _head(status: int, reason: str, fields: list[tuple[str, str]]) -> bytes:
    lines = [f"HTTP/1.1 {status} {reason}", *(f"{name}: {value}" for name, value in fields)]
    return "\r\n".join([*lines, "Via: 1.1 cedos", "Connection: close", "", ""]).encode("latin-1")
