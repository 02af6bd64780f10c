"""The interface of a journal to steering: `Journal`, or one that another process keeps."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from cedos.steer.journal.reading import JournalReading
from cedos.steer.journal.records import Record


class JournalKeeper(Protocol):
    """Errors as for `Journal`."""

    @property
    def appended(self) -> Sequence[Record]:
        """Return what has been written since it was opened."""

    def read(self) -> JournalReading: ...

    def append(self, record: Record) -> None:
        """Return when the record is on the disk."""

    def remove(self) -> None: ...

    def put_aside(self) -> Path | None: ...

    def close(self) -> None: ...
