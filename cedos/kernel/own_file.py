"""Files in the state directory, which may belong to another user than the one who reads or writes.

The owner of the directory may put a link, a fifo or another user's file under any name there. None
of these is followed, waited for or believed. Files are written whole or not at all; a file that
cannot be used is moved aside.
"""

import asyncio
import ctypes
import errno
import os
import sqlite3
import stat
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import Any, Final, TypeVar

from cedos.kernel import privileges

MOST_BYTES: Final = 64 << 20
_AT_FDCWD, _RENAME_NOREPLACE = -100, 1
_libc: Final = ctypes.CDLL(None, use_errno=True)
# A file that root took is written by root alone, and runs with the rights of its starter (no set-uid).
_MOST_MODE: Final = 0o755


def read(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """Return a file's content. OSError: there is none, it is not ours, or it is larger."""
    return _content(open_own(path), path, most_bytes)[0]


def read_followed(path: Path) -> tuple[bytes, os.stat_result]:
    """Return a file's content and status; its user may keep it elsewhere, and put a link there.

    OSError: there is none, it is no plain file (a fifo, say), or it is large.
    """
    return _content(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), path, 1 << 20)


def _content(file: int, path: Path, most_bytes: int) -> tuple[bytes, os.stat_result]:
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "is no plain file", str(path))
        parts, left = [], most_bytes - found.st_size
        # (Its owner may lengthen it while it is read.)
        while left >= 0 and (part := os.read(file, 1 << 20)):
            parts.append(part)
            left = most_bytes - sum(map(len, parts))
        if left < 0:
            raise OSError(errno.EFBIG, f"is larger than {most_bytes} bytes", str(path))
        return b"".join(parts), found
    finally:
        os.close(file)


def create(path: Path) -> int:
    """Create a file for its owner alone, to be written. OSError: a file of that name exists.

    What root makes in another one's directory (that of a service's user) belongs to that one, too.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(path, flags, 0o600)
    owner = path.parent.stat()
    if os.geteuid() == 0 and owner.st_uid != 0:
        # A daemon that gave up its capabilities may not do that any more.
        with suppress(PermissionError):
            os.fchown(file, owner.st_uid, owner.st_gid)
    return file


def take(directory: Path) -> None:
    """Give a directory of another user, and all in it, to root, who alone may change it then.

    A daemon that root starts may do little more than root's own files allow. systemd gives the directory
    back to a service's user when the service starts. Errors: OSError.
    """
    directory = directory.resolve()
    if os.geteuid() != 0 or directory.stat().st_uid == 0:
        return
    # First, so that nothing is added while the rest is taken.
    _take(directory)
    # By open folders: the directory's owner may have put links in the way.
    for path, folders, files, inside in os.fwalk(directory):
        for name in (*folders, *files):
            _take(name, inside)
        # (What lies deeper is none of ours, and may be any number of folders deep.)
        if Path(path) != directory:
            folders.clear()


def _take(name: str | Path, inside: int | None = None) -> None:
    try:
        file = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=inside)
    except FileNotFoundError:
        return
    try:
        # The name of an open file is that file, whatever is put in its place, and be it a link.
        itself, mode = Path(f"/proc/self/fd/{file}"), os.fstat(file).st_mode
        os.chown(itself, 0, 0)
        if not stat.S_ISLNK(mode):
            itself.chmod(mode & _MOST_MODE)
    finally:
        os.close(file)


def folder(path: Path) -> None:
    """Make a folder for its owner alone; one of ours that exists stays.

    OSError: it cannot be made, or what has its name is no folder of ours (a link, say).
    """
    with suppress(FileExistsError):
        path.mkdir(0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise OSError(errno.ENOTDIR, "is no folder", str(path))
    if found.st_uid not in (0, os.geteuid(), path.parent.stat().st_uid):
        raise OSError(errno.EACCES, f"belongs to another user ({found.st_uid})", str(path))


def change_mode(path: Path, mode: int) -> None:
    """Change the mode of what was just made. OSError: there is a link instead, or another user's."""
    file = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(file)
        if stat.S_ISLNK(found.st_mode) or found.st_uid != os.geteuid():
            raise OSError(errno.EACCES, "was replaced", str(path))
        Path(f"/proc/self/fd/{file}").chmod(mode)
    finally:
        os.close(file)


def opened_folder(directory: Path, part: str = "") -> int:
    """Open a directory, or a folder of ours in it, which is made. OSError: it is a link, or not ours."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    outer = os.open(directory, flags)
    if not part:
        return outer
    try:
        with suppress(FileExistsError):
            os.mkdir(part, 0o700, dir_fd=outer)
        inner, owner = os.open(part, flags | os.O_NOFOLLOW, dir_fd=outer), os.fstat(outer).st_uid
    finally:
        os.close(outer)
    if os.fstat(inner).st_uid not in (0, os.geteuid(), owner):
        os.close(inner)
        raise OSError(errno.EACCES, "belongs to another user", str(directory / part))
    return inner


def extend(path: Path) -> int:
    """Open a file of ours to append to it. OSError: there is none, or it is not ours."""
    return open_own(path, os.O_RDWR | os.O_APPEND)


def open_own(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a file of ours. OSError: there is none, or it is not ours."""
    # Never follow a link, and never wait for a fifo.
    file = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        check(file, path)
    except OSError:
        os.close(file)
        raise
    return file


def ensure(path: Path) -> None:
    """Create an empty file for its owner alone; one of ours that exists stays. Errors: OSError."""
    try:
        os.close(create(path))
    except FileExistsError:
        file = extend(path)
        try:
            if os.fstat(file).st_mode & 0o077:
                os.fchmod(file, 0o600)
        finally:
            os.close(file)


@contextmanager
def database(path: Path, how: str = "mode=rw") -> Iterator[sqlite3.Connection]:
    """Open an SQLite file of ours, to be prepared or read in the block; one to be written is made.

    A journal beside it may name any file, which SQLite removes, even if it only reads. So root opens it
    with the rights of the folder's owner, and a daemon without capabilities removes such a journal first.
    """
    with _rights_of(path.parent.stat()):
        if how == "mode=rw":
            ensure(path)
            path.with_name(f"{path.name}-journal").unlink(missing_ok=True)
        else:
            os.close(open_own(path))  # SQLite would wait for a fifo
        # (SQLite follows links: one that has come meanwhile makes no file elsewhere.)
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?{how}",
            uri=True,
            timeout=2.0,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            yield connection
        except BaseException:
            connection.close()
            raise


@contextmanager
def _rights_of(owner: os.stat_result) -> Iterator[None]:
    groups, group = os.getgroups(), os.getegid()
    try:
        if os.geteuid() or not owner.st_uid:
            raise PermissionError
        os.setgroups([])
    except PermissionError:
        yield
        return
    try:
        os.setegid(owner.st_gid)
        os.seteuid(owner.st_uid)
        privileges.enter_any_folder()
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)
        os.setgroups(groups)


def write_ahead(connection: sqlite3.Connection) -> None:
    """Keep SQLite from its other journals (`database`) for good. DatabaseError: it cannot."""
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode not in ("wal", "memory"):
        raise sqlite3.DatabaseError("cannot be written ahead")


def check(file: int, path: Path) -> None:
    """Raise OSError if an open file is no plain file, has a second name, or is another user's.

    The directory's owner is trusted like root and this user: a daemon that runs as a user of its own
    leaves files that root reads. Their content is checked all the same.
    """
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "is no plain file", str(path))
    if found.st_nlink > 1:
        raise OSError(errno.EMLINK, "has another name elsewhere", str(path))
    if found.st_uid not in (0, os.geteuid(), path.parent.stat().st_uid):
        raise OSError(errno.EACCES, f"belongs to another user ({found.st_uid})", str(path))


def open_to_others(file: int, beside: Path) -> None:
    """Give an open file the mode that its folder gives to new ones. Errors: OSError.

    `beside`: a path in that folder, for a file that is made to see it.
    """
    beside.unlink(missing_ok=True)
    new = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        usual = os.fstat(new).st_mode
    finally:
        os.close(new)
        beside.unlink()
    if usual != os.fstat(file).st_mode:
        os.fchmod(file, stat.S_IMODE(usual))


def write(path: Path, content: bytes, *, synced: bool = False) -> None:
    """Replace the file, for its owner alone. Errors: OSError, it is as it was.

    `synced`: wait for the disk, so that the file is whole whenever the power fails.
    """
    new = path.with_name(f"{path.stem}.{os.getpid()}.new")  # of no other program that writes it now
    # Remove any file that a torn write, or another user, left under that name; never write to it.
    new.unlink(missing_ok=True)
    file = create(new)
    try:
        with os.fdopen(file, "wb") as opened:
            opened.write(content)
            if synced:
                opened.flush()
                os.fsync(opened.fileno())
        new.replace(path)
    except OSError:
        new.unlink(missing_ok=True)
        raise
    # Programs that were killed left theirs.
    for old in path.parent.glob(f"{escape(path.stem)}.*.new"):
        writer = old.suffixes[-2][1:]
        if writer.isdecimal() and not Path("/proc", writer).exists():
            with suppress(OSError):
                old.unlink()


def rename_new(path: Path, target: Path) -> None:
    """Rename a file, never over another one. Errors: OSError."""
    old, new = os.fsencode(path), os.fsencode(target)
    if not _libc.renameat2(_AT_FDCWD, old, _AT_FDCWD, new, _RENAME_NOREPLACE):
        return
    why = ctypes.get_errno()
    if why in (errno.EINVAL, errno.ENOSYS):  # this file system cannot: NFS, say
        if not os.path.lexists(target):
            path.rename(target)
            return
        why = errno.EEXIST
    raise OSError(why, os.strerror(why), str(target))


def free_name_beside(path: Path) -> Path:
    """Return a free name beside the file: `NAME.aside-1` and so on."""
    number = 1
    while os.path.lexists(free := path.with_name(f"{path.name}.aside-{number}")):
        number += 1
    return free


_Made = TypeVar("_Made")


async def to_its_end(
    work: Coroutine[Any, Any, _Made], undo: Callable[[_Made], object] = lambda _made: None
) -> _Made:
    """Await work to its end even if this task is cancelled; return what it returns.

    A thread goes on all the same: with files that are closed, and whose numbers others have by then.
    `undo`: for a result that no caller takes any more.
    """
    working = asyncio.get_running_loop().create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not working.done():
        try:
            await asyncio.wait({working})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return working.result()
    if not working.cancelled() and working.exception() is None:
        undo(working.result())
    raise cancelled
