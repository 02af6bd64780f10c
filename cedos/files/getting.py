"""The fetching end: goes on after lost networks, lost servers, and its own crash."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from cedos.errors import SessionError, TransferError
from cedos.files.messages import (
    DIGEST_BYTES,
    Answer,
    Entry,
    FileRequest,
    Listing,
    ListRequest,
    decode,
    pack,
    read,
)
from cedos.files.progress import Progress
from cedos.files.server_link import ServerLink, Sessions
from cedos.files.target import Target

if TYPE_CHECKING:
    from cedos.session.sockets.connection import Connection

_READ_BYTES: Final = 1 << 18
_WRONG: Final = 2  # so many whole files with a wrong digest, then it is not an accident


class Getting:
    """One file from one server; given up after `patience_s` without one byte and without a session.

    `pause` is waited for behind each piece, for a limit of the rate, and gets its size.
    """

    def __init__(
        self,
        path: str,
        target: Target,
        link: Sessions,
        patience_s: float,
        pause: Callable[[int], Awaitable[None]] | None = None,
        read_bytes: int = _READ_BYTES,
    ) -> None:
        self._path, self._target, self._link = path, target, link
        self._patience_s = patience_s
        self._pause, self._read_bytes = pause, read_bytes
        self.progress = Progress(target.have, target.have)
        self._wrong = 0

    @property
    def told(self) -> dict[str, Any]:
        """For --json, beyond what its progress says."""
        return {}

    async def ask(self) -> None:
        """For its size alone; what is here of another version is given up. Errors: as of `run`."""
        await self._link.until_done(self._head, self.progress, self._patience_s)

    async def run(self) -> None:
        """Until the file is whole and right.

        Raises:
            TransferError: the server will not, the disk cannot, or what came is wrong again and again.
            SessionError: no server for too long; what has come is kept.
        """
        await self._link.until_done(self._over, self.progress, self._patience_s)

    async def _head(self, connection: "Connection") -> bool:
        await self._asked(connection, head=True)
        return True

    async def _asked(self, connection: "Connection", *, head: bool = False) -> Answer:
        target, progress = self._target, self.progress
        asked = FileRequest(self._path, target.have, target.version, head=head)
        await connection.write(pack(asked))
        answer: Answer = await read(Answer, connection.read_exactly)
        if answer.refused:
            # URLs are asked of gateways: the web's server may have said nothing at all.
            by_gateway = self._path.startswith(("http://", "https://"))
            who = "gateway" if by_gateway else "server"
            raise TransferError(f"the {who} says: {answer.refused}")
        if answer.start > answer.size:
            raise TransferError(f"the server sends from byte {answer.start} of {answer.size}")
        target.begin(answer.start, answer.version, answer.size)
        progress.size_bytes, progress.state = answer.size, ""
        progress.began_bytes = min(progress.began_bytes, target.have)
        progress.have_bytes = target.have
        return answer

    async def _over(self, connection: "Connection") -> bool:
        target, progress = self._target, self.progress
        answer = await self._asked(connection)
        while target.have < answer.size:
            data = await connection.read(min(self._read_bytes, answer.size - target.have))
            if not data:
                raise SessionError("the server ended in the middle of the file")
            written = target.write(data)
            if written is not None:
                await written
            progress.have_bytes = target.have
            if self._pause is not None:
                await self._pause(len(data))
        if not target.is_right(await connection.read_exactly(DIGEST_BYTES)):
            return self._not_right()
        target.finish(answer.modified_unix_s)
        return True

    def _not_right(self) -> bool:
        self._wrong += 1
        self._target.discard()
        self.progress.have_bytes = self.progress.began_bytes = 0
        if self._wrong >= _WRONG:
            raise TransferError(
                "what came is not what the server has, twice: the file changes while it is sent, or "
                "a disk is faulty"
            )
        self.progress.state = "what was here is not what the server has; all of it again"
        return False


async def entries(link: ServerLink, path: str, patience_s: float) -> list[Entry]:
    """What is in a folder of the server's, by name.

    Raises:
        TransferError: there is no such folder.
        SessionError: no server for too long.
    """
    found: list[Entry] = []

    async def over(connection: "Connection") -> bool:
        await connection.write(pack(ListRequest(path)))
        answer: Listing = await read(Listing, connection.read_exactly)
        if answer.refused:
            raise TransferError(f"the server says: {answer.refused}")
        found[:] = decode(await connection.read_exactly(answer.size), list[Entry])
        return True

    await link.until_done(over, Progress(), patience_s)
    return sorted(found, key=lambda each: each.name)
