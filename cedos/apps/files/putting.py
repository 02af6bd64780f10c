"""The sending end of a file: in as many pieces as networks make of it."""

import asyncio
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cedos.apps.files.getting import MOST_ANEW
from cedos.apps.files.messages import (
    PutAnswer,
    PutRequest,
    pack,
    path_text,
    read,
    unix_time,
)
from cedos.apps.files.partial import OpenFolder, disk_words
from cedos.apps.files.server_link import Progress, Sessions
from cedos.apps.files.tree import FileHash, Version, reader
from cedos.errors import TransferError
from cedos.kernel.own_file import to_its_end

if TYPE_CHECKING:
    from cedos.session.sockets.connection import Connection


class UploadBody:
    """The file of an upload, open until `close`. TransferError: the file cannot be read.

    `below`: the open folder that it is sent with. No link is followed from there on, not even one that
    another user has placed since the folder was listed.
    """

    def __init__(self, source: Path, below: OpenFolder | None = None) -> None:
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            if below is None:
                self._number = os.open(source, flags)
            else:
                folder = below.open_below(source)
                try:
                    self._number = os.open(source.name, flags | os.O_NOFOLLOW, dir_fd=folder)
                finally:
                    os.close(folder)
        except OSError as error:
            raise TransferError(disk_words(error)) from error
        status = os.fstat(self._number)
        if not stat.S_ISREG(status.st_mode):
            os.close(self._number)
            raise TransferError("is no plain file")
        self.version = Version.of(status)
        self.size = self.version.size

    def close(self) -> None:
        os.close(self._number)

    def reader(self, start: int) -> Callable[[int, int], bytes]:
        """Return a reader as `tree.reader` does."""
        return reader(self._number, start)

    async def digest(self) -> bytes:
        """Return SHA-256 of the whole, computed in a thread. TransferError: the file has changed."""
        hashing, digest = FileHash(self._number, self.size), None
        while digest is None:
            digest = await to_its_end(asyncio.to_thread(hashing.go_on, lambda: True))
        if Version.of(os.fstat(self._number)) != self.version:
            raise TransferError("changed while it was sent; run the same command again")
        return digest


_SHOWN_S: Final = 0.2
# What sessions send beside the file: set-ups on bad networks, for hours.
_SPARE_BYTES: Final = 10_000_000


class Putting:
    """An upload of one file; it fails after `patience_s` without a byte and without a session."""

    def __init__(self, body: UploadBody, path: str, link: Sessions, patience_s: float) -> None:
        self._body, self._path, self._link = body, path, link
        self._patience_s = patience_s
        self._begun = False
        self._sent_bytes = 0  # by earlier sessions
        self.progress = Progress(size_bytes=body.size)

    async def ask(self) -> None:
        """Reach the server, so that its networks are known. Errors: as of `run`."""
        await self._link.until_done(self._on_connection, self.progress, self._patience_s)

    async def run(self) -> None:
        """Upload until the server has the whole file under its name.

        TransferError: the server will not, or the file changed. SessionError: no server for too long;
        what has arrived is kept there.
        """
        await self._link.until_done(self._is_over, self.progress, self._patience_s)

    def close(self) -> None:
        self._body.close()

    @staticmethod
    async def _on_connection(_connection: "Connection") -> bool:
        return True

    async def _is_over(self, connection: "Connection") -> bool:
        body, progress = self._body, self.progress
        version = body.version
        # Ask from where on the server wants the file: an earlier session may have brought a part.
        asked = PutRequest(
            path_text(self._path),
            body.size,
            str(version),
            unix_time(version.modified_ns / 1e9),
        )
        await connection.write(pack(asked))
        start = (await self._answer(connection)).start
        if start > body.size:
            raise TransferError(f"the server wants byte {start} of {body.size}")
        if not self._begun:
            self._begun, progress.began_bytes = True, start
        progress.have_bytes, progress.state = start, ""
        # A server that refuses says so while bytes are under way.
        answering = asyncio.get_running_loop().create_task(self._answer(connection))
        sending = asyncio.get_running_loop().create_task(self._send(connection, start))
        # Progress is what the server has acknowledged, not what was written.
        first, sent_before = connection.written_bytes, _sent_by(connection) - self._sent_bytes
        try:
            while not answering.done():
                self._refuse_endless(_sent_by(connection) - sent_before)
                await asyncio.wait((answering,), timeout=_SHOWN_S)
                sent = max(connection.acknowledged_bytes - first, 0)
                progress.have_bytes = min(start + sent, body.size)
                if sending.done() and not answering.done():
                    sending.result()
            answering.result()
            await sending
            # The session reads the file until the server has its bytes, whatever the server said before.
            await connection.wait_acknowledged(connection.written_bytes)
        finally:
            answering.cancel()
            sending.cancel()
            await asyncio.gather(answering, sending, return_exceptions=True)
            self._sent_bytes = _sent_by(connection) - sent_before
        progress.have_bytes, progress.state = body.size, ""
        return True

    def _refuse_endless(self, sent_bytes: int) -> None:
        """Give up what was sent too often. TransferError.

        A server that acknowledges nothing, or who resets its connections on the way, could have that
        without end.
        """
        if sent_bytes > (1 + MOST_ANEW) * self._body.size + _SPARE_BYTES:
            raise TransferError(f"the file was sent {MOST_ANEW} times, and is not there")

    async def _answer(self, connection: "Connection") -> PutAnswer:
        answer: PutAnswer = await read(PutAnswer, connection.read_exactly)
        if answer.refused:
            raise TransferError(f"the server says: {answer.refused}")
        return answer

    async def _send(self, connection: "Connection", start: int) -> None:
        try:
            if length := self._body.size - start:
                await connection.write_source(self._body.reader(start), length)
            await connection.write(await self._body.digest())
        except OSError as error:
            raise TransferError(disk_words(error)) from error


def _sent_by(connection: "Connection") -> int:
    return sum(connection.sent_by_network().values())


async def put_folder(link: Sessions, path: str, patience_s: float) -> None:
    """Make a folder at the server, also one that stays empty. Errors: as of `Putting.run`."""

    async def over(connection: "Connection") -> bool:
        await connection.write(pack(PutRequest(path_text(path), 0, "", folder=True)))
        answer: PutAnswer = await read(PutAnswer, connection.read_exactly)
        if answer.refused:
            raise TransferError(f"the server says: {answer.refused}")
        return True

    await link.until_done(over, Progress(), patience_s)
