"""The serving end: one session is one file, read when it has to be sent, never held in memory."""

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import structlog

from cedos.errors import SessionError, TransferError
from cedos.files.messages import VERSION, Answer, Request, pack, read
from cedos.files.tree import Tree, Version
from cedos.session import keys
from cedos.session.protocol.crypto import host_id

if TYPE_CHECKING:
    from cedos.session.sockets.connection import Connection
    from cedos.session.sockets.listener import Listener

REQUEST_S: Final = 60.0

log = structlog.get_logger("cedos-serve")


class Serving:
    """Serves a tree to whoever the listener lets in; `served` files went out whole."""

    def __init__(self, tree: Tree, listener: "Listener", names: dict[bytes, str]) -> None:
        self._tree, self._listener, self._names = tree, listener, names
        self._tasks: set[asyncio.Task[None]] = set()
        self._sending: dict[tuple[bytes, str], list[Connection]] = {}
        self.served = 0

    async def run(self) -> None:
        while True:
            try:
                connection = await self._listener.accept()
            except SessionError:
                return
            task = asyncio.get_running_loop().create_task(self._serve(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Ends all sessions; clients go on with the next server at this place."""
        await self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, connection: "Connection") -> None:
        who = self._names.get(connection.peer_key) or host_id(connection.peer_key).hex()[:12]
        number = None
        path = ""
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(REQUEST_S):
                request = await read(Request, connection.read_exactly)
            path = request.path
            number = self._open(request)
            with self._only(connection, path):
                n_bytes = await self._send(connection, request, number)
            self.served += 1
            log.info("served", path=path, to=who, bytes=n_bytes, seconds=_since(began_s))
        except TransferError as error:
            log.info("refused", path=path, to=who, why=str(error))
            await _refuse(connection, str(error))
        except TimeoutError:
            connection.abort("no request came")
        except SessionError as error:
            log.info("broken off", path=path, to=who, seconds=_since(began_s), why=str(error))
        except asyncio.CancelledError:
            connection.abort("the server stops")
            raise
        finally:
            if number is not None:
                os.close(number)

    @contextmanager
    def _only(self, connection: "Connection", path: str) -> Iterator[None]:
        """Ends older sessions of this host for this file that have no network: their client is gone.

        A client that crashed would else be waited for until its deadline.
        """
        of = self._sending.setdefault((connection.peer_key, path), [])
        for other in list(of):
            if not other.paths():
                other.abort("the file was asked for again")
        of.append(connection)
        try:
            yield
        finally:
            of.remove(connection)
            if not of:
                self._sending.pop((connection.peer_key, path), None)

    def _open(self, request: Request) -> int:
        if request.protocol != VERSION:
            raise TransferError(f"this server speaks version {VERSION} of the file protocol")
        return self._tree.open(request.path)

    async def _send(self, connection: "Connection", request: Request, number: int) -> int:
        """Answer, bytes and digest; returns when the client has all of them."""
        status = os.fstat(number)
        version = Version.of(status)
        known = request.version == str(version) and request.have <= version.size
        start = request.have if known else 0
        answer = Answer(version.size, start, str(version), status.st_mtime)
        await connection.write(pack(answer))
        length = version.size - start
        if length:
            await connection.write_source(_reader(number, start), length)
        digest = await self._tree.digest(number, version)
        await connection.write(digest)
        connection.finish()
        await connection.close()
        return length


def _reader(number: int, start: int) -> Callable[[int, int], bytes]:
    def fetch(offset: int, count: int) -> bytes:
        data = os.pread(number, count, start + offset)
        # A file that became shorter meanwhile: the digest will tell.
        return data if len(data) == count else data.ljust(count, b"\0")

    return fetch


async def _refuse(connection: "Connection", why: str) -> None:
    try:
        await connection.write(pack(Answer(refused=why[:1000])))
        connection.finish()
        await connection.close()
    except SessionError:
        connection.abort("refused")


def _since(began_s: float) -> float:
    return round(time.monotonic() - began_s, 3)


def client_names(clients: dict[str, bytes]) -> dict[bytes, str]:
    """Keys of clients with their names, for the log.

    Raises:
        TransferError: one key has two names.
    """
    names: dict[bytes, str] = {}
    for name, key in clients.items():
        if key in names:
            raise TransferError(f"{names[key]} and {name} have one key, {keys.to_text(key)}")
        names[key] = name
    return names
