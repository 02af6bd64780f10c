"""Takes uploads of clients in pieces, and sends each to its origin in one go, once it is whole."""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec
import structlog
from yarl import URL

from cedos.apps.files.messages import (
    DIGEST_BYTES,
    PutAnswer,
    PutRequest,
    WebAnswer,
    WebUpload,
    pack,
)
from cedos.apps.files.objects.object_fetcher import object_url
from cedos.apps.files.partial import when_free
from cedos.apps.files.tree import digest_of
from cedos.apps.files.web_uploads.upload_sender import UploadSender, failed
from cedos.apps.files.web_uploads.upload_store import (
    KeptUpload,
    UploadRecord,
    UploadState,
    UploadStore,
)
from cedos.errors import SessionError, TransferError

if TYPE_CHECKING:
    from cedos.session.sockets.connection import Connection

_READ_BYTES: Final = 1 << 18
_AT_ONCE: Final = 8  # of one client, from it and to origins
_TIDIED_EVERY_S: Final = 60.0
_LAST_S: Final = 2.0

_log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger()


class WebUploads:
    """`begin`, then `take` for each that a client brings; `close` at the end.

    Args:
        changed: hears of URLs of a client that an origin was told to change.
    """

    def __init__(
        self, store: UploadStore, sender: UploadSender, changed: Callable[[str, URL], None]
    ) -> None:
        self.store, self._sender, self._changed = store, sender, changed
        self._sending: set[asyncio.Task[None]] = set()
        self._slots: dict[str, asyncio.Semaphore] = {}
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
        upload = self._known(client, request, web)
        upload.record.heard_unix_s, upload.record.keep_s = time.time(), web.keep_s
        try:
            if upload.record.state is UploadState.COMING:
                await self._bring(connection, client, upload)
            else:
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
            self.store.write(client, upload)

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
            # A PUT that may have arrived is sent again: it is idempotent (RFC 9110, 9.2.2).
            if record.state is UploadState.WHOLE:
                self._send_later(client, each)

    def _known(self, client: str, request: PutRequest, web: WebUpload) -> KeptUpload:
        """Return the upload that this request continues, or a new one."""
        found = self.store.find(client, web.id)
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
                record.state = UploadState.WHOLE
                found.answered.clear()
                self.store.write(client, found)
                self._send_later(client, found)
                return found
            self.store.remove(client, found)
        return self.store.create(
            client,
            UploadRecord(
                web.id, request.path, list(web.headers), request.size, request.version,
                web.keep_s, time.time(),
            ),
        )  # fmt: skip

    async def _bring(self, connection: "Connection", client: str, upload: KeptUpload) -> None:
        """Receive the body from where an earlier session ended."""
        record = upload.record
        # A newer session takes the upload over: the older one's client is gone.
        if upload.bringer is not None:
            upload.bringer.abort("the same upload goes on in another session")
        elif self._coming[client] >= _AT_ONCE:
            raise TransferError(f"{_AT_ONCE} uploads at once are the most here; try again later")
        upload.bringer = connection
        self._coming[client] += 1
        try:
            partial = await when_free(upload.path, record.version)
            try:
                start = partial.have if partial.version == record.version else 0
                partial.begin(start, record.version, record.size)
                await connection.write(pack(PutAnswer(start)))
                while partial.have < record.size:
                    data = await connection.read(min(_READ_BYTES, record.size - partial.have))
                    if not data:
                        raise SessionError("the client closed the connection within the upload")
                    partial.write(data)
                digest = await connection.read_exactly(DIGEST_BYTES)
                if not partial.is_right(digest):
                    partial.discard()
                    raise TransferError(
                        "the received file differs from the sent one; run the same command again"
                    )
                await asyncio.to_thread(partial.finish, record.heard_unix_s)
            finally:
                partial.close()
        except TransferError as error:
            raise TransferError(str(error).replace(str(upload.path.parent) + "/", "")) from error
        finally:
            self._coming[client] -= 1
            if upload.bringer is connection:
                upload.bringer = None
        record.state, record.sha256 = UploadState.WHOLE, digest.hex()
        self.store.write(client, upload)
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

        slot = self._slots.setdefault(client, asyncio.Semaphore(_AT_ONCE))
        async with slot:
            try:
                answer = await self._sender.send(record, upload.path, client)
            except TransferError as error:
                answer = failed(str(error))
            except Exception as error:
                _log.error("sending an upload failed", exc_info=error)
                answer = failed("the gateway failed; its owner's log says why")
        self._is_answered(client, upload, answer)
        if answer.good:
            self._changed(client, object_url(record.url))

    def _is_answered(self, client: str, upload: KeptUpload, answer: WebAnswer) -> None:
        record = upload.record
        record.answer, record.state, record.headers = answer, UploadState.ANSWERED, []
        try:
            if answer.good:
                self.store.forget_body(upload)
            try:
                self.store.write(client, upload)
            except TransferError:  # there is no room for the origin's words: its status is kept
                shorter = {"headers": [], "body": b"", "shortened": True}
                record.answer = msgspec.structs.replace(answer, **shorter)
                self.store.write(client, upload)
        except (TransferError, OSError) as error:
            _log.warning("what became of an upload cannot be kept", why=str(error))
        finally:
            upload.answered.set()

    async def _tidy(self) -> None:
        while True:
            await asyncio.sleep(_TIDIED_EVERY_S)
            try:
                self.store.tidy(self.store.clock.now_s())
            except OSError as error:
                _log.warning("cannot tidy up uploads", why=os.strerror(error.errno or 0))
