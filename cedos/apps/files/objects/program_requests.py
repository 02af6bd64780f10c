"""Programs' plain requests that the gateway fetches for them: whole and at once, kept by HTTP's rules.

Only what every user of the client would get: a GET with no fields but those that say nothing of a user;
of stored objects also a range, or the word that its program has the same.
All else goes to its origin as it is, and so does what the gateway has no room for.
"""

import os
import time
from typing import Final

import aiohttp
from yarl import URL

from cedos.apps.files.objects.http_rules import not_modified, one_range
from cedos.apps.files.objects.object_fetcher import ObjectFetcher, PassedOn
from cedos.apps.files.objects.object_store import ObjectRecord, StoredObject
from cedos.errors import TransferError
from cedos.session.protocol.crypto import host_id

_BLOCK: Final = 1 << 18
# Fields by which origins tell no user from another. By any other one (a token, say, or the host that
# an origin is to name in links) a user could get what is another's, or decide what others get.
_FOR_ALL: Final = frozenset(
    (b"accept", b"accept-charset", b"accept-encoding", b"accept-language", b"cache-control",
     b"connection", b"dnt", b"host", b"if-modified-since", b"if-none-match", b"pragma", b"priority",
     b"range", b"referer", b"save-data", b"sec-gpc", b"upgrade-insecure-requests", b"user-agent",
     b"via")
)  # fmt: skip
_CONDITIONS: Final[tuple[str, ...]] = ("if-none-match", "if-modified-since")
_HOP_BY_HOP: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding",
     b"upgrade", b"via", b"age")
)  # fmt: skip


class ProgramRequests:
    """The answers to programs' plain HTTP requests (`cedos.proxy.gateway.gateway_session`)."""

    def __init__(self, fetcher: ObjectFetcher) -> None:
        self._fetcher = fetcher

    async def fetch(
        self, client: bytes, host: str, port: int, target: bytes, fields: list[tuple[bytes, bytes]]
    ) -> "StoredAnswer | PassedAnswer | None":
        asked: dict[str, str] = {}
        hosts: list[bytes] = []
        for name, value in fields:
            lower = name.lower()
            if lower not in _FOR_ALL or lower.decode() in asked:
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
        if isinstance(found, PassedOn):
            return PassedAnswer(found)
        return self._stored(whose, found)

    def _stored(
        self, client: str, found: StoredObject, part: tuple[int, int] | None = None
    ) -> "StoredAnswer | None":
        try:
            return StoredAnswer(self._fetcher, client, found, part)
        except TransferError:
            return None

    def _on_condition(
        self, client: str, url: URL, asked: dict[str, str], conditions: dict[str, str]
    ) -> "StoredAnswer | None":
        """Answer a conditional request from a fresh object (RFC 9111, 4.3.2)."""
        found = self._fetcher.find_kept(client, url, asked)
        if found is None or not not_modified(conditions, found.record.headers):
            return None
        return self._stored(client, found, UNCHANGED)

    def _part(
        self, client: str, url: URL, asked: dict[str, str], wanted: str
    ) -> "StoredAnswer | None":
        found = self._fetcher.find_kept(client, url, asked)
        if found is None or (part := one_range(wanted, found.record.size or 0)) is None:
            return None
        return self._stored(client, found, part)


# The range that means "not modified": the program has the object already.
UNCHANGED: Final = (0, 0)


class StoredAnswer:
    """An object of the store, which may still grow, or a `part` of one.

    TransferError: it cannot be opened.
    """

    def __init__(
        self,
        fetcher: ObjectFetcher,
        client: str,
        found: StoredObject,
        part: tuple[int, int] | None = None,
    ) -> None:
        self._fetcher, self._client, self._found = fetcher, client, found
        self._first, self._end = part or (0, found.record.size or 0)
        self.head = _stored_head(found.record, part)
        # `close` gives this back: nothing may fail below.
        self._opened = fetcher.store.open_object(client, found)

    async def body(self, offset: int) -> bytes:
        at = self._first + offset
        if at >= self._end:
            return b""
        have = min(self._end, await self._found.beyond(at, 1))
        return os.pread(self._opened.number, min(_BLOCK, have - at), at)

    def close(self, *, whole: bool) -> None:
        self._opened.close()
        self._fetcher.unwanted(self._client, self._found)


class PassedAnswer:
    """An origin's answer that is not stored, passed on as it arrives."""

    def __init__(self, passed: PassedOn) -> None:
        self._passed, answer = passed, passed.answer
        fields = [each for each in answer.raw_headers if each[0].lower() not in _HOP_BY_HOP]
        reason = (answer.reason or "").encode("utf-8", "surrogateescape")
        self.head = _head(answer.status, reason, fields)

    async def body(self, offset: int) -> bytes:
        try:
            return await self._passed.answer.content.readany()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise TransferError(f"the origin broke off: {error}") from error

    def close(self, *, whole: bool) -> None:
        self._passed.close(whole=whole)


def program_url(host: str, port: int, target: bytes, hosts: list[bytes]) -> URL:
    """Return the URL of a program's request. ValueError: its `Host` names another server."""
    there = f"[{host}]" if ":" in host else host
    there = there if port == 80 else f"{there}:{port}"
    for each in hosts:
        if each.decode("latin-1").lower() not in (there.lower(), f"{there.lower()}:80"):
            raise ValueError("another host than that of the connection")
    return URL(f"http://{there}{target.decode()}", encoded=True)


def _stored_head(record: ObjectRecord, part: tuple[int, int] | None) -> bytes:
    size = record.size or 0
    fields = [
        (name.encode("latin-1"), value.encode("latin-1"))
        for name, values in record.headers.items()
        for value in values
    ]
    fields = [each for each in fields if each[0] not in _HOP_BY_HOP | {b"content-length"}]
    fields.append((b"age", b"%d" % max(0, int(time.time() - record.received_unix_s))))
    if part == UNCHANGED:
        return _head(304, b"Not Modified", fields)
    first, end = part or (0, size)
    fields.append((b"content-length", b"%d" % (end - first)))
    if part is None:
        return _head(200, b"OK", fields)
    fields.append((b"content-range", b"bytes %d-%d/%d" % (first, end - 1, size)))
    return _head(206, b"Partial Content", fields)


def _head(status: int, reason: bytes, fields: list[tuple[bytes, bytes]]) -> bytes:
    lines = [b"HTTP/1.1 %d %s" % (status, reason), *(b"%s: %s" % each for each in fields)]
    return b"\r\n".join([*lines, b"Via: 1.1 cedos", b"Connection: close", b"", b""])
