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
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from cedos.api.messages import RecordingMessage, RecordingRequest
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
from cedos.controller.snapshot import snapshot
from cedos.errors import HistoryError, NotFoundError, PrivilegeError
from cedos.kernel import own_file
from cedos.logs import get_logger

_log = get_logger(__name__)

# Events that are written together: so many, or those of so many seconds.
_TOGETHER_S: Final = 2.0
_TOGETHER: Final = 2_000
# A larger file is not continued, but followed by another one. A day has some 100 MB.
FILE_BYTES: Final = 20_000_000
# The bytes of all files of a log; beyond them the oldest is removed.
MOST_BYTES: Final = 500_000_000
FOLDER: Final = "records"
# A member of the daemon's group could begin and end 26 logs a second.
MOST_FILES: Final = 1_000


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
    def files(self) -> list[Path]:
        """Return the files that are there, the oldest first."""
        return [path for path, _ in self._files] + [self.path]

    @property
    def size_bytes(self) -> int:
        """Return what all files have together."""
        return sum(size for _, size in self._files) + self._written_bytes

    def message(self, *, on: bool) -> RecordingMessage:
        """Return what clients are told; `on`: events are recorded."""
        return RecordingMessage(
            on=on,
            files=tuple(str(each.absolute()) for each in self.files),
            since_unix_s=self.since_unix_s,
            size_bytes=self.size_bytes,
            events=self.events,
            names=self._hide is None,
            problem=self.problem,
        )

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
        header = {
            "format": LOG_FORMAT,
            "cedos": version("cedos"),
            "unix_s": time.time(),
            "model": getattr(model, "fingerprint", lambda: "none")(),
        }
        try:
            state = snapshot(self._controller, {"model": model}, self._hide)
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


class Recording:
    """The recording of events as clients ask for it (`cedos record`); `log`: of `cedos up --record`.

    Clients name a file, never a path: the daemon writes below its state directory alone, and no link
    there leads it elsewhere (`own_file`). The files belong to the daemon's user, and only that one and
    root may read them: they tell the addresses of all users' connections.

    Args:
        state: the daemon's state directory.

    Attributes:
        log: the log in which events are recorded, or were until it could not be written.
    """

    def __init__(self, controller: Controller, state: Path, log: EventLog | None = None) -> None:
        self._controller = controller
        self._folder = state / FOLDER
        self.log = log

    def add(self, event: Event, now_s: float, commands: Sequence[Command]) -> None:
        """Record an event, if events are recorded."""
        if self.log is not None:
            self.log.add(event, now_s, commands)

    def end(self) -> None:
        """Record nothing any more."""
        if self.log is not None:
            self.log.close()
        self.log = None

    def state(self) -> RecordingMessage:
        """Return the log that is being written."""
        log = self.log
        return RecordingMessage(on=False) if log is None else log.message(on=not log.problem)

    def ask(self, request: RecordingRequest, uid: int) -> RecordingMessage:
        """Begin or end a log as a user wishes.

        Raises:
            HistoryError: one is being written, or none can be.
            NotFoundError: none is being written.
            PrivilegeError: the user may not have the names of hosts recorded.
        """
        log = self.log
        if not request.on:
            if log is None:
                raise NotFoundError("nothing is recorded: `cedos record start` begins a log")
            self.end()
            return log.message(on=False)
        if request.names and uid not in (0, os.geteuid()):
            raise PrivilegeError("only root may record the names of hosts, which other users visit")
        if log is not None and not log.problem:
            raise HistoryError(f"events are recorded in {log.path} already: `cedos record stop`")
        self._make_room()
        name = request.file or time.strftime("%Y-%m-%d-%H%M%S.log")
        begun = EventLog(self._folder / name, self._controller, names=request.names)
        self.end()
        self.log = begun
        return self.state()

    def _make_room(self) -> None:
        """Make the folder; refuse where earlier logs fill it, for no client may fill the disk."""
        try:
            own_file.folder(self._folder)
            # Each look takes time: no more files are looked at than are allowed.
            earlier = islice(self._folder.iterdir(), MOST_FILES)
            there = [each.lstat().st_size for each in earlier]
        except OSError as error:
            raise HistoryError(f"{self._folder} cannot be used: {error.strerror}") from None
        if len(there) >= MOST_FILES:
            raise HistoryError(
                f"{self._folder} has {MOST_FILES:,} earlier logs or more. Remove some first"
            )
        if sum(there) > MOST_BYTES:
            raise HistoryError(
                f"{self._folder} has {sum(there) / 1e6:,.0f} MB of earlier logs; at most"
                f" {MOST_BYTES / 1e6:,.0f} MB would be right. Remove some first"
            )
