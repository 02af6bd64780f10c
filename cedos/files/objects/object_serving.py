"""Hands objects of the web on over a session's stream, as `cedos-serve` does with files."""

import asyncio
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from cedos.errors import SessionError, TransferError
from cedos.files.messages import (
    DIGEST_BYTES,
    VERSION,
    Answer,
    AnyRequest,
    FileRequest,
    Listing,
    ListRequest,
    PutAnswer,
    PutRequest,
    pack,
    read,
)
from cedos.files.objects.object_fetcher import ObjectFetcher
from cedos.files.objects.object_store import StoredObject
from cedos.files.tree import reader
from cedos.session.protocol.crypto import host_id
from cedos.session.sockets.connection import Connection

_log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger()

_GOODBYE_S: Final = 3.0
_AHEAD_BYTES: Final = 32 << 20
"""The most that the session may hold unacknowledged; it takes no memory."""


@dataclass(frozen=True, slots=True)
class _HandedOn:
    """An object that was handed to the session; its digest ends at `end` of the stream."""

    end: int
    number: int
    found: StoredObject


class UploadTaker(Protocol):
    """A receiver of uploads to web servers, such as `web_uploads.WebUploads`."""

    async def take(self, connection: Connection, client: str, request: PutRequest) -> None:
        """Take an upload. Errors: TransferError, it is refused; SessionError."""


class ObjectServing:
    """The gateway's end of a stream of requests; `admitted` tells whether the client is still served.

    Attributes:
        busy: something was asked for: the session cannot go on without this.
    """

    def __init__(
        self,
        connection: Connection,
        fetcher: ObjectFetcher,
        admitted: Callable[[], bool],
        uploads: UploadTaker | None = None,
    ) -> None:
        self._connection, self._fetcher, self._admitted = connection, fetcher, admitted
        self._uploads = uploads
        self._client = host_id(connection.peer_key).hex()[:32]
        self._handed_on: deque[_HandedOn] = deque()

    async def run(self) -> None:
        """Answer requests until the stream ends. SessionError: it broke."""
        connection = self._connection
        try:
            while begun := bytes(await connection.read(1)):
                try:
                    request: AnyRequest = await read(AnyRequest, connection.read_exactly, begun)
                except TransferError as error:
                    connection.abort(str(error))
                    return
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
                    await connection.write(pack(_refusal(request, why)))
                    if isinstance(request, PutRequest):
                        break  # what follows may be bytes of the file
            with suppress(TimeoutError):
                async with asyncio.timeout(_GOODBYE_S):
                    await connection.acknowledged(connection.written_bytes)
        finally:
            self._let_go()
            for each in self._handed_on:
                self._close(each)

    async def _answer(self, request: AnyRequest) -> None:
        if not self._admitted():
            raise TransferError("this client is not invited any more")
        if request.protocol != VERSION:
            raise TransferError(f"this gateway speaks version {VERSION} of the file protocol")
        if (
            isinstance(request, PutRequest)
            and request.web is not None
            and self._uploads is not None
        ):
            await self._uploads.take(self._connection, self._client, request)
            return
        if not isinstance(request, FileRequest):
            raise TransferError(
                "a gateway has neither folders nor room for files, but takes uploads to web servers"
            )
        found = await self._fetcher.find(self._client, request.path, request.version)
        if found.whole and not found.path.exists():  # a user deleted it
            self._fetcher.store.remove(self._client, found)
            found = await self._fetcher.find(self._client, request.path, request.version)
        found.users += 1
        try:
            size = await found.known_size()
            number = os.open(found.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            found.users -= 1
            raise TransferError(f"the gateway has lost it: {error.strerror}") from error
        except BaseException:
            found.users -= 1
            raise
        if request.head:  # the object stays until the client asks for it, while there is room
            os.close(number)
            found.users -= 1
            await self._connection.write(pack(_answer(request, found, size)))
            return
        # The file stays open until the client has acknowledged all of it.
        end = self._connection.written_bytes + (1 << 62)
        try:
            await self._hand_on(request, found, number, size)
            end = self._connection.written_bytes
        finally:
            self._handed_on.append(_HandedOn(end, number, found))

    async def _hand_on(
        self, request: FileRequest, found: StoredObject, number: int, size: int
    ) -> None:
        connection, record = self._connection, found.record
        answer = _answer(request, found, size)
        at = answer.start
        await connection.write(pack(answer))
        self._fetcher.store.used(found)
        try:
            while at < size:
                have = min(await found.beyond(at), size, at + _AHEAD_BYTES // 4)
                # Hand on what is here; the session reads the file when it sends.
                if have > at:
                    await connection.write_source(reader(number, at), have - at)
                    at = have
                    await connection.acknowledged(connection.written_bytes - _AHEAD_BYTES)
            await found.beyond(size)
        except TransferError as error:
            # The announced rest will not come: the client asks again, in another session.
            connection.abort(str(error))
            raise SessionError(str(error)) from error
        digest = bytes.fromhex(record.sha256)
        assert len(digest) == DIGEST_BYTES
        await connection.write(digest)

    def _let_go(self) -> None:
        """Release objects that the client has received; those that may not be reused are removed."""
        handed = self._handed_on
        while handed and handed[0].end <= self._connection.acknowledged_bytes:
            each = handed.popleft()
            self._close(each)
            if not each.found.record.reusable and not each.found.users:
                self._fetcher.store.remove(self._client, each.found)

    def _close(self, each: _HandedOn) -> None:
        os.close(each.number)
        each.found.users -= 1


def _answer(request: FileRequest, found: StoredObject, size: int) -> Answer:
    record = found.record
    known = request.version == record.version and request.have <= size
    return Answer(size, request.have if known else 0, record.version, record.modified_unix_s)


def _refusal(request: AnyRequest, why: str) -> Answer | Listing | PutAnswer:
    if isinstance(request, FileRequest):
        return Answer(refused=why[:1000])
    return Listing(refused=why[:1000]) if isinstance(request, ListRequest) else PutAnswer(
        refused=why[:1000]
    )  # fmt: skip
