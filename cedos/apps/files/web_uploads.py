"""Takes uploads of clients in pieces, and sends each to its origin in one go, once it is whole."""

import asyncio
import re
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import ExitStack, suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

import aiohttp
import msgspec
import structlog
from aiohttp import hdrs
from yarl import URL

from cedos.apps.files.client_store import ClientStore, cost_of, encoded, unlink, write_record
from cedos.apps.files.messages import (
    DIGEST_BYTES,
    HEADER_NAME,
    MOST_ANSWER_BYTES,
    PutAnswer,
    PutRequest,
    WebAnswer,
    WebUpload,
    pack,
)
from cedos.apps.files.objects.object_fetcher import (
    AT_ONCE,
    AT_ONCE_OF_ORIGIN,
    Slots,
    object_url,
)
from cedos.apps.files.objects.origin_client import OriginClient, words
from cedos.apps.files.partial import Partial, files_of, when_free
from cedos.apps.files.tree import digest_of
from cedos.errors import SessionError, TransferError
from cedos.kernel.own_file import to_its_end
from cedos.web import AGENT, AnswerHead

if TYPE_CHECKING:
    from cedos.session.sockets.connection import Connection

_READ_BYTES: Final = 1 << 18
_AT_ONCE: Final = 8  # of one client, from it
_TIDIED_EVERY_S: Final = 60.0
_LAST_S: Final = 2.0
_log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger()
ANSWERS_KEPT_S: Final = 7 * 86_400.0
_MOST_OF_CLIENT: Final = 1_000
_OURS: Final = re.compile(
    r"([0-9a-f]{32})(?:\.[0-9a-f]{16}\.part(?:\.json(?:\.new)?)?|\.json|\.new)?"
)
_ANSWER_S: Final = 600.0
_AGAIN_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0)
_MOST_REDIRECTS: Final = 5
_MOST_HEADERS: Final = 8_192
_MOST_REASON: Final = 200


class UploadState(StrEnum):
    """`COMING` from the client, `WHOLE` here, `ANSWERED` by the origin."""

    COMING = "coming"
    WHOLE = "whole"
    ANSWERED = "answered"


class UploadRecord(msgspec.Struct, forbid_unknown_fields=True):
    """An upload's destination, state and answer, as they lie on the disk beside the bytes."""

    id: str
    url: str
    headers: list[tuple[str, str]]  # may name a user; they are deleted once the origin has answered
    size: int
    version: str
    keep_s: float
    heard_unix_s: float  # when the client was last here; it is waited for `keep_s`
    state: UploadState = UploadState.COMING
    sha256: str = ""
    answer: WebAnswer | None = None
    told: bool = False  # the client has the answer


class KeptUpload:
    """An upload at the gateway, from its first byte to the origin's answer.

    `path` has the body once it is whole; before that its `have` bytes lie in a `Partial` beside it.
    """

    def __init__(self, path: Path, record: UploadRecord, have: int = 0) -> None:
        self.path, self.record, self.have = path, record, have
        self.bringer: Connection | None = None  # the session that brings it now
        self.writes = 0  # of the record, now and next: until their end it stays
        self.turn = asyncio.Lock()  # among them
        self.answered = asyncio.Event()
        if record.state is UploadState.ANSWERED:
            self.answered.set()

    @property
    def held_bytes(self) -> int:
        answered = self.record.state is UploadState.ANSWERED
        return 0 if answered and not self.path.exists() else self.record.size

    @property
    def coming_bytes(self) -> int:
        coming = self.record.state is UploadState.COMING
        return max(self.record.size - self.have, 0) if coming else 0

    @property
    def used_unix_s(self) -> float:
        return self.record.heard_unix_s

    @property
    def may_make_room(self) -> bool:
        """True if the origin has answered: a body waits for a repetition alone, or its client knows."""
        answered = self.record.state is UploadState.ANSWERED
        may = answered and not self.writes
        return may and (self.record.told or self.path.exists())

    def expired(self, now_unix_s: float) -> bool:
        """Tell whether its client was away for too long; an answer is kept for a week at least."""
        record = self.record
        if self.writes:
            return False
        if record.state is UploadState.ANSWERED and record.answer is not None:
            return now_unix_s > max(
                record.answer.at_unix_s + ANSWERS_KEPT_S, record.heard_unix_s + record.keep_s
            )
        waits = record.state is UploadState.COMING and self.bringer is None
        return waits and now_unix_s > record.heard_unix_s + record.keep_s


class UploadStore(ClientStore[KeptUpload]):
    """The uploads of all clients. Only bodies whose origin has answered make room for others."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        super().__init__(folder, most_bytes, _restored, _OURS, lasting=True)

    def find(self, client: str, name: str) -> KeptUpload | None:
        return self._kept[client].get(name) if client in self._kept else None

    async def create(self, client: str, record: UploadRecord) -> KeptUpload:
        """Return a new upload. TransferError: there is no room, or no disk."""
        head = encoded(record)
        cost = cost_of(record.size, len(head), record.size)
        await self.make_room(client, cost, self.clock.now_s())
        if self.find(client, record.id) is not None:
            raise TransferError("the same upload has begun in another session")
        of = self.of(client)
        if len(of) >= _MOST_OF_CLIENT:
            told = [each for each in of if each.record.told and not each.writes]
            if not told:
                raise TransferError(f"{_MOST_OF_CLIENT} uploads are here for this client already")
            self.remove(client, min(told, key=lambda each: each.used_unix_s))
        made = KeptUpload(self._folder / client / record.id, record)
        self.add(client, made, head)
        try:
            await self.keep(client, made)
        except TransferError:
            self.remove(client, made)
            raise
        return made

    async def keep(self, client: str, upload: KeptUpload) -> None:
        """Write the record, whatever becomes of who waits for it. TransferError: there is no room."""
        upload.writes += 1
        await to_its_end(self._keep(client, upload))

    async def _keep(self, client: str, upload: KeptUpload) -> None:
        async with upload.turn:
            try:
                async with self.threads[client]:
                    record = await self.counted(client, upload)  # as it is by now
                    await asyncio.to_thread(write_record, upload.path, record, durable=True)
            finally:
                upload.writes -= 1

    async def settled(self, client: str, name: str) -> KeptUpload | None:
        """Return an upload once its record is written; None: it is not here."""
        while (found := self.find(client, name)) is not None and found.writes:
            await asyncio.sleep(0)  # the writer's task takes its turn before this one
            async with found.turn:
                pass
        return found

    async def grow(
        self, client: str, upload: KeptUpload, partial: Partial, data: bytes | memoryview
    ) -> None:
        """Write the next bytes of an upload. TransferError: there is no room, or no disk."""
        old = cost_of(upload.record.size, 0, upload.coming_bytes)
        new = cost_of(upload.record.size, 0, upload.coming_bytes - len(data))
        await self.make_room(client, new.beside(old), self.clock.now_s(), but=upload)
        partial.write(data)
        self.has(client, upload, partial.have)

    def has(self, client: str, upload: KeptUpload, count: int) -> None:
        """Count the bytes of an upload that are here."""
        upload.have = count
        self.account(client, upload)

    def forget_body(self, client: str, upload: KeptUpload) -> None:
        """Remove the bytes of an upload. Errors: OSError."""
        for path in (upload.path, *files_of(upload.path)):
            unlink(path)
        self.account(client, upload)

    def _drop(self, client: str, kept: KeptUpload) -> None:
        if kept.path.exists():
            try:
                self.forget_body(client, kept)
            except OSError as error:  # it would be dropped again and again
                raise TransferError(f"the gateway cannot make room: {error.strerror}") from error
        else:
            self.remove(client, kept)


def _restored(path: Path, record: bytes) -> KeptUpload:
    have = 0
    for each in (path, files_of(path)[0]):
        with suppress(OSError):
            have = max(have, each.lstat().st_size)
    return KeptUpload(path, msgspec.json.decode(record, type=UploadRecord), have)


class UploadSender:
    """A sender of whole uploads to their origins."""

    def __init__(self, origins: OriginClient, pauses_s: tuple[float, ...] = _AGAIN_S) -> None:
        self._origins, self._pauses_s = origins, pauses_s

    async def close(self) -> None:
        await self._origins.close()

    async def ask(
        self,
        url: URL,
        headers: list[tuple[str, str]],
        body: BinaryIO,
        size: int,
        client: str = "",
    ) -> aiohttp.ClientResponse:
        """Return the origin's answer. Errors: aiohttp.ClientError, OSError, TimeoutError.

        The origin may neither read nor answer for ten minutes.
        """
        taken = [each for each in headers if each[0].lower() not in ("content-length", "host")]
        length = (hdrs.CONTENT_LENGTH, str(size))
        # aiohttp waits for ever for an origin that does not read.
        async with asyncio.timeout(_ANSWER_S) as silence:
            return await self._origins.ask(
                hdrs.METH_PUT, url, [*taken, length], silence_s=None, data=_read(body, silence),
                asker=client,
            )  # fmt: skip

    async def send(self, record: UploadRecord, path: Path, client: str = "") -> WebAnswer:
        """Send an upload, return its result. TransferError."""
        url, failures, redirects = object_url(record.url), 0, 0
        headers = [*record.headers, (hdrs.VIA, "1.1 cedos")]
        if not any(name.lower() == "user-agent" for name, _ in headers):
            headers.append((hdrs.USER_AGENT, AGENT))
        while True:
            try:
                body = path.open("rb")  # aiohttp closes a body that it has sent
            except OSError as error:
                return failed(f"the gateway has lost it: {error.strerror}")
            try:
                with body:
                    async with await self.ask(url, headers, body, record.size, client) as answer:
                        if (to := _further(url, answer)) is None or redirects >= _MOST_REDIRECTS:
                            return await _as_told(answer)
                        url, redirects = to, redirects + 1
                        continue
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                why = words(error)
            if failures >= len(self._pauses_s):
                return failed(f"{url.host} cannot be asked: {why}")
            await asyncio.sleep(self._pauses_s[failures])
            failures += 1


async def _read(body: BinaryIO, silence: asyncio.Timeout) -> AsyncIterator[bytes]:
    """Yield an upload; each block that the origin takes puts off the end of `silence`."""
    now_s = asyncio.get_running_loop().time
    while block := await asyncio.to_thread(body.read, _READ_BYTES):
        with suppress(RuntimeError):  # the origin has answered before the end
            silence.reschedule(now_s() + _ANSWER_S)
        yield block


def failed(why: str) -> WebAnswer:
    return WebAnswer(problem=why[:1000], at_unix_s=time.time())


def _further(url: URL, answer: aiohttp.ClientResponse) -> URL | None:
    """Return the place of a redirect, if it is the same origin, or the same host by TLS."""
    try:
        there = AnswerHead.of(url, answer).redirect() if answer.status in (307, 308) else None
        there = None if there is None else object_url(str(there))
    except TransferError:
        return None
    if there is None:
        return None
    safer = (url.scheme, there.scheme) == ("http", "https") and there.host == url.host
    return there if safer or there.origin() == url.origin() else None


async def _as_told(answer: aiohttp.ClientResponse) -> WebAnswer:
    body, whole = b"", True
    try:
        async with asyncio.timeout(_ANSWER_S):
            while len(body) <= MOST_ANSWER_BYTES and (block := await answer.content.readany()):
                body += block
    except (aiohttp.ClientError, OSError, TimeoutError):
        whole = False  # its head says what became of the upload
    return WebAnswer(
        answer.status, _text((answer.reason or "").encode("utf-8", "replace"))[:_MOST_REASON],
        _some(answer.raw_headers), body[:MOST_ANSWER_BYTES],
        not whole or len(body) > MOST_ANSWER_BYTES, at_unix_s=time.time(),
    )  # fmt: skip


def _some(raw: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    """Return as many fields as a message has room for."""
    found: list[tuple[str, str]] = []
    room = _MOST_HEADERS
    for name, value in raw:
        room -= len(name) + len(value)
        if room < 0 or len(found) >= 256:
            break
        if HEADER_NAME.fullmatch(name.decode("latin-1")):
            found.append((_text(name), _text(value)))
    return found


def _text(raw: bytes) -> str:
    return "".join(
        each if each >= " " and each != "\x7f" else "?" for each in raw.decode("latin-1")
    )


class WebUploads:
    """`begin`, then `take` for each that a client brings; `close` at the end.

    Args:
        changed: hears of URLs of a client that an origin was told to change.
        admitted: tells whether a client is still served.
    """

    def __init__(
        self,
        store: UploadStore,
        sender: UploadSender,
        changed: Callable[[str, URL], None],
        admitted: Callable[[str], bool],
    ) -> None:
        self.store, self._sender = store, sender
        self._changed, self._admitted = changed, admitted
        self._sending: set[asyncio.Task[None]] = set()
        self._slots = defaultdict[str, Slots](lambda: Slots(AT_ONCE, AT_ONCE_OF_ORIGIN))
        self._coming: Counter[str] = Counter()
        self._tidying: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Continue the uploads of an earlier process: whole ones go to their origins."""
        if not self.store.used_before:
            return
        with suppress(TransferError):
            self._open()

    async def close(self) -> None:
        """Close, after a moment for requests that origins are receiving."""
        if self._tidying is not None:
            self._tidying.cancel()
        if self._sending:
            await asyncio.wait(self._sending, timeout=_LAST_S)
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)
        await self._sender.close()
        self.store.close()

    async def take(self, connection: "Connection", client: str, request: PutRequest) -> None:
        """Receive an upload as far as the session goes, and answer with its result.

        TransferError: it is not taken, in words for who asked. SessionError: the session ended; what
        has come is kept.
        """
        web = request.web
        assert web is not None
        object_url(request.path)
        self._open()
        upload = await self._known(client, request, web)
        upload.record.heard_unix_s, upload.record.keep_s = time.time(), web.keep_s
        try:
            # While this waited for an earlier session's end, that one may have completed it.
            coming = upload.record.state is UploadState.COMING
            if not (coming and await self._bring(connection, client, upload)):
                # The body is here: the client only proves that its file is the same.
                await connection.write(pack(PutAnswer(request.size)))
                theirs = await connection.read_exactly(DIGEST_BYTES)
                if theirs.hex() != upload.record.sha256:
                    raise TransferError("another upload has this id")
            # The client learns the origin's answer, now or in a later session.
            await upload.answered.wait()
            await connection.write(pack(PutAnswer(request.size, web=upload.record.answer)))
            await connection.acknowledged(connection.written_bytes)
        finally:
            upload.record.heard_unix_s = time.time()
        if not upload.record.told:
            upload.record.told = True
            await self.store.keep(client, upload)

    def _open(self) -> None:
        self.store.open()
        if self._tidying is not None:
            return
        self._tidying = asyncio.get_running_loop().create_task(self._tidy())
        for client, each in self.store.all():
            record = each.record
            if record.state is UploadState.COMING and each.path.exists():
                with each.path.open("rb") as body:  # its process ended before it noted the state
                    record.sha256 = digest_of(body.fileno(), record.size).hex()
                record.state = UploadState.WHOLE
            if record.answer is not None and record.answer.good:
                with suppress(OSError):
                    self.store.forget_body(client, each)  # its process ended before it did
            # A PUT that may have arrived is sent again: it is idempotent (RFC 9110, 9.2.2).
            if record.state is UploadState.WHOLE:
                self._send_later(client, each)

    async def _known(self, client: str, request: PutRequest, web: WebUpload) -> KeptUpload:
        """Return the upload that this request continues, or a new one."""
        found = await self.store.settled(client, web.id)
        if found is not None:
            record, answer = found.record, found.record.answer
            if (record.url, record.size) != (request.path, request.size):
                raise TransferError("another upload has this id")
            # What its origin has is not sent again; a failure that the client knows is.
            if not record.told or answer is None or answer.good:
                if record.state is not UploadState.ANSWERED:
                    record.headers = list(web.headers)
                return found
            # The body is still here: only the request is sent again.
            if found.path.exists():
                record.headers, record.answer, record.told = list(web.headers), None, False
                found.answered.clear()
                await self._is_whole(client, found)
                return found
            self.store.remove(client, found)
        return await self.store.create(
            client,
            UploadRecord(
                web.id, request.path, list(web.headers), request.size, request.version,
                web.keep_s, time.time(),
            ),
        )  # fmt: skip

    async def _bring(self, connection: "Connection", client: str, upload: KeptUpload) -> bool:
        """Receive the body from where an earlier session ended; return False if it is here already."""
        record = upload.record
        # A newer session takes the upload over: the older one's client is gone.
        if upload.bringer is not None:
            upload.bringer.abort("the same upload goes on in another session")
        elif self._coming[client] >= _AT_ONCE:
            # One without a network makes way: its client may have been killed.
            bringers = [each.bringer for each in self.store.of(client) if each.bringer is not None]
            away = next((each for each in bringers if not (each.ended or each.paths())), None)
            if away is None:
                why = f"{_AT_ONCE} uploads at once are the most here; try again later"
                raise TransferError(why)
            away.abort("a newer upload of its client has its place")
        upload.bringer = connection
        self._coming[client] += 1
        try:
            try:
                place = self.store.threads[client]
                partial = await when_free(upload.path, record.version, place)
            except TransferError:
                if record.state is UploadState.COMING:
                    raise
                return False
            try:
                if record.state is not UploadState.COMING:
                    return False
                start = partial.have if partial.version == record.version else 0
                async with self.store.threads[client]:
                    begun = asyncio.to_thread(partial.begin, start, record.version, record.size)
                    await to_its_end(begun)
                self.store.has(client, upload, start)
                await connection.write(pack(PutAnswer(start)))
                while partial.have < record.size:
                    data = await connection.read(min(_READ_BYTES, record.size - partial.have))
                    if not data:
                        raise SessionError("the client closed the connection within the upload")
                    await self.store.grow(client, upload, partial, data)
                digest = await connection.read_exactly(DIGEST_BYTES)
                if not partial.is_right(digest):
                    async with self.store.threads[client]:
                        await to_its_end(asyncio.to_thread(partial.discard))
                    self.store.has(client, upload, 0)
                    raise TransferError(
                        "the received file differs from the sent one; run the same command again"
                    )
                # Whatever becomes of the session: a body that has its name comes no more.
                await to_its_end(self._finish(client, upload, partial, digest))
            finally:
                partial.close()
        except TransferError as error:
            raise TransferError(str(error).replace(str(upload.path.parent) + "/", "")) from error
        finally:
            self._coming[client] -= 1
            if upload.bringer is connection:
                upload.bringer = None
        return True

    async def _finish(
        self, client: str, upload: KeptUpload, partial: Partial, digest: bytes
    ) -> None:
        async with self.store.threads[client]:
            await asyncio.to_thread(partial.finish, upload.record.heard_unix_s)
        upload.record.sha256 = digest.hex()
        await self._is_whole(client, upload)

    async def _is_whole(self, client: str, upload: KeptUpload) -> None:
        upload.record.state = UploadState.WHOLE
        try:
            await self.store.keep(client, upload)
        finally:
            self._send_later(client, upload)

    def _send_later(self, client: str, upload: KeptUpload) -> None:
        task = asyncio.get_running_loop().create_task(self._send(client, upload))
        self._sending.add(task)
        task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("sending an upload failed", exc_info=error)

    async def _send(self, client: str, upload: KeptUpload) -> None:
        record = upload.record
        with ExitStack() as taken:
            await self._slots[client].take(object_url(record.url), taken)
            try:
                if not self._admitted(client):
                    raise TransferError("this client is no longer invited")
                answer = await self._sender.send(record, upload.path, client)
            except TransferError as error:
                answer = failed(str(error))
            except Exception as error:
                _log.error("sending an upload failed", exc_info=error)
                answer = failed("the gateway failed; its owner's log says why")
        await to_its_end(self._is_answered(client, upload, answer))
        if answer.good:
            self._changed(client, object_url(record.url))

    async def _is_answered(self, client: str, upload: KeptUpload, answer: WebAnswer) -> None:
        record = upload.record
        record.answer, record.state, record.headers = answer, UploadState.ANSWERED, []
        try:
            try:
                await self.store.keep(client, upload)
            except TransferError:  # there is no room for the origin's words: its status is kept
                shorter = {"headers": [], "body": b"", "shortened": True}
                record.answer = msgspec.structs.replace(answer, **shorter)
                await self.store.keep(client, upload)
            if answer.good:  # a crash before the record would have it lost, and the origin has it
                self.store.forget_body(client, upload)
        except (TransferError, OSError) as error:
            _log.warning("what became of an upload cannot be kept", why=str(error))
        finally:
            upload.answered.set()

    async def _tidy(self) -> None:
        while True:
            await asyncio.sleep(_TIDIED_EVERY_S)
            await self.store.tidy(self.store.clock.now_s())
