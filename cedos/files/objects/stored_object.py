"""One object on the disk, from its first byte on: written by who fetches it, read by who hands it on."""

import asyncio
import fcntl
import hashlib
import os
from pathlib import Path
from typing import Final

from cedos.errors import TransferError
from cedos.files.objects.object_record import ObjectRecord
from cedos.kernel import own_file

_ENOUGH: Final = 1 << 18


class StoredObject:
    """`have` bytes are here; `whole`: all of it; `failed`: why the rest will never be.

    Attributes:
        users: who hand it on now: it is not removed.
    """

    def __init__(self, path: Path, record: ObjectRecord, *, whole: bool = False) -> None:
        self.path, self.record = path, record
        self.whole, self.failed = whole, ""
        self.have = record.size or 0 if whole else 0
        self.users = 0
        self._digest = hashlib.sha256()
        self._number = -1 if whole else own_file.create(path)
        self._grown = asyncio.Event()

    def reserve(self) -> None:
        """Takes its room on the disk now, where its size is known. OSError: there is none."""
        if self.record.size:
            # (Else what is written would come behind that room.)
            flags = fcntl.fcntl(self._number, fcntl.F_GETFL)
            fcntl.fcntl(self._number, fcntl.F_SETFL, flags & ~os.O_APPEND)
            os.posix_fallocate(self._number, 0, self.record.size)

    def write(self, data: bytes) -> None:
        """The next bytes. OSError: the disk is full, say."""
        self._digest.update(data)
        view = memoryview(data)
        while view:
            count = os.write(self._number, view)
            view = view[count:]
            self.have += count
        self._tell()

    async def finish(self) -> None:
        """Nothing follows. OSError: it is not on the disk."""
        await asyncio.to_thread(os.fdatasync, self._number)
        self.record.size, self.record.sha256 = self.have, self._digest.hexdigest()
        self.whole = True
        self._close()

    def fail(self, why: str) -> None:
        if not self.whole:
            self.failed = why
            self._close()

    async def known_size(self) -> int:
        """How large it is, once that is known. TransferError: it failed."""
        while self.record.size is None:
            self._check()
            await self._grown.wait()
        self._check()
        return self.record.size

    async def beyond(self, offset: int, least: int = _ENOUGH) -> int:
        """How much is here, once that is so much more than up to `offset`, or all. TransferError."""
        while not self.whole and self.have < offset + least:
            self._check()
            await self._grown.wait()
        return self.have

    def _check(self) -> None:
        if self.failed:
            raise TransferError(self.failed)

    def _tell(self) -> None:
        self._grown.set()
        self._grown = asyncio.Event()

    def _close(self) -> None:
        if self._number >= 0:
            os.close(self._number)
            self._number = -1
        self._tell()
