"""The use of each resource: odometers in SQLite that survive restarts and reboots.

An odometer only rises. A budget's use is the rise since its period began. Readings are stored every
quarter of an hour (zones differ by such quarters, so periods begin there) and on demand. The
source's own counter is stored with the odometer, in one transaction: whatever ends in between,
nothing is counted twice, and use while the daemon was down is counted later. What a full disk refuses
goes to a reserve, a file that has its room already.

`bytes_by_server` reads the bytes of finished connections by server from the history's file.
"""

import sqlite3
import threading
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from cedos.errors import HistoryError
from cedos.kernel import own_file
from cedos.storage.reserve import ReservedFile

_APPLICATION_ID: Final = 0x63656475  # "cedu"
_SCHEMA: Final = f"""
BEGIN IMMEDIATE;
CREATE TABLE reading (
    key TEXT NOT NULL, at_unix_s REAL NOT NULL, boot TEXT NOT NULL, total REAL NOT NULL);
CREATE INDEX reading_key ON reading (key, total);
CREATE TABLE counter (
    source TEXT PRIMARY KEY, boot TEXT NOT NULL, instance INTEGER NOT NULL, value INTEGER NOT NULL);
PRAGMA application_id = {_APPLICATION_ID};
COMMIT;
"""
# A file that is damaged, or has other columns; not one whose disk is full.
_USELESS: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
_QUARTER_S: Final = 900.0
_KEEP_S: Final = 800 * 86_400.0
# Counters of sources; the one that was read longest ago is forgotten first.
_MOST_COUNTERS: Final = 8192


class Counter(NamedTuple):
    """The state of a source's counter: in which start of the host, of which instance."""

    boot: str
    instance: int
    value: int


class _News(msgspec.Struct):
    """The odometers and counters that the file does not have as they are."""

    totals: dict[str, float]
    counters: dict[str, Counter]


class Usage:
    """The odometers. One thread counts and asks, and never waits for the disk; another may `write`.

    A damaged file, or another program's, is moved aside (`notice` says so) and counting begins anew.
    Errors: HistoryError, the file cannot be opened at all.

    Args:
        path: the file; its folder is made. None: nothing is kept.
        boot: tells this start of the host from others.
        earlier: a file on a disk that takes nothing any more, which is where the counting goes on.
    """

    FILE: Final = "usage.sqlite"
    """The usual name of the file in the state directory."""

    RESERVE: Final = "usage.reserve"
    """The name of the file beside it that a full disk takes, too."""

    def __init__(
        self,
        path: Path | None,
        boot: str = "",
        *,
        read_only: bool = False,
        earlier: Path | None = None,
    ) -> None:
        self.path = path
        # Whether a source has begun to count since the last `write`: a crash now would lose its use.
        self.fresh = False
        self.notice: str | None = None
        self.problem: str | None = None
        self._boot = boot
        self._lock = threading.Lock()
        self._read_only = read_only
        self._earlier = earlier
        self._connection = self._open()
        # While one connection waits for the disk, the other one still reads.
        self._reader = self._connection if path is None or read_only else self._connect()
        self.totals: dict[str, float] = dict(
            self._connection.execute("SELECT key, max(total) FROM reading GROUP BY key")
        )
        # By instance and way, as others may rename an interface. Earlier versions wrote its name.
        self.counters: dict[str, Counter] = {
            f"{counter[1]}/{source.rpartition('/')[2]}": Counter(*counter)
            for source, *counter in self._connection.execute(
                "SELECT source, boot, instance, value FROM counter ORDER BY boot = ?, value",
                (boot,),
            )
        }
        self._written = dict(self.totals), dict(self.counters)
        self._reserve = self._opened_reserve()
        self._take_news()
        if path is None and earlier is not None:
            self.problem = self._keep_news(self.totals, self.counters)
        self._last: dict[str, tuple[int, float, float]] = {}
        self._known: dict[tuple[str, float], float] = {}

    def add(self, key: str, amount: float) -> None:
        """Add to an odometer, in memory until `write`."""
        self.totals[key] = self.totals.get(key, 0.0) + max(amount, 0.0)

    def rise(self, way: str, now: Counter, *, counted_from_start: bool) -> int:
        """Take a reading of an instance's counter of one way; return its rise since the last one.

        A counter begins at nothing with its instance (an interface that was plugged in again) and with
        the host; one that fell without either was reset, or went round at 32 bits, as some drivers' do.

        `counted_from_start`: whether a source that was never seen counts from its own beginning, as we
        were there; otherwise its earlier bytes do not count.
        """
        source = f"{now.instance}/{way}"
        last = self.counters.pop(source, None)
        self.counters[source] = now
        if len(self.counters) > _MOST_COUNTERS:
            del self.counters[next(iter(self.counters))]
        if last is not None and last[:2] == now[:2] and now.value >= last.value:
            return now.value - last.value
        self.fresh = True
        if last is None:
            return now.value if counted_from_start else 0
        around = 2**32 - last.value + now.value
        goes_round = last[:2] == now[:2] and 0 < around < 2**30 and last.value < 2**32
        return around if goes_round else now.value

    def sum_since(self, keys: Iterable[str], begin_s: float) -> float:
        """Return the use since an instant (seconds since the epoch)."""
        return sum(self.totals.get(key, 0.0) - self._at(key, begin_s) for key in keys)

    def begins_s(self) -> float | None:
        """When counting began, as far as it is kept; None: nothing was counted yet."""
        try:
            (first,) = self._reader.execute("SELECT min(at_unix_s) FROM reading").fetchone()
        except sqlite3.Error:
            return None
        return None if first is None else float(first)

    def write(self, now_s: float, *, mark: bool = False) -> None:
        """Write everything; never raises: `problem` says why the disk failed.

        `mark`: whether this instant's readings are to be kept for good, as a budget begins now.
        """
        with self._lock:
            self.fresh = False
            totals, counters = dict(self.totals), dict(self.counters)
            try:
                with self._connection as connection:
                    connection.execute("BEGIN IMMEDIATE")
                    for key, total in totals.items():
                        self._read(connection, key, now_s, total, mark=mark)
                    connection.execute("DELETE FROM counter")
                    connection.executemany(
                        "INSERT INTO counter VALUES (?, ?, ?, ?)",
                        [(source, *counter) for source, counter in counters.items()],
                    )
                    connection.execute(
                        "DELETE FROM reading WHERE at_unix_s < ? AND boot != ?",
                        (now_s - _KEEP_S, self._boot),
                    )
            except sqlite3.Error as error:
                self._last.clear()
                why = f"what is used cannot be kept in {self.path} ({error})"
                self.problem = f"{why}; {self._keep_news(totals, counters)}"
                return
            if self.path is None and self._earlier is not None:
                self.problem = self._keep_news(totals, counters)
                return
            self.problem = None
            self._written = totals, counters
            if self._reserve is not None and self._reserve.content:
                with suppress(OSError):  # it has nothing then that the file has not
                    self._reserve.write(b"")

    def on_clock_jump(self, by_s: float) -> None:
        """Move the stamps of this start of the host after the clock was set.

        A clock that is set right was wrong before, so its stamps were, too. A clock that is set
        wrong, and right again, makes two jumps that undo each other.
        """
        with self._lock:
            self._known.clear()
            self._last.clear()
            with suppress(sqlite3.Error), self._connection as connection:
                connection.execute(
                    "UPDATE reading SET at_unix_s = at_unix_s + ? WHERE boot = ?",
                    (by_s, self._boot),
                )

    def close(self) -> None:
        if self._reserve is not None:
            self._reserve.close()
        self._connection.close()
        self._reader.close()

    def _opened_reserve(self) -> ReservedFile | None:
        beside = self.path or self._earlier
        if beside is None:
            return None
        for read_only in (False, True)[self._read_only :]:
            with suppress(OSError):
                return ReservedFile(beside.with_name(self.RESERVE), read_only=read_only)
        return None

    def _take_news(self) -> None:
        """Take what the reserve has of later than the file: an odometer only rises."""
        if self._reserve is None or not self._reserve.content:
            return
        try:
            news = msgspec.json.decode(self._reserve.content, type=_News)
        except (ValueError, RecursionError):
            return
        if any(total > self.totals.get(key, 0.0) for key, total in news.totals.items()):
            self.totals |= {
                key: max(total, self.totals.get(key, 0.0)) for key, total in news.totals.items()
            }
            self.counters |= news.counters

    def _keep_news(self, totals: dict[str, float], counters: dict[str, Counter]) -> str:
        """Put what the file does not have into the reserve; say what becomes of it."""
        news = _News(
            {key: total for key, total in totals.items() if total != self._written[0].get(key)},
            {key: each for key, each in counters.items() if each != self._written[1].get(key)},
        )
        try:
            if self._reserve is None:
                raise OSError("nor could a file be made beside it")
            self._reserve.write(msgspec.json.encode(news))
        except OSError as error:
            return f"what is used from now on counts until the daemon ends ({error})"
        return f"{self._reserve.path} keeps it meanwhile"

    def _at(self, key: str, begin_s: float) -> float:
        """Return an odometer at an instant; between two readings it is taken to rise evenly."""
        if (known := self._known.get((key, begin_s))) is not None:
            return known
        try:
            before, after = (
                self._reader.execute(
                    f"SELECT at_unix_s, total, boot FROM reading WHERE key = ? AND {which} LIMIT 1",  # noqa: S608
                    (key, begin_s),
                ).fetchone()
                for which in ("at_unix_s <= ? ORDER BY total DESC", "at_unix_s > ? ORDER BY total")
            )
        except sqlite3.Error:
            return 0.0  # all that was ever used counts then: rather too much than too little
        total: float = before[1] if before else 0.0
        # What came with another start of the host came after that, and not evenly since the last one.
        if before and after and before[2] == after[2]:
            share = (begin_s - before[0]) / (after[0] - before[0])
            total += share * (after[1] - before[1])
        if after:  # nothing that comes later changes what was then
            if len(self._known) > 1000:
                self._known.clear()
            self._known[key, begin_s] = total
        return total

    def _read(
        self, connection: sqlite3.Connection, key: str, now_s: float, total: float, *, mark: bool
    ) -> None:
        quarter = now_s // _QUARTER_S
        row, last_quarter, last_total = self._last.get(key, (0, -1.0, -1.0))
        if total == last_total and not mark:
            return
        if row and quarter == last_quarter and not mark:
            connection.execute(
                "UPDATE reading SET at_unix_s = ?, total = ? WHERE rowid = ?", (now_s, total, row)
            )
        else:
            inserted = connection.execute(
                "INSERT INTO reading VALUES (?, ?, ?, ?)", (key, now_s, self._boot, total)
            )
            row = int(inserted.lastrowid or 0)
        # A mark is not written over, nor is the first reading, which says when counting began.
        lasts = mark or key not in self._last
        self._last[key] = (0 if lasts else row, quarter, total)

    def _open(self) -> sqlite3.Connection:
        for last in (False, True):
            try:
                return self._connect()
            except OSError as error:
                raise HistoryError(f"{self.path}: {error}") from error
            except (sqlite3.Error, HistoryError) as error:
                code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
                if last or self._read_only or code not in _USELESS:
                    raise HistoryError(f"{self.path}: {error}") from error
                self._move_aside(str(error))
        raise AssertionError

    def _connect(self) -> sqlite3.Connection:
        if self.path is None:
            if self._earlier is not None:
                with suppress(sqlite3.Error, OSError, HistoryError):
                    return _copy(self._earlier)
            kept = _in_memory()
            _prepare(kept)
            return kept
        if not self._read_only:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        how = "mode=ro" if self._read_only else "mode=rw"
        with own_file.database(self.path, how) as connection:
            _prepare(connection)
        return connection

    def _move_aside(self, why: str) -> None:
        assert self.path is not None
        aside = own_file.free_name_beside(self.path)
        try:
            self.path.rename(aside)
            for name in (f"{self.path.name}-wal", f"{self.path.name}-shm", self.RESERVE):
                self.path.with_name(name).unlink(missing_ok=True)
        except OSError as error:
            raise HistoryError(f"{self.path}: {why}, and cannot be moved: {error}") from error
        self.notice = f"{self.path}: {why}; it was moved to {aside}, and counting begins anew"


def _in_memory() -> sqlite3.Connection:
    return sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)


def _copy(path: Path) -> sqlite3.Connection:
    """Copy a file that no process writes. SQLite itself would write beside it, which a full disk refuses.

    A daemon that was killed has left its last writes beside the file, and what SQLite reads them with.
    """
    left = path.with_name(f"{path.name}-wal")
    how = "mode=ro" if left.exists() and left.stat().st_size else "immutable=1"
    copy = _in_memory()
    try:
        with own_file.database(path, how) as found, closing(found):
            found.backup(copy)
        _prepare(copy)
    except BaseException:
        copy.close()
        raise
    return copy


def _prepare(connection: sqlite3.Connection) -> None:
    owner = connection.execute("PRAGMA application_id").fetchone()[0]
    begun = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    if begun and owner != _APPLICATION_ID:
        raise HistoryError("is another program's database")
    own_file.write_ahead(connection)
    if not begun:
        connection.executescript(_SCHEMA)
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("SELECT key, at_unix_s, boot, total FROM reading LIMIT 1").fetchone()
    connection.execute("SELECT source, boot, instance, value FROM counter LIMIT 1").fetchone()


# A name, else an address, and the gateway through which it was reached. None: directly.
Server = tuple[str, str | None]

_FIRST = (
    "SELECT min(ended_unix_s), min(id) > 1 FROM flow",
    "SELECT min(ended_unix_s), min(id) > 1 FROM carried",
)
_DIRECT = """
SELECT coalesce(server_name, remote, '') AS server, path.value ->> 'network' AS network,
    sum((path.value ->> 'bytes_down') + (path.value ->> 'bytes_up')) AS carried
FROM flow, json_each(flow.record, '$.subflows') AS path
WHERE ended_unix_s >= ? AND network IS NOT NULL
GROUP BY server, network HAVING carried > 0 ORDER BY carried DESC
"""
_THROUGH_GATEWAYS = """
SELECT server, gateway, network.key, cast(total(network.value) AS INTEGER) AS bytes
FROM carried, json_each(carried.bytes_by_network) AS network
WHERE ended_unix_s >= ?
GROUP BY server, gateway, network.key HAVING bytes > 0 ORDER BY bytes DESC
"""
_ADDRESSES = """
SELECT DISTINCT gateway, address.value FROM carried, json_each(carried.addresses) AS address
"""


class BytesByServer(NamedTuple):
    """The servers of the history."""

    # Connections that ended from then on are all remembered; None: there are none.
    first_unix_s: float | None
    # By server and network the bytes. Those of connections through a gateway are among its own, too:
    # the session's connections carried them.
    servers: dict[Server, dict[str, int]]
    addresses: dict[str, set[str]]  # by gateway, where its sessions' connections led


def bytes_by_server(path: Path, since_unix_s: float) -> BytesByServer:
    """Return the bytes of connections that ended since an instant.

    Reads the disk, beside the daemon that writes it. A file that is not there, or cannot be read, knows
    of none.
    """
    servers: dict[Server, dict[str, int]] = {}
    addresses: dict[str, set[str]] = {}
    try:
        with own_file.database(path, "mode=ro") as connection, closing(connection):
            first = _complete_since(connection)
            for server, network, carried in connection.execute(_DIRECT, (since_unix_s,)):
                servers.setdefault((server, None), {})[network] = carried
            for server, gateway, network, carried in connection.execute(
                _THROUGH_GATEWAYS, (since_unix_s,)
            ):
                servers.setdefault((server, gateway), {})[network] = carried
            for gateway, address in connection.execute(_ADDRESSES):
                addresses.setdefault(gateway, set()).add(address)
    except (OSError, sqlite3.Error):
        return BytesByServer(None, {}, {})
    return BytesByServer(first, servers, addresses)


def _complete_since(connection: sqlite3.Connection) -> float | None:
    """From when on nothing was forgotten, in either table; else when the oldest one ended."""
    tables: list[tuple[float | None, int | None]] = [
        connection.execute(sql).fetchone() for sql in _FIRST
    ]
    known = [(first, pruned) for first, pruned in tables if first is not None]
    if forgetful := [first for first, pruned in known if pruned]:
        return max(forgetful)
    return min((first for first, _ in known), default=None)
