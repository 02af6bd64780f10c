"""Hands objects of the web on over a session's stream, as `cedos-serve` does with files."""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Final

from cedos.apps.files.messages import (
    DIGEST_BYTES,
    VERSION,
    Answer,
    FileRequest,
    pack,
    read,
)
from cedos.apps.files.objects.object_fetcher import ObjectFetcher
from cedos.apps.files.objects.stored_object import OpenObject, StoredObject
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
                    await connection.wait_acknowledged(connection.written_bytes)
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
            await self._connection.wait_acknowledged(self._handed_on[0].end)
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
                have = min(await found.wait_beyond(at), size, at + _AHEAD_BYTES // 4)
                # Hand on what is here; the session reads the file when it sends.
                if have > at:
                    await connection.write_source(reader(opened.number, at), have - at)
                    at = have
                    await connection.wait_acknowledged(connection.written_bytes - _AHEAD_BYTES)
            await found.wait_beyond(size)
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
