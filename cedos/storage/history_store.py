"""The history's SQLite file: opened with suspicion, written in one transaction, moved aside if bad."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from cedos.errors import HistoryError
from cedos.kernel import own_file
from cedos.storage import whole_file
from cedos.storage.history_rows import Matcher

SCHEMA_VERSION = 2
_APPLICATION_ID = 0x6365646F  # "cedo": tells our files from those of others
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE decision (
    id INTEGER PRIMARY KEY AUTOINCREMENT, number INTEGER NOT NULL, made_unix_s REAL NOT NULL,
    remote TEXT, remote_port INTEGER, server_name TEXT, direction TEXT NOT NULL,
    size_bytes INTEGER NOT NULL, choice TEXT NOT NULL, objective TEXT NOT NULL,
    reason TEXT NOT NULL, transfer TEXT NOT NULL, context TEXT NOT NULL, evaluations TEXT NOT NULL);
CREATE INDEX decision_number ON decision (number);
CREATE TABLE flow (
    id INTEGER PRIMARY KEY AUTOINCREMENT, ended_unix_s REAL NOT NULL, remote TEXT,
    remote_port INTEGER, server_name TEXT, decision INTEGER, token INTEGER,
    bytes_down INTEGER NOT NULL, bytes_up INTEGER NOT NULL, record TEXT NOT NULL);
CREATE INDEX flow_decision ON flow (decision);
CREATE TABLE carried (
    id INTEGER PRIMARY KEY AUTOINCREMENT, ended_unix_s REAL NOT NULL, server TEXT NOT NULL,
    port INTEGER NOT NULL, gateway TEXT NOT NULL, addresses TEXT NOT NULL,
    bytes_down INTEGER NOT NULL, bytes_up INTEGER NOT NULL, decision INTEGER,
    bytes_by_network TEXT NOT NULL);
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
COMMIT;
"""

Row = tuple[Any, ...]


class HistoryTable(NamedTuple):
    """The statements of one table; rows are as `history_rows` makes them."""

    insert: str
    prune: str
    newest: str
    newest_of_number: str | None = None


DECISIONS = HistoryTable(
    "INSERT INTO decision VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    "DELETE FROM decision WHERE id <= (SELECT max(id) FROM decision) - ?",
    "SELECT * FROM decision WHERE matches(remote, remote_port, server_name)"
    " ORDER BY id DESC LIMIT ?",
    "SELECT * FROM decision WHERE matches(remote, remote_port, server_name) AND number = ?"
    " ORDER BY id DESC LIMIT ?",
)
FLOWS = HistoryTable(
    "INSERT INTO flow VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    "DELETE FROM flow WHERE id <= (SELECT max(id) FROM flow) - ?",
    "SELECT * FROM flow WHERE matches(remote, remote_port, server_name) ORDER BY id DESC LIMIT ?",
    "SELECT * FROM flow WHERE matches(remote, remote_port, server_name) AND decision = ?"
    " ORDER BY id DESC LIMIT ?",
)
CARRIED = HistoryTable(
    "INSERT INTO carried VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    "DELETE FROM carried WHERE id <= (SELECT max(id) FROM carried) - ?",
    "SELECT * FROM carried WHERE matches(NULL, port, server) ORDER BY id DESC LIMIT ?",
)
_HIGHEST_NUMBER = "SELECT coalesce(max(number), 0) FROM decision"


class Store:
    """One SQLite file in WAL mode. Not for several threads at once.

    A file that is damaged or not ours is moved aside and a new one begun; `notice` says so. Every
    other failure is a HistoryError; the next call tries to open the file again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notice: str | None = None
        self._connection: sqlite3.Connection | None = None

    def write(self, batches: Sequence[tuple[HistoryTable, Sequence[Row]]], max_rows: int) -> None:
        """Adds rows to tables and prunes each to `max_rows`: all of it or nothing.

        Errors: HistoryError, nothing was written.
        """
        for last in (False, True):
            connection = self._opened()
            try:
                with connection:
                    connection.execute("BEGIN IMMEDIATE")
                    for table, rows in batches:
                        connection.executemany(table.insert, rows)
                        connection.execute(table.prune, (max_rows,))
            except sqlite3.Error as error:
                self._failed(error, last=last)
            else:
                break

    def read(
        self, table: HistoryTable, matches: Matcher, number: int | None, limit: int
    ) -> list[Row]:
        """The newest rows (without their ids) that match; none where the file had to be renewed.

        Errors: HistoryError, the file cannot be read.
        """
        connection = self._opened()
        try:
            connection.create_function("matches", 3, matches, deterministic=True)
            if number is None or table.newest_of_number is None:
                found = connection.execute(table.newest, (limit,))
            else:
                found = connection.execute(table.newest_of_number, (number, limit))
            return [row[1:] for row in found]
        except sqlite3.Error as error:
            self._failed(error, last=False)
            return []

    def highest_number(self) -> int:
        """The highest decision number, 0 where there is none.

        Errors: HistoryError, the file cannot be read.
        """
        connection = self._opened()
        try:
            return int(connection.execute(_HIGHEST_NUMBER).fetchone()[0])
        except sqlite3.Error as error:
            self._failed(error, last=False)
            return 0

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _opened(self) -> sqlite3.Connection:
        for last in (False, True):
            if self._connection is None:
                try:
                    self._connection = self._open()
                except OSError as error:
                    raise HistoryError(str(error)) from error
                except sqlite3.Error as error:
                    self._failed(error, last=last)
        assert self._connection is not None
        return self._connection

    def _open(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Readable by its owner only: it tells where one went.
        own_file.ensure(self.path)
        connection = sqlite3.connect(
            self.path, timeout=2.0, isolation_level=None, check_same_thread=False
        )
        try:
            foreign = _prepare(connection)
        except sqlite3.Error:
            connection.close()
            raise
        if foreign is None:
            return connection
        connection.close()
        self._move_aside(foreign)
        return self._open()

    def _failed(self, error: sqlite3.Error, *, last: bool) -> None:
        """Moves a damaged file aside; any other failure, or a second one, is the caller's."""
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if last or code not in _DAMAGED:
            if code != sqlite3.SQLITE_FULL:  # what is there can still be read from a full disk
                self.close()
            raise HistoryError(str(error)) from error
        self._move_aside("is damaged or no database")

    def _move_aside(self, why: str) -> None:
        self.close()
        aside = whole_file.aside(self.path)
        try:
            self.path.rename(aside)
            for suffix in ("-wal", "-shm"):
                beside = self.path.with_name(self.path.name + suffix)
                if beside.exists():
                    beside.rename(aside.with_name(aside.name + suffix))
        except OSError as error:
            raise HistoryError(f"{self.path} {why}, and moving it aside failed: {error}") from error
        self.notice = f"{self.path} {why}; it was moved to {aside}, and a new history begun"


def refuse_others(path: Path) -> None:
    """HistoryError: there is no such file, or none that `Store` would go on with. Changes nothing."""
    if not path.is_file():
        raise HistoryError(f"there is no history {path}")
    try:
        with closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        ) as connection:
            owner, version = (
                int(connection.execute(f"PRAGMA {name}").fetchone()[0])
                for name in ("application_id", "user_version")
            )
    except sqlite3.Error as error:
        raise HistoryError(f"{path} cannot be read as a history: {error}") from error
    if owner != _APPLICATION_ID:
        raise HistoryError(f"{path} is no history of the daemon")
    if version != SCHEMA_VERSION:
        raise HistoryError(f"{path} has schema {version} and this cedos knows {SCHEMA_VERSION}")


def _prepare(connection: sqlite3.Connection) -> str | None:
    """Makes or checks the schema; says what is wrong with a database that is not ours."""

    def one(sql: str) -> int:
        return int(connection.execute(sql).fetchone()[0])

    owner, version = one("PRAGMA application_id"), one("PRAGMA user_version")
    if owner == 0 and one("SELECT count(*) FROM sqlite_schema") == 0:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(_SCHEMA)
    elif owner != _APPLICATION_ID:
        return "is another program's database"
    elif version != SCHEMA_VERSION:
        return f"has schema {version} and this cedos knows {SCHEMA_VERSION}"
    # One fsync per checkpoint: losing power may cost the last seconds, never the file.
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA journal_size_limit = 4194304")
    one(_HIGHEST_NUMBER)
    return None
