"""A folder that holds one of each client: one process uses it at a time, or several their parts."""

import fcntl
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CLIENT: Final = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class StorePart:
    """The share of one of `count` processes in a folder: the clients of that process."""

    number: int
    count: int

    def has(self, client: str) -> bool:
        """Return True for a client of this process, by its host's id (`sibling_processes.py`)."""
        return (
            CLIENT.fullmatch(client) is not None and int(client[:2], 16) % self.count == self.number
        )


class ClientsFolder:
    """A folder with a folder for each client, locked by `open`, released by `close`."""

    def __init__(self, path: Path, part: StorePart | None) -> None:
        self.path, self._part = path, part
        self._lock = -1

    @property
    def is_open(self) -> bool:
        return self._lock >= 0

    def open(self, read: Callable[[], None]) -> None:
        """Lock the folder and call `read`. OSError: no access, or another process has it."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = self._file_to_lock()
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            read()
        except BaseException:
            os.close(lock)
            raise
        self._lock = lock

    def _file_to_lock(self) -> int:
        if self._part is None:
            return os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        name = f".part-{self._part.number}"
        return os.open(
            self.path / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def of_clients(self) -> Iterator[Path]:
        """Return the folders of this process's clients; of one process alone all folders."""
        for each in self.path.iterdir():
            if each.is_symlink() or not each.is_dir():
                continue
            if self._part is None or self._part.has(each.name):
                yield each
