"""What has to be undone, on disk before it is done.

One JSON object per line, each on the disk before the change that it undoes. A process that is killed
in the middle of a write leaves a torn last line: its change was never made, so the line is no loss.
"""

import fcntl
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from cedos.errors import AlreadyRunningError, PrivilegeError, SteeringError

FILE_NAME: Final = "journal.jsonl"
Record = dict[str, Any]


class Journal:
    """The journal of a state directory, which is made; locked while this object is open.

    Raises AlreadyRunningError while another process has it open, PrivilegeError or SteeringError
    where the directory cannot be used.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE_NAME
        self._file: int | None = None
        try:
            directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._directory = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise _refused(directory, error) from error
        try:
            fcntl.flock(self._directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._directory)
            raise AlreadyRunningError(
                f"{self.path} belongs to a process that is steering now; stop that one first"
            ) from None

    def records(self) -> list[Record]:
        """All whole records, oldest first; a torn or foreign line is passed over."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _refused(self.path, error) from error
        return list(filter(None, map(_parse, data.split(b"\n"))))

    def append(self, record: Record) -> None:
        """Returns when the record is on the disk.

        Raises:
            SteeringError: it cannot be written (a full disk): the change must not be made.
        """
        line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
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
            raise _refused(self.path, error) from error

    def remove(self) -> None:
        """Everything has been undone: the file goes."""
        self._close_file()
        try:
            self.path.unlink(missing_ok=True)
            os.fsync(self._directory)
        except OSError as error:
            raise _refused(self.path, error) from error

    def close(self) -> None:
        """Gives up the lock; the file stays."""
        self._close_file()
        if self._directory >= 0:
            os.close(self._directory)
            self._directory = -1

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        file = os.open(self.path, flags, 0o600)
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


def _parse(line: bytes) -> Record | None:
    with suppress(ValueError, RecursionError):
        record = json.loads(line)
        if isinstance(record, dict) and isinstance(record.get("undo"), str):
            return record
    return None


def _refused(path: Path, error: OSError) -> SteeringError | PrivilegeError:
    if isinstance(error, PermissionError):
        return PrivilegeError(
            f"{path}: {error.strerror}; run as root, by the systemd unit, or with CEDOS_STATE_DIR"
            " set to a folder of your own"
        )
    return SteeringError(
        f"{path}: {error.strerror}; nothing is changed that could not be undone after a crash"
    )
