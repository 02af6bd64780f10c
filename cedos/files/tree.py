"""What is served: the regular files below one folder, and nothing outside of it."""

import asyncio
import hashlib
import os
import stat
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cedos.errors import TransferError

_DIGESTS_KEPT: Final = 1000
_HASHED_AT_ONCE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Version:
    """One state of one file: any change of content changes one of these."""

    inode: int
    size: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> "Version":
        return cls(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)

    def __str__(self) -> str:
        return f"{self.inode:x}-{self.size:x}-{self.modified_ns:x}-{self.changed_ns:x}"


class Tree:
    """A folder that is served.

    Raises:
        TransferError: it is not a folder.
    """

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise TransferError(f"{root} is not a folder that can be served")
        self.root = root.resolve()
        self._digests: OrderedDict[Version, bytes] = OrderedDict()

    def open(self, path: str) -> int:
        """A file descriptor of a file below the root, for reading; symbolic links are not followed.

        Raises:
            TransferError: there is no such file; the same words whatever is there instead.
        """
        missing = TransferError(f"there is no file {path!r}")
        parts = [part for part in path.split("/") if part not in {"", "."}]
        if not parts or ".." in parts or "\0" in path:
            raise missing
        # Folder by folder, so that no link can lead out, not even one that appears meanwhile.
        number = os.open(self.root, os.O_PATH | os.O_DIRECTORY)
        try:
            for part in parts[:-1]:
                flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW
                number = _replaced(number, os.open(part, flags, dir_fd=number))
            # A fifo must not make the server wait for a writer.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            number = _replaced(number, os.open(parts[-1], flags, dir_fd=number))
            if not stat.S_ISREG(os.fstat(number).st_mode):
                raise missing
        except OSError as error:
            os.close(number)
            raise missing from error
        except TransferError:
            os.close(number)
            raise
        return number

    async def digest(self, number: int, version: Version) -> bytes:
        """SHA-256 of a whole open file, computed beside the event loop, once per version."""
        digest = self._digests.get(version)
        if digest is None:
            digest = await asyncio.to_thread(_digest, number, version.size)
            if Version.of(os.fstat(number)) == version:
                self._digests[version] = digest
                if len(self._digests) > _DIGESTS_KEPT:
                    self._digests.popitem(last=False)
        return digest


def _replaced(old: int, new: int) -> int:
    os.close(old)
    return new


def _digest(number: int, size: int) -> bytes:
    digest = hashlib.sha256()
    buffer = bytearray(_HASHED_AT_ONCE)
    view = memoryview(buffer)
    offset = 0
    while offset < size:
        n_bytes = os.preadv(number, [view[: min(len(view), size - offset)]], offset)
        if not n_bytes:
            break
        digest.update(view[:n_bytes])
        offset += n_bytes
    return digest.digest()
