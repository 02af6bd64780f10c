"""The history's SQLite file: its rows, opened with suspicion, written in one transaction.

A file that is damaged or of another program is moved aside. Scalars that queries use have columns
of their own; the rest is JSON. To stay compact (a decision takes about 1.2 KB) indicators and
evaluations are arrays:

- `context`: `{"at_s": 1.0, "networks": {NETWORK: {INDICATOR: [value, measured_at_s, flags]}}}`,
  where flags is 1 for active, 2 for synthetic, 3 for both;
- `evaluations`: `[[kind, [network, ...], time_s, time_low_s, time_high_s, energy_j, metered_bytes,
  cost], ...]`.

JSON has no infinity and no NaN; an infinite cost and an unknown indicator become `null`.
"""

import sqlite3
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from math import inf, nan
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from cedos.errors import HistoryError
from cedos.kernel import own_file
from cedos.model import (
    CarriedConnection,
    Context,
    Decision,
    Direction,
    Evaluation,
    FlowKey,
    FlowRecord,
    Indicator,
    Label,
    Prediction,
    SizeEstimate,
    Strategy,
    StrategyKind,
    Subflow,
    Transfer,
)

DECISION_COLUMNS = (
    "number", "made_unix_s", "remote", "remote_port", "server_name", "direction", "size_bytes",
    "choice", "objective", "reason", "transfer", "context", "evaluations",
)  # fmt: skip
FLOW_COLUMNS = (
    "ended_unix_s", "remote", "remote_port", "server_name", "decision", "token", "bytes_down",
    "bytes_up", "record",
)  # fmt: skip
CARRIED_COLUMNS = (
    "ended_unix_s", "server", "port", "gateway", "addresses", "bytes_down", "bytes_up", "decision",
    "bytes_by_network",
)  # fmt: skip

Matcher = Callable[[str | None, int | None, str | None], bool]


def decision_row(decision: Decision) -> tuple[Any, ...]:
    """Return a decision as values of `DECISION_COLUMNS`."""
    transfer = decision.transfer
    context = {
        "at_s": decision.context.at_s,
        "networks": {
            network: {
                name: (each.value, each.measured_at_s, each.active + 2 * each.synthetic)
                for name, each in indicators.items()
            }
            for network, indicators in decision.context.networks.items()
        },
    }
    evaluations = [
        (*_strategy_items(each.strategy), each.time_s, each.time_low_s, each.time_high_s,
         each.energy_j, each.metered_bytes, each.cost)
        for each in decision.evaluations
    ]  # fmt: skip
    return (
        decision.number,
        decision.made_unix_s,
        *decision_target(decision),
        str(transfer.direction),
        transfer.size.median_bytes,
        _text(_strategy_items(decision.choice)),
        decision.objective,
        decision.reason,
        _text(transfer),
        _text(context),
        _text(evaluations),
    )


def decision_of(row: Sequence[Any]) -> Decision:
    """Return the decision of a row of `decision_row`."""
    columns = dict(zip(DECISION_COLUMNS, row, strict=True))
    context = msgspec.json.decode(columns["context"])
    return Decision(
        number=columns["number"],
        made_unix_s=columns["made_unix_s"],
        transfer=_transfer(msgspec.json.decode(columns["transfer"])),
        context=Context(
            context["at_s"],
            {
                network: {
                    name: Indicator(_float(value, nan), at_s, bool(flags & 1), bool(flags & 2))
                    for name, (value, at_s, flags) in indicators.items()
                }
                for network, indicators in context["networks"].items()
            },
        ),
        evaluations=tuple(
            Evaluation(_strategy(each[:2]), *(_float(number, inf) for number in each[2:]))
            for each in msgspec.json.decode(columns["evaluations"])
        ),
        choice=_strategy(msgspec.json.decode(columns["choice"])),
        objective=columns["objective"],
        reason=columns["reason"],
    )


def flow_row(flow: FlowRecord) -> tuple[Any, ...]:
    """Return a finished flow as values of `FLOW_COLUMNS`."""
    return (
        flow.ended_unix_s,
        *flow_target(flow),
        flow.decision,
        flow.token,
        sum(subflow.bytes_down for subflow in flow.subflows),
        sum(subflow.bytes_up for subflow in flow.subflows),
        _text(flow),
    )


def flow_of(row: Sequence[Any]) -> FlowRecord:
    """Return the flow of a row of `flow_row`."""
    record = msgspec.json.decode(row[-1])
    size = record.pop("size")
    prediction = record.pop("prediction", None)
    return FlowRecord(
        subflows=tuple(
            Subflow(key=_key(each.pop("key")), **each) for each in record.pop("subflows")
        ),
        size=None if size is None else SizeEstimate(**size),
        switches=tuple(
            (at_s, _strategy(strategy.values())) for at_s, strategy in record.pop("switches")
        ),
        prediction=None if prediction is None else msgspec.convert(prediction, Prediction),
        **record,
    )


def carried_row(carried: CarriedConnection) -> tuple[Any, ...]:
    """Return a carried connection as values of `CARRIED_COLUMNS`."""
    return (
        carried.ended_unix_s,
        carried.server,
        carried.port,
        carried.gateway,
        _text(carried.addresses),
        carried.bytes_down,
        carried.bytes_up,
        carried.decision,
        _text(carried.bytes_by_network),
    )


def carried_of(row: Sequence[Any]) -> CarriedConnection:
    """Return the carried connection of a row of `carried_row`."""
    columns = dict(zip(CARRIED_COLUMNS, row, strict=True))
    return CarriedConnection(
        addresses=tuple(msgspec.json.decode(columns.pop("addresses"))),
        bytes_by_network=msgspec.json.decode(columns.pop("bytes_by_network")),
        **columns,
    )


def decision_target(decision: Decision) -> tuple[str | None, int | None, str | None]:
    """Return the search keys of a decision: remote address, remote port, server name."""
    flow = decision.transfer.flow
    address = (None, None) if flow is None else (str(flow.remote), flow.remote_port)
    return (*address, decision.transfer.server_name)


def flow_target(flow: FlowRecord) -> tuple[str | None, int | None, str | None]:
    """Return the search keys of a flow: remote address, remote port, server name."""
    if not flow.subflows:
        return None, None, flow.server_name
    key = flow.subflows[0].key
    return str(key.remote), key.remote_port, flow.server_name


def matcher(flow: str) -> Matcher:
    """Return a function that says whether a target is the one that a person means.

    Args:
        flow: a part of a server name or of an address, a port (`443` or `:443`), or both
            (`example.org:443`, `[2001:db8::1]:443`); case does not matter.
    """
    wanted = flow.strip().lower()
    host, port = wanted, None
    head, colon, tail = wanted.rpartition(":")
    if (colon or not head) and tail.isdecimal() and (":" not in head or head.endswith("]")):
        host, port = head, int(tail)
    host = host.strip("[]")

    def matches(remote: str | None, remote_port: int | None, server_name: str | None) -> bool:
        if port is not None and port != remote_port:
            return False
        return not host or host in (remote or "") or host in (server_name or "").lower()

    return matches


def _text(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()


def _strategy_items(strategy: Strategy) -> tuple[str, tuple[str, ...]]:
    return strategy.kind.value, strategy.networks


def _strategy(items: Any) -> Strategy:
    kind, networks = items
    return Strategy(StrategyKind(kind), tuple(networks))


def _float(value: float | None, unknown: float) -> float:
    return unknown if value is None else value


def _transfer(record: dict[str, Any]) -> Transfer:
    flow = record["flow"]
    return Transfer(
        size=SizeEstimate(**record["size"]),
        direction=Direction(record["direction"]),
        label=msgspec.convert(record["label"], Label),
        deadline_s=record["deadline_s"],
        flow=None if flow is None else _key(flow),
        server_name=record["server_name"],
    )


def _key(record: dict[str, Any]) -> FlowKey:
    record["local"] = ip_address(record["local"])
    record["remote"] = ip_address(record["remote"])
    return FlowKey(**record)


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
# A number that is damaged may be a text, or one with no number behind it.
_HIGHEST_NUMBER = "SELECT coalesce(max(number), 0) FROM decision WHERE number < 1000000000000000"


class Store:
    """An SQLite file in WAL mode. Not for several threads at once.

    A file that is damaged or not ours is moved aside and a new one begun; `notice` says so. Every
    other failure is a HistoryError; the next call tries to open the file again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notice: str | None = None
        self._connection: sqlite3.Connection | None = None

    def write(self, batches: Sequence[tuple[HistoryTable, Sequence[Row]]], max_rows: int) -> None:
        """Add rows to tables and prune each to `max_rows`: all of it or nothing.

        Errors: HistoryError, nothing was written.
        """
        for last in (False, True):
            connection = self._open_or_replace()
            try:
                with connection:
                    connection.execute("BEGIN IMMEDIATE")
                    for table, rows in batches:
                        connection.executemany(table.insert, rows)
                        connection.execute(table.prune, (max_rows,))
            except sqlite3.Error as error:
                self._move_aside_or_raise(error, last=last)
            else:
                break

    def read(
        self, table: HistoryTable, matches: Matcher, number: int | None, limit: int
    ) -> list[Row]:
        """Return the newest matching rows, without ids; none if the file had to be renewed.

        Errors: HistoryError, the file cannot be read.
        """
        connection = self._open_or_replace()
        try:
            connection.create_function("matches", 3, matches, deterministic=True)
            if number is None or table.newest_of_number is None:
                found = connection.execute(table.newest, (limit,))
            else:
                found = connection.execute(table.newest_of_number, (number, limit))
            return [row[1:] for row in found]
        except sqlite3.Error as error:
            self._move_aside_or_raise(error, last=False)
            return []

    def highest_number(self) -> int:
        """Return the highest decision number, 0 if there is none.

        Errors: HistoryError, the file cannot be read.
        """
        connection = self._open_or_replace()
        try:
            return int(connection.execute(_HIGHEST_NUMBER).fetchone()[0])
        except sqlite3.Error as error:
            self._move_aside_or_raise(error, last=False)
            return 0

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _open_or_replace(self) -> sqlite3.Connection:
        for last in (False, True):
            if self._connection is None:
                try:
                    self._connection = self._open()
                except OSError as error:
                    raise HistoryError(str(error)) from error
                except sqlite3.Error as error:
                    self._move_aside_or_raise(error, last=last)
        assert self._connection is not None
        return self._connection

    def _open(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Readable by its owner only: it tells where one went.
        with own_file.database(self.path) as connection:
            foreign = _prepare(connection)
        if foreign is None:
            return connection
        connection.close()
        self._move_aside(foreign)
        return self._open()

    def _move_aside_or_raise(self, error: sqlite3.Error, *, last: bool) -> None:
        """Move a damaged file aside; raise any other failure, or a second one."""
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if last or code not in _DAMAGED:
            if code != sqlite3.SQLITE_FULL:  # what is there can still be read from a full disk
                self.close()
            raise HistoryError(str(error)) from error
        self._move_aside("is damaged or no database")

    def _move_aside(self, why: str) -> None:
        self.close()
        aside = own_file.free_name_beside(self.path)
        try:
            self.path.rename(aside)
            for suffix in ("-wal", "-shm"):
                beside = self.path.with_name(self.path.name + suffix)
                if beside.exists():
                    beside.rename(aside.with_name(aside.name + suffix))
        except OSError as error:
            raise HistoryError(f"{self.path} {why}, and moving it aside failed: {error}") from error
        self.notice = f"{self.path} {why}; it was moved to {aside}, and a new history begun"


def _prepare(connection: sqlite3.Connection) -> str | None:
    """Create or check the schema; return why the database is not ours, None: it is."""

    def query_number(sql: str) -> int:
        return int(connection.execute(sql).fetchone()[0])

    owner, version = query_number("PRAGMA application_id"), query_number("PRAGMA user_version")
    begun = query_number("SELECT count(*) FROM sqlite_schema")
    if begun and owner != _APPLICATION_ID:
        return "is another program's database"
    if begun and version != SCHEMA_VERSION:
        return f"has schema {version} and this cedos knows {SCHEMA_VERSION}"
    own_file.write_ahead(connection)
    if not begun:
        connection.executescript(_SCHEMA)
    # One fsync per checkpoint: losing power may cost the last seconds, never the file.
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA journal_size_limit = 4194304")
    query_number(_HIGHEST_NUMBER)
    return None
