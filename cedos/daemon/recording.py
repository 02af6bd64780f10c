"""Begins and ends the event log of the running daemon, as clients ask (`cedos record`).

Clients name a file, never a path: the daemon writes below its state directory alone, and no link there
leads it elsewhere (`own_file`). The files belong to the daemon's user, and only that one and root may
read them: they tell the addresses of all users' connections.
"""

import os
import time
from itertools import islice
from pathlib import Path
from typing import Final

from cedos.api.messages import RecordingMessage, RecordingRequest
from cedos.daemon.driver import ControllerDriver
from cedos.daemon.event_log import MOST_BYTES, EventLog
from cedos.errors import HistoryError, NotFoundError, PrivilegeError
from cedos.kernel import own_file

FOLDER: Final = "records"
# A member of the daemon's group could begin and end 26 logs a second.
MOST_FILES: Final = 1_000


class Recording:
    """The event log of a driver, which `cedos up --record` may have begun.

    Args:
        state: the daemon's state directory.
    """

    def __init__(self, driver: ControllerDriver, state: Path) -> None:
        self._driver = driver
        self._folder = state / FOLDER

    def state(self) -> RecordingMessage:
        """Return the log that is being written."""
        log = self._driver.log
        return message(log, on=not log.problem) if log is not None else RecordingMessage(on=False)

    def ask(self, request: RecordingRequest, uid: int) -> RecordingMessage:
        """Begin or end a log as a user wishes.

        Raises:
            HistoryError: one is being written, or none can be.
            NotFoundError: none is being written.
            PrivilegeError: the user may not have the names of hosts recorded.
        """
        log = self._driver.log
        if not request.on:
            if log is None:
                raise NotFoundError("nothing is recorded: `cedos record start` begins a log")
            self._driver.record(None)
            return message(log, on=False)
        if request.names and uid not in (0, os.geteuid()):
            raise PrivilegeError("only root may record the names of hosts, which other users visit")
        if log is not None and not log.problem:
            raise HistoryError(f"events are recorded in {log.path} already: `cedos record stop`")
        self._make_room()
        name = request.file or time.strftime("%Y-%m-%d-%H%M%S.log")
        begun = EventLog(self._folder / name, self._driver.controller, names=request.names)
        self._driver.record(begun)
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


def message(log: EventLog, *, on: bool) -> RecordingMessage:
    """Return what clients are told of a log."""
    return RecordingMessage(
        on=on,
        files=tuple(str(each.absolute()) for each in log.files),
        since_unix_s=log.since_unix_s,
        size_bytes=log.size_bytes,
        events=log.events,
        names=log.names,
        problem=log.problem,
    )
