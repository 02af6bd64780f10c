"""The served tree: the regular files below one folder, and nothing outside of it."""

import asyncio
import hashlib
import os
import stat
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cedos.apps.files.messages import MOST_ENTRIES, Entry, path_of, path_text, unix_time
from cedos.apps.files.partial import (
    HASHED_AT_ONCE,
    PART_NAME,
    OpenFolder,
    disk_words,
    folder_below,
)
from cedos.errors import TransferError
from cedos.kernel.own_file import to_its_end

_DIGESTS_KEPT: Final = 1000
_READ_AT_ONCE: Final = 1 << 20
_LISTED_AT_ONCE: Final = 1_000
# After so long what was changed is on the disk in any case: the kernel waits for half a minute.
_LATELY_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Version:
    """The version of a file: any change of its content changes one of these."""

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
    """A folder that is served. TransferError: it is not a folder."""

    def __init__(self, root: Path) -> None:
        try:
            # Opened once: its path may lead elsewhere later.
            self._root = OpenFolder.of(root).number
        except OSError as error:
            why = disk_words(error)
            raise TransferError(f"{root} is not a folder that can be served: {why}") from error
        self.root = Path(f"/proc/self/fd/{self._root}").readlink()
        self._digests: OrderedDict[Version, bytes] = OrderedDict()

    @staticmethod
    def parts(path: str) -> list[str] | None:
        """Return the names, from the root on, that a message has; None: empty, leads out, no path."""
        try:
            parts = [part for part in path_of(path).split("/") if part not in {"", "."}]
        except ValueError:
            return None
        return None if not parts or ".." in parts else parts

    def open(self, path: str) -> int:
        """Open a file below the root for reading; symbolic links are not followed.

        TransferError: there is no such file; the same words whatever is there instead, but for a
        folder, which may be listed anyway.
        """
        missing = TransferError(f"there is no file {path!r}")
        parts = self.parts(path)
        if parts is None:
            raise missing
        try:
            folder = self.folder(parts[:-1])
        except TransferError as error:
            raise missing from error
        try:
            if _is_half(parts[-1], folder):
                raise missing
            # A fifo must not make the server wait for a writer.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            number = os.open(parts[-1], flags, dir_fd=folder)
        except OSError as error:
            raise missing from error
        finally:
            os.close(folder)
        mode = os.fstat(number).st_mode
        if not stat.S_ISREG(mode):
            os.close(number)
            if stat.S_ISDIR(mode):
                raise TransferError(
                    f"{missing}, but a folder: with -r it comes whole, {path}/ shows what is in it"
                )
            raise missing
        return number

    def folder(self, parts: list[str], *, make: bool = False) -> int:
        """Open a folder below the root; `make` creates a missing one.

        TransferError: there is no such folder, or it cannot be made.
        """
        try:
            return folder_below(self._root, parts, make=make)
        except OSError as error:
            raise TransferError(f"there is no folder {'/'.join(parts)!r}") from error

    async def entries(self, path: str) -> list[Entry]:
        """Return what is in a folder, without parts, by threads that turn to others' work meanwhile.

        TransferError: there is no such folder, or it holds too many of them.
        """
        pieces, found = self.pieces(path), list[Entry]()
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            found += piece
        return found

    def pieces(self, path: str) -> Iterator[list[Entry]]:
        """Yield what is in a folder, without parts, some entries at a time. Errors: as of `entries`."""
        parts = [] if path.strip("/.") == "" and ".." not in path else self.parts(path)
        if parts is None:
            raise TransferError(f"there is no folder {path!r}")
        number = self.folder(parts)
        found: list[Entry] = []
        count = 0
        try:
            for looked, each in enumerate(list_entries(number), 1):
                entry = _entry(each) if each else None
                if entry is not None:
                    if count >= MOST_ENTRIES:
                        raise TransferError(f"{path!r} holds more than {MOST_ENTRIES} files")
                    found.append(entry)
                    count += 1
                if looked % _LISTED_AT_ONCE == 0:
                    yield found
                    found = []
        except OSError as error:
            raise TransferError(f"there is no folder {path!r}") from error
        finally:
            os.close(number)
        yield found

    async def digest(
        self, hashing: "FileHash", version: Version, wanted: Callable[[], bool]
    ) -> bytes | None:
        """Return SHA-256 of a whole open file, computed in a thread, once per version.

        None: as of `FileHash.go_on`. Another call may have the digest of another's work.
        """
        digest = self._digests.get(version)
        if digest is None:
            digest = await to_its_end(asyncio.to_thread(hashing.go_on, wanted))
            if digest is not None and Version.of(os.fstat(hashing.number)) != version:
                return hashing.digest_if_changed(digest)
            if digest is not None:
                self._digests[version] = digest
                if len(self._digests) > _DIGESTS_KEPT:
                    self._digests.popitem(last=False)
        return digest


def list_entries(folder: int) -> "Iterator[os.DirEntry[str] | None]":
    """Yield what a list of an open folder has; None for a half, which it has not. Errors: OSError."""
    with os.scandir(f"/proc/self/fd/{folder}") as found:
        each: os.DirEntry[str]
        for each in found:
            yield None if _is_half(each.name, folder) else each


def _is_half(name: str, folder: int) -> bool:
    """Return True for a part beside its note, and for a note; other such names are the user's."""
    named = PART_NAME.fullmatch(name)
    if named is None or named["note"]:
        return named is not None
    return os.access(f"{name}.json", os.F_OK, dir_fd=folder, follow_symlinks=False)


def _entry(each: "os.DirEntry[str]") -> Entry | None:
    """Return an entry; None: it has just been removed."""
    try:
        status = each.stat(follow_symlinks=False)
    except OSError:
        return None
    name, when_s = path_text(each.name), unix_time(status.st_mtime)
    if stat.S_ISREG(status.st_mode):
        return Entry(name, "file", status.st_size, when_s)
    if stat.S_ISDIR(status.st_mode):
        return Entry(name, "folder", 0, when_s)
    return Entry(name, "link" if stat.S_ISLNK(status.st_mode) else "other", 0, when_s)


def reader(number: int, start: int) -> Callable[[int, int], bytes]:
    """Return a function that reads an open file from `start` on; a session calls it when it sends."""

    def fetch(offset: int, count: int) -> bytes:
        data = os.pread(number, count, start + offset)
        # A file that became shorter meanwhile: the digest will tell.
        return data if len(data) == count else data.ljust(count, b"\0")

    return fetch


class FileHash:
    """SHA-256 of the first `size` bytes of an open file, a piece at a time: threads are few."""

    def __init__(self, number: int, size: int) -> None:
        self.number, self._size, self._offset = number, size, 0
        self._digest = hashlib.sha256()
        self._before: bytes | None = None  # by an earlier pass

    def go_on(self, wanted: Callable[[], bool]) -> bytes | None:
        """Return the digest; None: there is more, and a later call goes on, or it is not wanted."""
        if not self._offset and time.time() - os.fstat(self.number).st_ctime < _LATELY_S:
            # What programs change in memory (`mmap`) next has a time only once this is on the disk.
            with suppress(OSError):
                os.fdatasync(self.number)
        view = memoryview(bytearray(_READ_AT_ONCE))
        end = self._offset + HASHED_AT_ONCE
        while self._offset < self._size:
            if self._offset >= end or not wanted():
                return None
            left = self._size - self._offset
            n_bytes = os.preadv(self.number, [view[: min(len(view), left)]], self._offset)
            if not n_bytes:
                break
            self._digest.update(view[:n_bytes])
            self._offset += n_bytes
        return self._digest.digest()

    def digest_if_changed(self, digest: bytes) -> bytes | None:
        """Return the digest of a file that has changed, or no file's; None: it is to be hashed again.

        What was hashed may be of two versions, and so may what is sent. What two passes agree on was
        there between them.
        """
        if self._before is not None:
            return digest if digest == self._before else bytes(len(digest))
        self._before, self._offset, self._digest = digest, 0, hashlib.sha256()
        return None
