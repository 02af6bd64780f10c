"""A file that is not whole yet: a part, and a note with its version.

Only whole files appear under their name. After a crash the next attempt continues the part. The digest
finds a part of an older version, or one whose end was never written to the disk. A web server tells none:
of its parts only what was on the disk for sure is continued after a boot.

A part's name has the beginning of the file's name and a hash of all of it: it fits wherever the file's
name does, and nothing else of the user has it.
"""

import asyncio
import errno
import fcntl
import hashlib
import os
import re
import stat
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, Self

import msgspec
from msgspec import structs

from cedos.apps.files.messages import text_of
from cedos.errors import DiskError, TransferBusyError, TransferError
from cedos.kernel import own_file

_LONGEST: Final = 1 << 20
_FLAGS: Final = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_Bytes = Annotated[int, msgspec.Meta(ge=0)]

# The names of partial files and of their notes.
PART_NAME: Final = re.compile(r".*\.[0-9a-f]{16}\.part(?P<note>\.json(\.new)?)?", re.DOTALL)

_SHOWN_BYTES: Final = 60  # eCryptfs takes 143 bytes in all


def files_of(target: Path) -> tuple[Path, Path, Path]:
    """Return the paths of a file's part, of the part's note, and of the note's draft."""
    name = os.fsencode(target.name)
    shown = name[:_SHOWN_BYTES].decode(errors="ignore")
    part = f"{shown}.{hashlib.sha256(name).hexdigest()[:16]}.part"
    return (
        target.with_name(part),
        target.with_name(f"{part}.json"),
        target.with_name(f"{part}.json.new"),
    )


class PartOf(msgspec.Struct, frozen=True):
    """The source, the version and the whole size of a file."""

    source: str
    version: str
    size: int


class NotedBytes(msgspec.Struct, frozen=True):
    """The number of received bytes that are on the disk for sure, and the boot since which they are."""

    boot: str = ""
    sure_bytes: _Bytes = 0


class PartNote:
    """The note beside a part: a line that is replaced as a whole, and one that each piece overwrites.

    Without the second line no byte is on the disk for sure.
    """

    def __init__(self, target: Path) -> None:
        _, self._path, self._draft = files_of(target)
        self._first_length = self._length = 0

    def read(self) -> tuple[PartOf, NotedBytes] | None:
        """Return the note; None if there is none, or another file."""
        try:
            first, _, second = own_file.read(self._path, _LONGEST).partition(b"\n")
            part_of = msgspec.json.decode(first, type=PartOf)
        except (OSError, ValueError, RecursionError):
            return None
        noted = NotedBytes()
        with suppress(ValueError, RecursionError):
            noted = msgspec.json.decode(second, type=NotedBytes)
        return part_of, noted

    def write(self, part_of: PartOf, noted: NotedBytes) -> None:
        """Replace the note. OSError: it is unchanged."""
        draft = self._draft
        draft.unlink(missing_ok=True)
        first, second = msgspec.json.encode(part_of) + b"\n", msgspec.json.encode(noted)
        try:
            with os.fdopen(own_file.create(draft), "wb") as written:
                written.write(first + second)
            draft.replace(self._path)
        except OSError:  # a full disk would be left with an empty file for each one that is fetched
            draft.unlink(missing_ok=True)
            raise
        self._first_length, self._length = len(first), len(second)

    def write_bytes(self, noted: NotedBytes) -> None:
        """Overwrite the second line alone, so that no file is made for each piece. Errors: OSError."""
        number = os.open(self._path, _FLAGS)
        try:
            own_file.check(number, self._path)
            # Nothing of a longer one is left behind it.
            second = msgspec.json.encode(noted).ljust(self._length)
            os.pwrite(number, second, self._first_length)
        finally:
            os.close(number)
        self._length = len(second)

    def remove(self) -> None:
        """Remove the note. Errors: OSError."""
        self._path.unlink(missing_ok=True)


@cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


# So much is hashed before the thread turns to others' work.
HASHED_AT_ONCE: Final = 1 << 25
_READ_AT_ONCE: Final = 1 << 20
_BUSY_S: Final = 5.0
_LOOK_S: Final = 0.05


def _open_part(path: Path) -> int:
    """Open the part; others may write into its folder, so that only a file of this user is accepted.

    A new one is for its owner alone: a user who may open a file may lock it.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    number = os.open(path, flags, 0o600)
    try:
        own_file.check(number, path)
    except OSError:
        os.close(number)
        raise
    return number


_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})
_WHY: Final = {
    errno.ELOOP: "is a link, which is not followed; remove it",
    errno.ENAMETOOLONG: "the name, or the whole path, is too long for this file system",
    errno.EINVAL: "this file system does not take such a name; -o gives it another one",
    errno.EILSEQ: "this file system does not take such a name; -o gives it another one",
}


def disk_words(error: OSError) -> str:
    """Return in words why the disk refuses a file."""
    words, number = error.strerror or str(error), error.errno or 0
    return _WHY.get(number, words) if words == os.strerror(number) else words


def disk_error(path: Path, error: OSError, kept: str = "") -> DiskError:
    """Return the error of a path, for one of the disk."""
    return DiskError(f"{path}: {disk_words(error)}{kept}", full=error.errno in _FULL)


class OpenFolder(NamedTuple):
    """A folder that stays the same, wherever its path leads later: the number by which it is open.

    A context manager, which closes it.
    """

    path: Path
    number: int

    @classmethod
    def of(cls, path: Path) -> "OpenFolder":
        """Open a folder. Errors: OSError."""
        return cls(path, os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.number)

    def open_below(self, file: Path, *, make: bool = False, links: bool = False) -> int:
        """Open the folder of a file below this one; `make` creates a missing one. Errors: OSError.

        `links`: links of this user and of root are followed.
        """
        return folder_below(
            self.number, file.relative_to(self.path).parts[:-1], make=make, links=links
        )


def folder_below(top: int, parts: Iterable[str], *, make: bool = False, links: bool = False) -> int:
    """Open a folder below an open one. Arguments and errors: as of `OpenFolder.open_below`."""
    number = os.dup(top)
    try:
        # Folder by folder, so that no link can lead out, not even one that appears meanwhile.
        for part in parts:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=number)
            below = _enter(part, number, links=links)
            os.close(number)
            number = below
    except OSError:
        os.close(number)
        raise
    return number


def _enter(name: str, folder: int, *, links: bool) -> int:
    flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        return os.open(name, flags | os.O_NOFOLLOW, dir_fd=folder)
    except NotADirectoryError:
        if not links:
            raise
    link = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        found = os.fstat(link)
        if not stat.S_ISLNK(found.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if found.st_uid not in (0, os.geteuid()):
            raise OSError(errno.ELOOP, "is a link of another user, which is not followed")
        return os.open(os.readlink("", dir_fd=link), flags, dir_fd=folder)
    finally:
        os.close(link)


def _refuse_existing(there: Path, target: Path) -> None:
    """Refuse a target that is there, also as a link to nothing, or that cannot be. TransferError."""
    try:
        there.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise disk_error(target, error) from error
    raise TransferError(
        f"{target} is there already; it is not overwritten; another name would be right"
    )


class Partial:
    """A part on the disk, locked against other programs.

    A part from another `source` than this is not continued. `have` bytes of `size` are here, of `version`
    (empty: there is nothing to continue). `replaces`: something of another source is here under this
    name, and goes. TransferError: the target is there already, another program fetches it, or it cannot
    be written.

    `below`: the open folder that the target is in, or in a folder of which: no link of another user is
    followed from there on. The target's own folder stays open, so that it is the same until the end.

    `number`: of the open part.
    """

    def __init__(self, target: Path, source: str, below: OpenFolder | None = None) -> None:
        self.target = target
        self.path = files_of(target)[0]
        try:
            if below is None:
                self._folder = OpenFolder.of(target.parent).number
            else:
                self._folder = below.open_below(target, links=True)
        except FileNotFoundError as error:
            raise DiskError(f"there is no folder {target.parent}") from error
        except OSError as error:
            raise disk_error(target.parent, error) from error
        try:
            self._open(Path(f"/proc/self/fd/{self._folder}") / target.name, source)
        except BaseException:
            os.close(self._folder)
            raise

    def _open(self, there: Path, source: str) -> None:
        """Open the part of a target, whose folder's path no other user can change."""
        target = self.target
        _refuse_existing(there, target)
        self._target, self._part = there, files_of(there)[0]
        self._note = PartNote(there)
        self._source = text_of(source)
        self.have = 0
        self.version, self.size = "", 0
        self.replaces = False
        self._before = NotedBytes()
        self._noted: NotedBytes | None = None
        try:
            self.number = _open_part(self._part)
        except OSError as error:
            raise disk_error(self.path, error) from error
        try:
            fcntl.flock(self.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self.number)
            raise TransferBusyError(
                f"{self.path}: another program is fetching this file"
            ) from error
        try:  # the other program may just have finished it
            _refuse_existing(there, target)
            if not self._still_there():
                raise TransferError(f"{target} was here a moment ago; run the same command again")
        except TransferError:
            os.close(self.number)
            raise
        # The digest of the received bytes is computed again; nothing of it is stored.
        self._digest, self._hashed = hashlib.sha256(), 0
        self._read_note(os.fstat(self.number).st_size)

    def _still_there(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self.number), self._part.stat())
        except OSError:
            return False

    def _read_note(self, have: int) -> None:
        found = self._note.read()
        if found is None:
            return
        part_of, noted = found
        self.replaces = have > 0 and part_of.source != self._source
        if part_of.source == self._source and 0 < have <= part_of.size:
            self.have, self.version, self.size = have, part_of.version, part_of.size
            self._before = noted

    def hash_some(self) -> bool:
        """Hash a piece of what earlier attempts have received; return whether that was the last one.

        TransferError: the disk cannot be read.
        """
        end = min(self._hashed + HASHED_AT_ONCE, self.have)
        while self._hashed < end:
            try:
                piece = os.pread(self.number, min(_READ_AT_ONCE, end - self._hashed), self._hashed)
            except OSError as error:
                raise disk_error(self.path, error) from error
            if not piece:
                return True
            self._digest.update(piece)
            self._hashed += len(piece)
        return self._hashed >= self.have

    def hash_all(self) -> None:
        while not self.hash_some():
            pass

    def begin(self, start: int, version: str, size: int) -> None:
        """Begin to receive from `start`: the end of the received bytes, or 0 if they are of no use."""
        if start not in {0, self.have}:
            raise TransferError(f"the server sends from byte {start}, not from {self.have} or 0")
        try:
            if start == 0:
                os.ftruncate(self.number, 0)
                self.have, self._digest, self._hashed = 0, hashlib.sha256(), 0
                self._before, self._noted = NotedBytes(), None
                self.replaces = False
            self.version, self.size = version, size
            noted = structs.replace(self._noted or self._before, boot=_boot())
            self._note.write(PartOf(self._source, version, size), noted)
            self._noted = noted
        except OSError as error:
            raise disk_error(self.path, error) from error

    @property
    def unsure_bytes(self) -> int:
        """The received bytes that a power failure may turn into zeros."""
        return self.have - (self._noted or self._before).sure_bytes

    def make_sure(self) -> None:
        """Wait until the received bytes are on the disk, and note how many they are. TransferError."""
        have = self.have
        try:
            os.fdatasync(self.number)
        except OSError as error:
            raise disk_error(self.path, error) from error
        # None: no byte was received yet, or the file is whole.
        if self._noted is not None:
            noted = structs.replace(self._noted, sure_bytes=have)
            with suppress(OSError):
                self._note.write_bytes(noted)
                self._noted = noted

    def drop_unsure(self) -> None:
        """Drop what was not on the disk for sure when the host was booted. TransferError.

        For sources that tell no digest: blocks that were not written yet are zeros after a power failure.
        """
        sure = min(self._before.sure_bytes, self.have)
        if self._noted is None and self._before.boot != _boot() and sure < self.have:
            try:
                os.ftruncate(self.number, sure)
            except OSError as error:
                raise disk_error(self.path, error) from error
            self.have, self._digest, self._hashed = sure, hashlib.sha256(), 0

    def write(self, data: Any) -> None:
        """Append the next bytes. TransferError: the disk is full, say."""
        self.hash_all()
        view = memoryview(data)
        self._digest.update(view)
        self._hashed += len(view)
        while view:
            try:
                n_bytes = os.pwrite(self.number, view, self.have)
            except OSError as error:
                raise disk_error(self.path, error) from error
            self.have += n_bytes
            view = view[n_bytes:]

    def is_right(self, digest: bytes) -> bool:
        self.hash_all()
        return self._digest.digest() == digest

    def finish(self, modified_unix_s: float) -> None:
        """Give the whole file its name once it is on the disk.

        TransferError: it cannot be; the part is kept.
        """
        try:
            # The bytes must be on the disk before the name is.
            own_file.open_to_others(self.number, files_of(self._target)[2])
            os.utime(self.number, (modified_unix_s, modified_unix_s))
            os.fsync(self.number)
            # The note first: a crash between the two leaves neither it nor a second name for ever.
            noted, self._noted = self._noted or self._before, None
            self._note.remove()
            try:
                own_file.rename_new(self._part, self._target)
            except OSError:
                with suppress(OSError):  # a part without its note would be fetched again
                    self._note.write(PartOf(self._source, self.version, self.size), noted)
                raise
        except OSError as error:
            raise disk_error(self.target, error, f"; {self.path} is kept") from error

    def discard(self) -> None:
        """Drop the received bytes: the server has others."""
        self.begin(0, "", 0)

    def close(self) -> None:
        """Close the part; an empty one is removed, and one of another source left if nothing came."""
        self._noted = None
        if not (self.have or self.replaces):
            with suppress(OSError):  # a disk that is read-only now, or another user's folder there
                self._part.unlink(missing_ok=True)
                self._note.remove()
        os.close(self.number)
        os.close(self._folder)


NO_PLACE: Final = nullcontext()  # threads are not shared


async def when_free(
    target: Path, source: str, place: AbstractAsyncContextManager[Any] = NO_PLACE
) -> Partial:
    """Return a part once an earlier session, which ends now, has released it; what is there is hashed.

    `place`: among the few threads, held for each attempt and each piece, not while this waits.
    Errors: as of `Partial`.
    """
    loop = asyncio.get_running_loop()
    give_up_s = loop.time() + _BUSY_S
    while True:
        try:
            async with place:
                opening = asyncio.to_thread(Partial, target, source)
                part = await own_file.to_its_end(opening, lambda part: part.close())
            break
        except TransferBusyError:
            if loop.time() > give_up_s:
                raise
        await asyncio.sleep(_LOOK_S)
    try:
        whole = False
        while not whole:
            async with place:
                whole = await own_file.to_its_end(asyncio.to_thread(part.hash_some))
    except BaseException:
        part.close()
        raise
    return part
