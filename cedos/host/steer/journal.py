"""Write every change to disk before it is made, so that it can be undone.

One JSON object per line, each on the disk before the change that it undoes. A process that is killed
in the middle of a write leaves a torn last line: its change was never made, so the line is no loss.
"""

import errno
import fcntl
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from cedos.errors import AlreadyRunningError, PrivilegeError, SteeringError
from cedos.host.steer.journal_records import (
    NOT_NEEDED,
    JournalReading,
    Record,
    journal_line,
    of_here,
    read_records,
)
from cedos.kernel import own_file


class JournalKeeper(Protocol):
    """A journal for steering: `Journal`, or one that another process keeps. Errors as for `Journal`."""

    @property
    def appended(self) -> Sequence[Record]:
        """Return what has been written since it was opened."""

    def read(self) -> JournalReading: ...

    def append(self, record: Record) -> None:
        """Return when the record is on the disk."""

    def remove(self) -> None: ...

    def put_aside(self) -> Path | None: ...

    def close(self) -> None: ...


FILE_NAME: Final = "journal.jsonl"
LOCK_NAME: Final = "journal.lock"
_MOST_BYTES: Final = 16 << 20
_ENDING_S: Final = 1.0
_TAKES_NOTHING: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)


class Journal:
    """The journal of a state directory, or of a part of it, which is made; locked while this is open.

    The directory's owner may put a link in the way of a part. So all that happens, happens in the folder
    that was opened. Raises AlreadyRunningError while another process has it open, PrivilegeError or
    SteeringError where the directory cannot be used.
    """

    def __init__(self, directory: Path, part: str = "") -> None:
        self.path = directory / part / FILE_NAME
        self._file: int | None = None
        self._appended: list[Record] = []
        try:
            directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._directory = own_file.opened_folder(directory, part)
        except OSError as error:
            raise _refusal_of(self.path.parent, error) from error
        inside = Path(f"/proc/self/fd/{self._directory}")
        self._itself, lock = inside / FILE_NAME, inside / LOCK_NAME
        try:
            # Whom the file is not open to cannot lock it; to lock a folder, one need only read it.
            try:
                own_file.ensure(lock)
                self._lock = own_file.extend(lock)
            except OSError as error:
                if error.errno != errno.EROFS:
                    raise
                self._lock = own_file.open_own(lock)  # what is there can still be undone
        except OSError as error:
            os.close(self._directory)
            raise _refusal_of(self.path.with_name(LOCK_NAME), error) from error
        try:
            _lock(self._lock)
        except BlockingIOError:
            os.close(self._lock)
            os.close(self._directory)
            raise AlreadyRunningError(
                f"a cedos daemon is steering now (it holds {self.path}); it undoes everything when it"
                " ends: stop that one first"
            ) from None

    def read(self) -> JournalReading:
        """Return the content of the file; nothing without a file."""
        try:
            return read_records(own_file.read(self._itself, _MOST_BYTES))
        except FileNotFoundError:
            return JournalReading()
        except OSError as error:
            return JournalReading((), [f"{self.path} cannot be read: {error.strerror}"], True)

    @property
    def appended(self) -> Sequence[Record]:
        """Return what this process has written: whatever becomes of the file, it knows its way back."""
        return self._appended

    def append(self, record: Record) -> None:
        """Return when the record is on the disk, or where a full one takes none that is not needed.

        Raises:
            SteeringError: it cannot be written: the change must not be made.
        """
        line = journal_line(record)
        try:
            if self._file is None:
                self._file = self._open()
            written = 0
            while written < len(line):
                written += os.write(self._file, line[written:])
            os.fsync(self._file)
        except OSError as error:
            # Half a line must not swallow the next one: that begins on a line of its own.
            self._close_file()
            if error.errno not in _TAKES_NOTHING or not isinstance(record, NOT_NEEDED):
                raise _refusal_of(self.path, error) from error
        self._appended.append(record)

    def remove(self) -> None:
        """Remove the file once everything has been undone; what other namespaces still need stays."""
        self._close_file()
        _, elsewhere = of_here(self.read())
        try:
            if elsewhere:
                return own_file.write(self._itself, b"".join(map(journal_line, elsewhere)))
            if self._itself.is_dir() and not self._itself.is_symlink():
                self.put_aside()
            self._itself.unlink(missing_ok=True)
            os.fsync(self._directory)
        except OSError as error:
            raise _refusal_of(self.path, error) from error

    def put_aside(self) -> Path | None:
        """Keep what could not be undone, and begin anew; return where it is kept, None: nowhere."""
        self._close_file()
        aside = own_file.free_name_beside(self._itself)
        try:
            self._itself.rename(aside)
            os.fsync(self._directory)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _refusal_of(self.path, error) from error
        return self.path.with_name(aside.name)

    def close(self) -> None:
        """Give up the lock; the file stays."""
        self._close_file()
        if self._directory >= 0:
            os.close(self._lock)
            os.close(self._directory)
            self._directory = -1

    def _open(self) -> int:
        try:
            file = own_file.create(self._itself)
        except FileExistsError:
            file = own_file.extend(self._itself)
        try:
            size = os.fstat(file).st_size
            if size and os.pread(file, 1, size - 1) != b"\n":
                os.write(file, b"\n")
            os.fsync(self._directory)
        except OSError:
            os.close(file)
            raise
        return file

    def _close_file(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _lock(file: int) -> None:
    """Lock the file; wait a moment, as a killed daemon's privileged part ends. BlockingIOError."""
    until_s = time.monotonic() + _ENDING_S
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.01)


def _refusal_of(path: Path, error: OSError) -> SteeringError | PrivilegeError:
    if isinstance(error, PermissionError):
        return PrivilegeError(
            f"{path}: {error.strerror}; run as root, by the systemd unit, or with CEDOS_STATE_DIR"
            " set to a folder of your own"
        )
    return SteeringError(
        f"{path}: {error.strerror}; nothing is changed that could not be undone after a crash"
    )
