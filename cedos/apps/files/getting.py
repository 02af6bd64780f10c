"""The receiving end of a file: it survives lost networks, lost servers and its own crash."""

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from cedos.apps.files.messages import (
    DIGEST_BYTES,
    Answer,
    Entries,
    Entry,
    FileRequest,
    Listing,
    ListRequest,
    decode,
    pack,
    path_of,
    path_text,
    read,
)
from cedos.apps.files.server_link import Progress, ServerLink, Sessions
from cedos.errors import SessionError, TransferError

if TYPE_CHECKING:
    from cedos.session.sockets.connection import Connection


class Target(Protocol):
    """A destination of received bytes: a part on the disk, or a pipe.

    `have` bytes of `version` are here; the errors of all are TransferErrors.
    """

    @property
    def have(self) -> int: ...

    @property
    def version(self) -> str: ...

    def begin(self, start: int, version: str, size: int) -> None: ...

    def write(self, data: Any) -> Awaitable[None] | None:
        """Take the next bytes; the caller awaits the result."""

    def is_right(self, digest: bytes) -> bool: ...

    def discard(self) -> None:
        """Drop the received bytes: the server has others."""

    def finish(self, modified_unix_s: float) -> None: ...


_READ_BYTES: Final = 1 << 18
MOST_ANEW: Final = 10  # a server that drops what has come could have it sent without end
# What comes beside a file: set-ups on bad networks, for hours.
_SPARE_BYTES: Final = 10_000_000
_LOOK_S: Final = 0.5
_WRONG: Final = 2  # so many whole files with a wrong digest, then it is not an accident


class Getting:
    """A download of one file; it fails after `patience_s` without a byte and without a session."""

    def __init__(
        self,
        path: str,
        target: Target,
        link: Sessions,
        patience_s: float,
        read_bytes: int = _READ_BYTES,
    ) -> None:
        self._path, self._target, self._link = path, target, link
        self._patience_s = patience_s
        self._read_bytes = read_bytes
        self.progress = Progress(target.have, target.have)
        self._wrong = self._anew = 0
        self._received_bytes = 0  # by earlier sessions

    async def ask(self) -> None:
        """Ask for the size alone, and drop received bytes of another version. Errors: as of `run`."""
        await self._link.until_done(self._head, self.progress, self._patience_s)

    async def run(self) -> None:
        """Download until the file is whole and its digest is right.

        TransferError: the server will not, the disk cannot, or what came is wrong again and again.
        SessionError: no server for too long; what has come is kept.
        """
        await self._link.until_done(self._is_over, self.progress, self._patience_s)

    async def _head(self, connection: "Connection") -> bool:
        await self._ask(connection, head=True)
        return True

    async def _ask(self, connection: "Connection", *, head: bool = False) -> Answer:
        target, progress = self._target, self.progress
        asked = FileRequest(path_text(self._path), target.have, target.version, head=head)
        await connection.write(pack(asked))
        answer: Answer = await read(Answer, connection.read_exactly)
        if answer.refused:
            # URLs are asked of gateways: the web's server may have said nothing at all.
            by_gateway = self._path.startswith(("http://", "https://"))
            who = "gateway" if by_gateway else "server"
            raise TransferError(f"the {who} says: {answer.refused}")
        if answer.start > answer.size:
            raise TransferError(f"the server sends from byte {answer.start} of {answer.size}")
        self._anew += target.have > answer.start
        if self._anew > MOST_ANEW:
            raise TransferError(
                f"the server began it anew {MOST_ANEW} times: it changes while it is sent, or it breaks "
                "off and cannot be continued"
            )
        target.begin(answer.start, answer.version, answer.size)
        progress.size_bytes, progress.state = answer.size, ""
        progress.began_bytes = min(progress.began_bytes, target.have)
        progress.have_bytes = target.have
        return answer

    async def _is_over(self, connection: "Connection") -> bool:
        """Give up a server that sends without end what is not of the file. Errors: as of `run`."""
        before = _received_by(connection) - self._received_bytes
        getting = asyncio.get_running_loop().create_task(self._get(connection))
        try:
            while not getting.done():
                self._received_bytes = _received_by(connection) - before
                most = (1 + MOST_ANEW) * (self.progress.size_bytes or 0) + _SPARE_BYTES
                if self._received_bytes > most:
                    raise TransferError(f"{MOST_ANEW} times the file came, and it is not whole")
                await asyncio.wait({getting}, timeout=_LOOK_S)
            return getting.result()
        finally:
            getting.cancel()
            await asyncio.gather(getting, return_exceptions=True)
            self._received_bytes = _received_by(connection) - before

    async def _get(self, connection: "Connection") -> bool:
        target, progress = self._target, self.progress
        # The server answers with the offset that it sends from, the bytes, and their digest.
        answer = await self._ask(connection)
        while target.have < answer.size:
            data = await connection.read(min(self._read_bytes, answer.size - target.have))
            if not data:
                raise SessionError("the server closed the connection within the file")
            written = target.write(data)
            if written is not None:
                await written
            progress.have_bytes = target.have
        # A part of an older version, or a faulty disk, is found here.
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
                "the received file differed from the server's twice: the file changes while it is sent, "
                "or a disk is faulty"
            )
        self.progress.state = "what was here is not what the server has; all of it again"
        return False


def _received_by(connection: "Connection") -> int:
    return sum(connection.received_by_network().values())


async def entries(link: ServerLink, path: str, patience_s: float) -> list[Entry]:
    """Return what is in a folder of the server, by name.

    TransferError: there is no such folder. SessionError: no server for too long.
    """
    found: list[Entry] = []

    async def over(connection: "Connection") -> bool:
        await connection.write(pack(ListRequest(path_text(path))))
        answer: Listing = await read(Listing, connection.read_exactly)
        if answer.refused:
            raise TransferError(f"the server says: {answer.refused}")
        found[:] = decode(await connection.read_exactly(answer.size), Entries)
        return True

    await link.until_done(over, Progress(), patience_s)
    named = (msgspec.structs.replace(each, name=path_of(each.name)) for each in found)
    return sorted(named, key=lambda each: each.name)
