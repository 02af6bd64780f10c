"""A session with a file server, made when it is needed and used for one file after the other."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from cedos.errors import SessionError, SessionRefusedError, TransferError

if TYPE_CHECKING:
    from cedos.session.sockets.connection import Connection


@dataclass(slots=True)
class Progress:
    """The progress of a file; `state` says what it waits for, empty while bytes come.

    `began_bytes`: what an earlier attempt of another program had brought.
    """

    began_bytes: int = 0
    have_bytes: int = 0
    size_bytes: int | None = None
    sessions: int = 0
    state: str = ""
    connection: "Connection | None" = None


_PAUSES_S: Final = (0.2, 0.5, 1.0, 2.0, 5.0)
_SAME: Final = 3
_GOODBYE_S: Final = 3.0


class Sessions(Protocol):
    """A provider of sessions with the server, such as `ServerLink`."""

    async def until_done(
        self, over: Callable[["Connection"], Awaitable[bool]], progress: Progress, patience_s: float
    ) -> None: ...


class ServerLink:
    """A session with the server; `connect` makes it, and the next one when it has ended."""

    def __init__(self, connect: Callable[[], Awaitable["Connection"]]) -> None:
        self._connect = connect
        self._connection: Connection | None = None
        self._gone = ""  # why there was no server, when it was given up

    async def until_done(
        self, over: Callable[["Connection"], Awaitable[bool]], progress: Progress, patience_s: float
    ) -> None:
        """Call `over` with one session, or with the next ones, until it returns True.

        `over` tells whether it is. Given up after `patience_s` without one byte and without a session,
        at once where the very first session cannot be had or the server was given up before, and after
        three sessions in a row that the server ends with the same words and without a byte.

        TransferError: one end will not, or a disk cannot, or the same answer came again and again.
        SessionError: no server for too long.
        """
        if self._gone:
            raise SessionError(self._gone)
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + patience_s
        failures, same, said = 0, 0, ""
        while True:
            had, sessions = progress.have_bytes, progress.sessions
            try:
                if await self._try_once(over, progress):
                    return
            except SessionRefusedError:
                raise
            except SessionError as error:
                if progress.have_bytes > had:
                    give_up_s = loop.time() + patience_s
                    failures, said = 0, ""
                elif progress.sessions > sessions:
                    # The server was there: the next session would hear the same.
                    same, said = same + 1 if str(error) == said else 1, str(error)
                    if same >= _SAME:
                        raise TransferError(f"{said}; the same {_SAME} times") from error
                if not progress.sessions or loop.time() >= give_up_s:
                    raise
                progress.state = str(error)
                await asyncio.sleep(_PAUSES_S[min(failures, len(_PAUSES_S) - 1)])
                failures += 1

    async def _try_once(
        self, over: Callable[["Connection"], Awaitable[bool]], progress: Progress
    ) -> bool:
        if self._connection is None:
            progress.state = progress.state or "no answer from the server yet"
            try:
                self._connection = await self._connect()
            except SessionError as error:
                self._gone = str(error)
                raise
            progress.state = self._gone = ""
        progress.sessions += 1
        progress.connection = connection = self._connection
        try:
            return await over(connection)
        except TransferError:
            await self.close()  # what it says next may be the rest of this
            raise
        except BaseException:
            self._connection = None
            connection.abort("given up")
            raise
        finally:
            progress.connection = None

    async def close(self) -> None:
        """Close the session; an error changes nothing any more."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            async with asyncio.timeout(_GOODBYE_S):
                connection.finish()
                await connection.close()
        except (SessionError, TimeoutError):
            connection.abort("goodbye")
