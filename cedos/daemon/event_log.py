"""The event log: all that the controller was told, so that it can be run again (`cedos-emu replay`).

A file of gzip members with records in msgpack. The first record is the header; each other one is
`[time, event, checksum of its commands]`, with the monotonic time in s. The names of hosts are replaced,
the same one by the same, unless the user asks for them.

A header has the controller's whole state, so that the same commands come out whenever a log begins. A log
that grows large goes on in a further file: each can be replayed without the others, and the oldest are
removed.
"""

import gzip
import os
import secrets
import time
import zlib
from collections import deque
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final

import msgspec
import structlog

from cedos.controller.codec import (
    LARGEST_BYTES,
    LOG_FORMAT,
    Hider,
    encode_commands,
    encode_event,
)
from cedos.controller.commands import Command
from cedos.controller.controller import Controller
from cedos.controller.events import Event
from cedos.controller.flows.learning import Learning
from cedos.controller.snapshot import snapshot
from cedos.errors import HistoryError
from cedos.kernel import own_file

_log = structlog.get_logger(__name__)

# Events that are written together: so many, or those of so many seconds.
_TOGETHER_S: Final = 2.0
_TOGETHER: Final = 2_000
# A larger file is not continued, but followed by another one. A day has some 100 MB.
FILE_BYTES: Final = 20_000_000
# The bytes of all files of a log; beyond them the oldest is removed.
MOST_BYTES: Final = 500_000_000


class EventLog:
    """A log that is being written.

    Args:
        path: the first file, which must not exist; further ones are called `PATH.2` and so on.
        controller: whose events follow.
        names: write the names of hosts as they are.

    Attributes:
        since_unix_s: when it began.
        events: how many there were.
        problem: why nothing is written any more, in words; "": it is.

    Raises:
        HistoryError: the file exists, or cannot be made.
    """

    def __init__(self, path: Path, controller: Controller, *, names: bool = False) -> None:
        self.path = path  # of the file that is being written
        self.since_unix_s = time.time()
        self.events = 0
        self.problem = ""
        self._controller = controller
        self._hide = None if names else Hider(secrets.token_bytes(16))
        self._first, self._number = path, 2
        self._files: deque[tuple[Path, int]] = deque()
        self._written_bytes = 0
        self._waiting: list[bytes] = []
        self._since_s = float("-inf")
        self._begin(path)

    @property
    def names(self) -> bool:
        """Return whether the names of hosts are written as they are."""
        return self._hide is None

    @property
    def files(self) -> list[Path]:
        """Return the files that are there, the oldest first."""
        return [path for path, _ in self._files] + [self.path]

    @property
    def size_bytes(self) -> int:
        """Return what all files have together."""
        return sum(size for _, size in self._files) + self._written_bytes

    def add(self, event: Event, now_s: float, commands: Sequence[Command]) -> None:
        """Record an event and what came of it; a file that cannot be written ends, and it is logged."""
        if self._file.closed:
            return
        self.events += 1
        try:
            checksum = zlib.crc32(encode_commands(commands, self._hide))
            record = (now_s, encode_event(event, self._hide), checksum)
            self._waiting.append(msgspec.msgpack.encode(record))
        except (OverflowError, TypeError, UnicodeEncodeError) as error:
            # (The commands must be carried out all the same.)
            self._end(f"an event cannot be recorded: {error}")
            return
        if len(self._waiting) >= _TOGETHER or now_s - self._since_s >= _TOGETHER_S:
            self._since_s = now_s
            self._write()
            if self._written_bytes > FILE_BYTES and not self._file.closed:
                self._go_on()

    def close(self) -> None:
        """Write what waits, and close the file."""
        if not self._file.closed:
            self._write()
            self._file.close()

    def _begin(self, path: Path) -> None:
        header = self._header()
        try:
            self._file = os.fdopen(own_file.create(path), "wb")
        except FileExistsError:
            raise HistoryError(f"{path} is there already: another name would be right") from None
        except OSError as error:
            raise HistoryError(f"{path} cannot be made: {error.strerror}") from None
        self.path, self._written_bytes, self._waiting = path, 0, [header]

    def _go_on(self) -> None:
        """Go on in a further file, and remove the oldest beyond the limit."""
        self._file.close()
        self._files.append((self.path, self._written_bytes))
        try:
            while sum(size for _, size in self._files) > MOST_BYTES - FILE_BYTES:
                self._files.popleft()[0].unlink(missing_ok=True)
            while (path := self._first.with_name(f"{self._first.name}.{self._number}")).exists():
                self._number += 1
            self._begin(path)
        except (HistoryError, OSError) as error:
            self._written_bytes = 0
            self._end(str(error))

    def _header(self) -> bytes:
        """Return what a replay needs beside the events."""
        model = self._controller.config.choices.model
        trained = model.trained if isinstance(model, Learning) else model
        header = {
            "format": LOG_FORMAT,
            "cedos": version("cedos"),
            "unix_s": time.time(),
            "model": getattr(trained, "fingerprint", lambda: "none")(),
        }
        try:
            state = snapshot(self._controller, {"model": trained}, self._hide)
            encoded = msgspec.msgpack.encode({**header, "state": state})
        except (TypeError, OverflowError) as error:
            raise HistoryError(f"the state cannot be recorded: {error}") from None
        if len(encoded) > LARGEST_BYTES:
            raise HistoryError("the state cannot be recorded: there are too many flows")
        return encoded

    def _write(self) -> None:
        # Each record has its length before it, so that a reader needs no schema to find the next one.
        block = b"".join(len(each).to_bytes(4, "big") + each for each in self._waiting)
        self._waiting.clear()
        try:
            self._written_bytes += self._file.write(gzip.compress(block, 6))
            self._file.flush()
        except OSError as error:
            self._end(f"{self.path} cannot be written: {error.strerror}")

    def _end(self, why: str) -> None:
        self.problem = why
        _log.warning("events are not recorded any more", why=why)
        self._file.close()
