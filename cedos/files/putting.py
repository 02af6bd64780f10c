"""The sending end: a file for a server that takes files, in as many pieces as networks make of it."""

import asyncio
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cedos.errors import TransferError
from cedos.files.messages import PutAnswer, PutRequest, pack, read
from cedos.files.progress import Progress
from cedos.files.server_link import Sessions
from cedos.files.tree import Version, digest_of, reader

if TYPE_CHECKING:
    from cedos.session.sockets.connection import Connection

_SHOWN_S: Final = 0.2


class Putting:
    """One file to one server; given up after `patience_s` without one byte and without a session.

    Raises:
        TransferError: the file cannot be read.
    """

    def __init__(self, source: Path, path: str, link: Sessions, patience_s: float) -> None:
        self._path, self._link = path, link
        self._patience_s = patience_s
        self._begun = False
        try:
            self._number = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise TransferError(str(error.strerror)) from error
        status = os.fstat(self._number)
        if not stat.S_ISREG(status.st_mode):
            os.close(self._number)
            raise TransferError("is no plain file")
        self._version = Version.of(status)
        self.progress = Progress(size_bytes=self._version.size)

    async def ask(self) -> None:
        """Whether there is a server; over which networks is known from then on. Errors: as of `run`."""
        await self._link.until_done(self._reached, self.progress, self._patience_s)

    async def run(self) -> None:
        """Until the server has the whole file under its name.

        Raises:
            TransferError: the server will not, or the file changed.
            SessionError: no server for too long; what has arrived is kept there.
        """
        await self._link.until_done(self._over, self.progress, self._patience_s)

    def close(self) -> None:
        os.close(self._number)

    @staticmethod
    async def _reached(_connection: "Connection") -> bool:
        return True

    async def _over(self, connection: "Connection") -> bool:
        version, progress = self._version, self.progress
        modified_unix_s = version.modified_ns / 1e9
        asked = PutRequest(self._path, version.size, str(version), modified_unix_s)
        await connection.write(pack(asked))
        start = await self._answer(connection)
        if start > version.size:
            raise TransferError(f"the server wants byte {start} of {version.size}")
        if not self._begun:
            self._begun, progress.began_bytes = True, start
        progress.have_bytes, progress.state = start, ""
        # A server that refuses says so while bytes are under way.
        answering = asyncio.get_running_loop().create_task(self._answer(connection))
        sending = asyncio.get_running_loop().create_task(self._send(connection, start))
        first = connection.written_bytes
        try:
            while not answering.done():
                await asyncio.wait((answering,), timeout=_SHOWN_S)
                sent = max(connection.acknowledged_bytes - first, 0)
                progress.have_bytes = min(start + sent, version.size)
                if sending.done() and not answering.done():
                    sending.result()
            answering.result()
            await sending
        finally:
            answering.cancel()
            sending.cancel()
            await asyncio.gather(answering, sending, return_exceptions=True)
        progress.have_bytes = version.size
        return True

    async def _answer(self, connection: "Connection") -> int:
        answer: PutAnswer = await read(PutAnswer, connection.read_exactly)
        if answer.refused:
            raise TransferError(f"the server says: {answer.refused}")
        return answer.start

    async def _send(self, connection: "Connection", start: int) -> None:
        length = self._version.size - start
        if length:
            await connection.write_source(reader(self._number, start), length)
        digest = await asyncio.to_thread(digest_of, self._number, self._version.size)
        if Version.of(os.fstat(self._number)) != self._version:
            raise TransferError("changed while it was sent; the same command tries anew")
        await connection.write(digest)
