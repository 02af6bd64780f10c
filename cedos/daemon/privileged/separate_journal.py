"""The journal where another process keeps it."""

from collections.abc import Sequence
from pathlib import Path

from cedos.daemon.privileged.process import PrivilegedProcess
from cedos.steer.journal.reading import JournalReading, journal_line, read_records
from cedos.steer.journal.records import Record


class SeparateJournal:
    """An open journal that the privileged part keeps; errors as those of `Journal`."""

    def __init__(self, process: PrivilegedProcess) -> None:
        self._call = process.call
        self._appended: list[Record] = []
        self._call("open_journal")

    @property
    def appended(self) -> Sequence[Record]:
        return self._appended

    def read(self) -> JournalReading:
        lines, foreign, damaged = self._call("read_journal")
        records = [record for line in lines for record in read_records(line).records]
        return JournalReading(records, foreign, damaged)

    def append(self, record: Record) -> None:
        self._call("append_to_journal", journal_line(record))
        self._appended.append(record)

    def remove(self) -> None:
        self._call("remove_journal")

    def put_aside(self) -> Path | None:
        aside: str | None = self._call("put_journal_aside")
        return None if aside is None else Path(aside)

    def close(self) -> None:
        self._call("close_journal")
