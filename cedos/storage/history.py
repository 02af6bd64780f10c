"""The history: decisions, finished flows and carried connections, in SQLite (WAL).

A decision must never wait for the disk. `add_*` only appends to a list in memory; `flush`, which
the daemon calls about once a second in a thread, writes the list in one transaction. If the disk is
full or the file cannot be used, the newest records stay in memory, `problem` says why, and a later
call tries again.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Generic, TypeVar

from cedos.errors import HistoryError
from cedos.model import CarriedConnection, Decision, FlowRecord
from cedos.storage.history_store import (
    CARRIED,
    DECISIONS,
    FLOWS,
    HistoryTable,
    Matcher,
    Row,
    Store,
    carried_of,
    carried_row,
    decision_of,
    decision_row,
    decision_target,
    flow_of,
    flow_row,
    flow_target,
    matcher,
)

_Record = TypeVar("_Record")
_Result = TypeVar("_Result")


class _Waiting(Generic[_Record]):
    """The newest records of one kind that are not on disk; the oldest go when there are too many."""

    def __init__(self, bound: int) -> None:
        self._records: deque[_Record] = deque(maxlen=bound)
        self._lock = threading.Lock()
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: _Record) -> None:
        with self._lock:
            self.dropped += len(self._records) == self._records.maxlen
            self._records.append(record)

    def all(self) -> tuple[_Record, ...]:
        with self._lock:
            return tuple(self._records)

    def take(self) -> tuple[_Record, ...]:
        with self._lock:
            records = tuple(self._records)
            self._records.clear()
            return records

    def put_back(self, records: Iterable[_Record]) -> None:
        """Put the records of `take` back before those that came since."""
        with self._lock:
            kept = (*records, *self._records)
            self._records.clear()
            self._records.extend(kept)
            self.dropped += len(kept) - len(self._records)


class History:
    """Decisions, flows and carried connections, newest first. Any thread may call any method.

    Nothing here raises for want of a disk: a file that is damaged or not ours is moved aside
    (`notice` says so), and while nothing can be written the history lives in memory (`problem`).
    """

    def __init__(
        self,
        path: Path,  # the file; its folder is made
        *,
        # Records of each kind to keep; the oldest go. 20,000 take about 50 MB.
        max_rows: int = 200_000,
        # Records of each kind to keep in memory while the disk is of no use.
        max_waiting: int = 1_000,
        retry_s: float = 30.0,  # seconds from a failure to the next try
        clock: Callable[[], float] = time.monotonic,  # monotonic seconds
    ) -> None:
        """Open or create the file."""
        # What keeps the history from the disk right now, in words; None: nothing.
        self.problem: str | None = None
        self._store = Store(path)
        self._disk = threading.Lock()
        self._max_rows = max_rows
        self._retry_s = retry_s
        self._retry_at_s = 0.0
        self._clock = clock
        self._decisions = _Waiting[Decision](max_waiting)
        self._flows = _Waiting[FlowRecord](max_waiting)
        self._carried = _Waiting[CarriedConnection](max_waiting)
        with self._disk:
            self._highest_number = self._attempt(self._store.highest_number, 0)

    @property
    def notice(self) -> str | None:
        """The fate of an earlier file, in words; None: nothing happened."""
        return self._store.notice

    @property
    def waiting(self) -> int:
        """The number of records that are in memory only."""
        return len(self._decisions) + len(self._flows) + len(self._carried)

    @property
    def dropped(self) -> int:
        """The number of records that were lost because the disk failed for too long."""
        return self._decisions.dropped + self._flows.dropped + self._carried.dropped

    @property
    def next_number(self) -> int:
        """The decision number at which a new daemon continues: one more than the highest."""
        return self._highest_number + 1

    def add_decision(self, decision: Decision) -> None:
        """Store a decision in memory, which takes about a microsecond; the disk comes later."""
        self._highest_number = max(self._highest_number, decision.number)
        self._decisions.add(decision)

    def add_flow(self, flow: FlowRecord) -> None:
        """Store a finished flow in memory, which takes about a microsecond; the disk comes later."""
        self._flows.add(flow)

    def add_carried(self, carried: CarriedConnection) -> None:
        """Store a carried connection in memory, which takes about a microsecond; the disk comes later."""
        self._carried.add(carried)

    def flush(self) -> None:
        """Write the waiting records and prune the oldest rows; blocks on the disk."""
        with self._disk:
            if self.problem is not None and self._clock() < self._retry_at_s:
                return
            decisions, flows = self._decisions.take(), self._flows.take()
            carried = self._carried.take()
            if not (decisions or flows or carried) and self.problem is None:
                return
            batches = (
                (DECISIONS, [decision_row(each) for each in decisions]),
                (FLOWS, [flow_row(each) for each in flows]),
                (CARRIED, [carried_row(each) for each in carried]),
            )

            def write() -> bool:
                self._store.write(batches, self._max_rows)
                return True

            if self._attempt(write, False):
                self.problem = None
            else:
                self._decisions.put_back(decisions)
                self._flows.put_back(flows)
                self._carried.put_back(carried)

    def decisions(
        self, limit: int = 20, *, flow: str | None = None, number: int | None = None
    ) -> list[Decision]:
        """Return the newest decisions; reads the disk.

        `flow`: only those about this flow (see `history_rows.matcher`).
        """
        matches = _is_any if flow is None else matcher(flow)

        def is_wanted(decision: Decision) -> bool:
            known = number is None or decision.number == number
            return known and matches(*decision_target(decision))

        with self._disk:
            rows = self._read(DECISIONS, matches, number, limit)
            return _newest_records(self._decisions.all(), is_wanted, rows, decision_of, limit)

    def flows(
        self, limit: int = 20, *, flow: str | None = None, decision: int | None = None
    ) -> list[FlowRecord]:
        """Return the newest finished flows; reads the disk.

        `flow`: only this one (see `history_rows.matcher`).
        """
        matches = _is_any if flow is None else matcher(flow)

        def is_wanted(record: FlowRecord) -> bool:
            known = decision is None or record.decision == decision
            return known and matches(*flow_target(record))

        with self._disk:
            rows = self._read(FLOWS, matches, decision, limit)
            return _newest_records(self._flows.all(), is_wanted, rows, flow_of, limit)

    def carried_connections(
        self, limit: int = 20, *, server: Callable[[str, int], bool] = lambda *_: True
    ) -> list[CarriedConnection]:
        """Return the newest connections carried through a gateway; reads the disk.

        `server`: only those for whose server and port this holds.
        """

        def matches(_remote: str | None, port: int | None, name: str | None) -> bool:
            return name is not None and port is not None and server(name, port)

        def is_wanted(record: CarriedConnection) -> bool:
            return server(record.server, record.port)

        with self._disk:
            rows = self._read(CARRIED, matches, None, limit)
            return _newest_records(self._carried.all(), is_wanted, rows, carried_of, limit)

    def close(self) -> None:
        self._retry_at_s = 0.0
        self.flush()
        with self._disk:
            self._store.close()

    def _read(
        self, table: HistoryTable, matches: Matcher, number: int | None, limit: int
    ) -> list[Row]:
        """Return the rows of the file, even while it cannot be written."""
        return self._attempt(lambda: self._store.read(table, matches, number, limit), [])

    def _attempt(self, action: Callable[[], _Result], otherwise: _Result) -> _Result:
        try:
            return action()
        except HistoryError as error:
            self.problem = (
                f"the history {self._store.path} cannot be used ({error}); the newest records are "
                f"kept in memory, and the disk is tried again every {self._retry_s:g} s"
            )
            self._retry_at_s = self._clock() + self._retry_s
            return otherwise


def _newest_records(
    waiting: Sequence[_Record],
    wanted: Callable[[_Record], bool],
    rows: Sequence[Row],
    of_row: Callable[[Row], _Record],
    limit: int,
) -> list[_Record]:
    found = list(islice(filter(wanted, reversed(waiting)), limit))
    for row in rows[: limit - len(found)]:
        # One that does not read is damage that SQLite has no sum over; all others are as they were.
        with suppress(LookupError, TypeError, ValueError, AttributeError, RecursionError):
            found.append(of_row(row))
    return found


def _is_any(_remote: str | None, _port: int | None, _server_name: str | None) -> bool:
    return True
