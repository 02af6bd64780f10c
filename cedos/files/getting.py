"""The fetching end: goes on after lost networks, lost servers, and its own crash."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cedos.errors import SessionError, SessionRefusedError, TransferError
from cedos.files.messages import DIGEST_BYTES, Answer, Request, pack, read
from cedos.files.partial import Partial

if TYPE_CHECKING:
    from cedos.session.sockets.connection import Connection

_PAUSES_S: Final = (0.2, 0.5, 1.0, 2.0, 5.0)
_READ_BYTES: Final = 1 << 18
_GOODBYE_S: Final = 3.0
_WRONG: Final = 2  # so many whole files with a wrong digest, then it is not an accident


@dataclass(slots=True)
class Progress:
    """How far it is; `state` says what is waited for, empty while bytes come.

    `began_bytes`: what an earlier attempt of another program had brought.
    """

    began_bytes: int = 0
    have_bytes: int = 0
    size_bytes: int | None = None
    sessions: int = 0
    state: str = ""
    connection: "Connection | None" = None


class Getting:
    """One file from one server; given up after `patience_s` without one byte and without a session.

    `connect` makes a session with the server; it is asked again when one has ended.
    """

    def __init__(
        self,
        path: str,
        partial: Partial,
        connect: Callable[[], Awaitable["Connection"]],
        patience_s: float,
    ) -> None:
        self._path, self._partial, self._connect = path, partial, connect
        self._patience_s = patience_s
        self.progress = Progress(partial.have, partial.have)
        self._wrong = 0
        self._failures = 0

    async def run(self) -> None:
        """Until the file is whole and right.

        Raises:
            TransferError: the server will not, the disk cannot, or what came is wrong again and again.
            SessionError: no server for too long; what has come is kept.
        """
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + self._patience_s
        while True:
            had = self.progress.have_bytes
            try:
                if await self._session():
                    return
            except SessionRefusedError:
                raise
            except SessionError as error:
                if self.progress.have_bytes > had:
                    give_up_s = loop.time() + self._patience_s
                    self._failures = 0
                if not self.progress.sessions or loop.time() >= give_up_s:
                    raise
                pause_s = _PAUSES_S[min(self._failures, len(_PAUSES_S) - 1)]
                self._failures += 1
                self.progress.state = str(error)
                await asyncio.sleep(pause_s)

    async def _session(self) -> bool:
        """One session; whether the file is whole afterwards."""
        connection = await self._connect()
        self.progress.sessions += 1
        self.progress.connection = connection
        try:
            whole = await self._over(connection)
        except TransferError:
            await _closed(connection)
            raise
        except BaseException:
            connection.abort("given up")
            raise
        finally:
            self.progress.connection = None
        await _closed(connection)
        return whole

    async def _over(self, connection: "Connection") -> bool:
        partial, progress = self._partial, self.progress
        asked = Request(self._path, partial.have, partial.version)
        await connection.write(pack(asked))
        connection.finish()
        answer = await read(Answer, connection.read_exactly)
        if answer.refused:
            raise TransferError(f"the server says: {answer.refused}")
        if answer.start > answer.size:
            raise TransferError(f"the server sends from byte {answer.start} of {answer.size}")
        partial.begin(answer.start, answer.version, answer.size)
        progress.size_bytes, progress.state = answer.size, ""
        progress.began_bytes = min(progress.began_bytes, partial.have)
        progress.have_bytes = partial.have
        while partial.have < answer.size:
            data = await connection.read(min(_READ_BYTES, answer.size - partial.have))
            if not data:
                raise SessionError("the server ended in the middle of the file")
            partial.write(data)
            progress.have_bytes = partial.have
        if not partial.is_right(await connection.read_exactly(DIGEST_BYTES)):
            return self._not_right()
        partial.finish(answer.modified_unix_s)
        return True

    def _not_right(self) -> bool:
        self._wrong += 1
        self._partial.discard()
        self.progress.have_bytes = self.progress.began_bytes = 0
        if self._wrong >= _WRONG:
            raise TransferError(
                "what came is not what the server has, twice: the file changes while it is sent, or "
                "a disk is faulty"
            )
        self.progress.state = "what was here is not what the server has; all of it again"
        return False


async def _closed(connection: "Connection") -> None:
    """Says goodbye, if there is still somebody: nothing depends on it any more."""
    try:
        async with asyncio.timeout(_GOODBYE_S):
            await connection.close()
    except (SessionError, TimeoutError):
        connection.abort("goodbye")
