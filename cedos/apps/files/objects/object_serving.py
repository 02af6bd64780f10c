"""Hands objects of the web on over a session's stream, as `cedos-serve` does with files."""

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Final

import aiohttp
from yarl import URL

from cedos.apps.files.messages import (
    DIGEST_BYTES,
    VERSION,
    Answer,
    FileRequest,
    pack,
    read,
)
from cedos.apps.files.objects.http_rules import CONDITIONS, not_modified, one_range
from cedos.apps.files.objects.object_fetcher import ObjectFetcher, PassedOn
from cedos.apps.files.objects.stored_object import ObjectRecord, OpenObject, StoredObject
from cedos.apps.files.tree import reader
from cedos.errors import SessionError, TransferError
from cedos.logs import BoundLogger, get_logger
from cedos.session.io.driver import current
from cedos.session.protocol.crypto import host_id
from cedos.session.sockets.connection import Connection

_log: Final[BoundLogger] = get_logger()
# The most unacknowledged objects of one session.
MOST_AHEAD: Final = 8
_GOODBYE_S: Final = 3.0
# The most unacknowledged bytes of the session. They stay on the disk.
_AHEAD_BYTES: Final = 32 << 20
_BLOCK: Final = 1 << 18
# Fields by which origins tell no user from another. By any other one (a token, say, or the host that
# an origin is to name in links) a user could get what is another's, or decide what others get.
_FOR_ALL: Final = frozenset(
    (b"accept", b"accept-charset", b"accept-encoding", b"accept-language", b"cache-control",
     b"connection", b"dnt", b"host", b"if-modified-since", b"if-none-match", b"pragma", b"priority",
     b"range", b"referer", b"save-data", b"sec-gpc", b"upgrade-insecure-requests", b"user-agent",
     b"via")
)  # fmt: skip
_HOP_BY_HOP: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authentication-info",
     b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"via", b"age")
)  # fmt: skip
# The range that means "not modified": the program has the object already.
UNCHANGED: Final = (0, 0)


def client_of(key: bytes) -> str:
    """Return the name under which the objects of the client with this public key lie."""
    return host_id(key).hex()[:32]


@dataclass(frozen=True, slots=True)
class _HandedOn:
    """An object that was handed to the session; its digest ends at `end` of the stream."""

    end: int
    opened: OpenObject


class ObjectServing:
    """The gateway's end of a stream of requests; `admitted` tells whether the client is still served."""

    def __init__(
        self, connection: Connection, fetcher: ObjectFetcher, admitted: Callable[[], bool]
    ) -> None:
        self._connection, self._fetcher, self._admitted = connection, fetcher, admitted
        self._client = client_of(connection.peer_key)
        self._handed_on: deque[_HandedOn] = deque()

    async def run(self) -> None:
        """Answer requests until the stream ends. SessionError: it broke."""
        connection = self._connection
        try:
            while begun := await connection.first_byte():
                try:
                    request: FileRequest = await read(FileRequest, connection.read_exactly, begun)
                except TransferError as error:
                    connection.abort(str(error))
                    return
                # A client may have sent thousands, without waiting for answers.
                await current().turns.turn(connection.peer_key.hex())
                self._let_go()
                before, why = connection.written_bytes, ""
                try:
                    await self._answer(request)
                except TransferError as error:
                    why = str(error)
                except SessionError:
                    raise
                except Exception as error:
                    if connection.written_bytes != before:
                        raise
                    _log.error("answering a client failed", exc_info=error)
                    why = "the gateway failed at this; its owner's log says why"
                if why:
                    await connection.write(pack(Answer(refused=why[:1000])))
            with suppress(TimeoutError):
                async with asyncio.timeout(_GOODBYE_S):
                    await connection.acknowledged(connection.written_bytes)
        finally:
            self._let_go()
            for each in self._handed_on:
                each.opened.close()
            # The session reads objects by their descriptors until the client has them: these numbers
            # may be another client's from now on.
            if connection.acknowledged_bytes < connection.written_bytes:
                connection.abort("what was asked for was not taken")

    async def _answer(self, request: FileRequest) -> None:
        if not self._admitted():
            raise TransferError("this client is no longer invited")
        if request.protocol != VERSION:
            raise TransferError(f"this gateway speaks version {VERSION} of the file protocol")
        # A client that asks ahead waits until it has acknowledged what came before.
        while len(self._handed_on) >= MOST_AHEAD:
            await self._connection.acknowledged(self._handed_on[0].end)
            self._let_go()
        found = await self._fetcher.find(self._client, request.path, request.version)
        if found.whole and not found.path.exists():  # a user deleted it
            self._fetcher.store.remove(self._client, found)
            found = await self._fetcher.find(self._client, request.path, request.version)
        with ExitStack() as taken:
            opened = self._fetcher.store.open_object(
                self._client,
                found,
                lambda: self._connection.abort("others need the room of what it does not take"),
            )
            taken.callback(opened.close)
            size = await found.known_size()
            if request.head:  # the object stays until the client asks for it, while there is room
                await self._connection.write(pack(_answer(request, found, size)))
                return
            await self._hand_on(request, opened, size)
            # It stays open until the client has acknowledged all of it.
            taken.pop_all()
            self._handed_on.append(_HandedOn(self._connection.written_bytes, opened))

    async def _hand_on(self, request: FileRequest, opened: OpenObject, size: int) -> None:
        connection, found = self._connection, opened.found
        answer = _answer(request, found, size)
        at = answer.start
        await connection.write(pack(answer))
        try:
            while at < size:
                have = min(await found.beyond(at), size, at + _AHEAD_BYTES // 4)
                # Hand on what is here; the session reads the file when it sends.
                if have > at:
                    await connection.write_source(reader(opened.number, at), have - at)
                    at = have
                    await connection.acknowledged(connection.written_bytes - _AHEAD_BYTES)
            await found.beyond(size)
        except TransferError as error:
            # The announced rest will not come: the client asks again, in another session.
            connection.abort(str(error))
            raise SessionError(str(error)) from error
        digest = bytes.fromhex(found.record.sha256)
        assert len(digest) == DIGEST_BYTES
        await connection.write(digest)

    def _let_go(self) -> None:
        """Release objects that the client has received; those that may not be reused are removed."""
        handed = self._handed_on
        while handed and handed[0].end <= self._connection.acknowledged_bytes:
            each = handed.popleft().opened
            each.close()
            if not each.found.record.reusable and not each.found.users:
                self._fetcher.store.remove(self._client, each.found)


def _answer(request: FileRequest, found: StoredObject, size: int) -> Answer:
    record = found.record
    known = request.version == record.version and request.have <= size
    return Answer(size, request.have if known else 0, record.version, record.modified_unix_s)


class ProgramRequests:
    """The answers to programs' plain HTTP requests (`cedos.proxy.gateway.gateway_session`).

    The gateway answers only with what every user of the client would get: a GET whose fields say nothing
    of a user; of stored objects also a range, or "not modified". Other requests go to their origins as
    they are, and so do those that the gateway has no room for.
    """

    def __init__(self, fetcher: ObjectFetcher) -> None:
        self._fetcher = fetcher

    async def fetch(
        self, client: bytes, host: str, port: int, target: bytes, fields: list[tuple[bytes, bytes]]
    ) -> "StoredAnswer | PassedAnswer | NoAnswer | None":
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
        whose = client_of(client)
        try:
            url = program_url(host, port, target, hosts)
            conditions = {each: asked.pop(each) for each in CONDITIONS if each in asked}
            wanted = asked.pop("range", None)
            here = "only-if-cached" in asked.get("cache-control", "").lower()
            if here or conditions or wanted is not None:
                kept = self._kept(whose, url, asked, conditions, wanted)
                return NoAnswer() if here and kept is None else kept
            found = await self._fetcher.answer(whose, url, asked)
        except (TransferError, ValueError):
            return None  # its origin itself says what is wrong
        if found is None:
            return None
        if isinstance(found, PassedOn):
            return PassedAnswer(found)
        return self._stored(whose, found)

    def _kept(
        self,
        client: str,
        url: URL,
        asked: dict[str, str],
        conditions: dict[str, str],
        wanted: str | None,
    ) -> "StoredAnswer | None":
        """Answer from what is stored and fresh; `wanted`: the range (RFC 9111, 4.3.2)."""
        found = self._fetcher.find_kept(client, url, asked)
        if found is None or (conditions and wanted is not None):
            return None
        part = UNCHANGED if conditions else None
        if conditions and not not_modified(conditions, found.record.headers):
            return None
        if wanted is not None and (part := one_range(wanted, found.record.size or 0)) is None:
            return None
        return self._stored(client, found, part)

    def _stored(
        self, client: str, found: StoredObject, part: tuple[int, int] | None = None
    ) -> "StoredAnswer | None":
        try:
            return StoredAnswer(self._fetcher, client, found, part)
        except TransferError:
            return None


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
        self._ends: Callable[[], object] = lambda: None
        # `close` gives this back: nothing may fail below.
        self._opened = fetcher.store.open_object(client, found, self._give_up)

    def on_given_up(self, call: Callable[[], object]) -> None:
        self._ends = call

    def _give_up(self) -> None:
        self._ends()

    async def body(self, offset: int) -> bytes:
        at = self._first + offset
        if at >= self._end:
            return b""
        have = min(self._end, await self._found.beyond(at, 1))
        if self._opened.number < 0:
            raise TransferError("others need its room")
        return os.pread(self._opened.number, min(_BLOCK, have - at), at)

    def close(self, *, whole: bool) -> None:
        self._opened.close()
        self._fetcher.unwanted(self._client, self._found)


class PassedAnswer:
    """An origin's answer that is not stored, passed on as it arrives."""

    def __init__(self, passed: PassedOn) -> None:
        self._passed, answer = passed, passed.answer
        fields = _for_programs(answer.raw_headers)
        reason = (answer.reason or "").encode("utf-8", "surrogateescape")
        self.head = _head(answer.status, reason, fields)

    def on_given_up(self, call: Callable[[], object]) -> None: ...

    async def body(self, offset: int) -> bytes:
        try:
            return await self._passed.answer.content.readany()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise TransferError(f"the origin broke off: {error}") from error

    def close(self, *, whole: bool) -> None:
        self._passed.close(whole=whole)


class NoAnswer:
    """The answer to a request that its origin is not to see: nothing is kept (RFC 9111, 5.2.1.7)."""

    def __init__(self) -> None:
        self.head = _head(504, b"Gateway Timeout", [(b"content-length", b"0")])

    def on_given_up(self, call: Callable[[], object]) -> None: ...

    async def body(self, offset: int) -> bytes:
        return b""

    def close(self, *, whole: bool) -> None: ...


def program_url(host: str, port: int, target: bytes, hosts: list[bytes]) -> URL:
    """Return the URL of a program's request.

    ValueError: its `Host` names another server, or the origin would be asked for another target ("/a?").
    """
    there = f"[{host}]" if ":" in host else host
    there = there if port == 80 else f"{there}:{port}"
    for each in hosts:
        if each.decode("latin-1").lower() not in (there.lower(), f"{there.lower()}:80"):
            raise ValueError("another host than that of the connection")
    url = URL(f"http://{there}{target.decode()}", encoded=True)
    if url.raw_path_qs != target.decode():
        raise ValueError("another target than that of the request")
    return url


def _for_programs(fields: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the fields of an answer that are not for its connection alone (RFC 9110, 7.6.1)."""
    said = b",".join(value for name, value in fields if name.lower() == b"connection")
    named = {each.strip().lower() for each in said.split(b",")} - {b"content-length"}
    return [each for each in fields if each[0].lower() not in _HOP_BY_HOP | named]


def _stored_head(record: ObjectRecord, part: tuple[int, int] | None) -> bytes:
    size = record.size or 0
    fields = [
        (name.encode("latin-1"), value.encode("latin-1"))
        for name, values in record.headers.items()
        for value in values
    ]
    fields = [each for each in _for_programs(fields) if each[0] != b"content-length"]
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
