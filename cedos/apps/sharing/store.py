"""The file of certificates and receipts: SQLite, append only; at the gateway and at each host.

Triggers refuse any change or removal of a row, by whatever program. A receipt is stored once; so are the
datagrams of its contract, which prove its price.
"""

import sqlite3
from collections.abc import Container, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cedos.apps.sharing.protocol.certificates import (
    MOST_CERTIFICATE_BYTES,
    MOST_REVOKED,
    Certificate,
    CertificateAuthority,
    CertificateRequest,
    UntrustedError,
    open_sealed,
)
from cedos.apps.sharing.protocol.receipts import Receipt
from cedos.errors import SharingError
from cedos.kernel import own_file

_APPLICATION_ID: Final = 0x63736872  # "cshr"
_VERSION: Final = 1
# The most certificates of one client that have not expired. The table is append-only.
MOST_CERTIFICATES: Final = 16

_TABLES: Final = ("certificate", "revocation", "contract", "receipt")
_APPEND_ONLY: Final = "".join(
    f"CREATE TRIGGER {table}_{what} BEFORE {what} ON {table}"
    " BEGIN SELECT RAISE(ABORT, 'this table is append only'); END;\n"
    for table in _TABLES
    for what in ("UPDATE", "DELETE")
)
_SCHEMA: Final = f"""
BEGIN IMMEDIATE;
CREATE TABLE certificate (
    serial INTEGER PRIMARY KEY, host BLOB NOT NULL, session BLOB NOT NULL, name TEXT NOT NULL,
    expires_s INTEGER NOT NULL, data BLOB NOT NULL);
CREATE INDEX certificate_host ON certificate (host);
CREATE INDEX certificate_session ON certificate (session);
CREATE TABLE revocation (serial INTEGER PRIMARY KEY, made_s INTEGER NOT NULL);
CREATE TABLE contract (number BLOB PRIMARY KEY, joined BLOB NOT NULL, confirmed BLOB NOT NULL);
CREATE TABLE receipt (
    id INTEGER PRIMARY KEY AUTOINCREMENT, gateway BLOB NOT NULL, serial INTEGER NOT NULL,
    requestor BLOB NOT NULL, helper BLOB NOT NULL, contract BLOB NOT NULL,
    start_s INTEGER NOT NULL, end_s INTEGER NOT NULL, up_bytes INTEGER NOT NULL,
    down_bytes INTEGER NOT NULL, total_bytes INTEGER NOT NULL, amount INTEGER NOT NULL,
    currency TEXT NOT NULL, data BLOB NOT NULL, UNIQUE (gateway, serial));
CREATE INDEX receipt_contract ON receipt (contract);
{_APPEND_ONLY}
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA user_version = {_VERSION};
COMMIT;
"""
_INDEXES: Final = """
CREATE INDEX IF NOT EXISTS receipt_requestor ON receipt (requestor, serial);
CREATE INDEX IF NOT EXISTS receipt_helper ON receipt (helper, serial);
CREATE INDEX IF NOT EXISTS certificate_expires ON certificate (expires_s, session);
"""
_RECEIPT_COLUMNS: Final = (
    "gateway, serial, requestor, helper, contract, start_s, end_s, up_bytes, down_bytes, total_bytes,"
    " amount, currency"
)


@dataclass(frozen=True, slots=True)
class Owed:
    """The sum of all receipts of one requestor and one helper. `amount`: millionths of `currency`."""

    requestor: bytes
    helper: bytes
    currency: str
    amount: int
    carried_bytes: int
    receipts: int


class SharingStore:
    """An open file. Not for several threads at once. Errors of every method: SharingError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with own_file.database(path) as self._connection:
                self._prepare()
        except (OSError, sqlite3.Error) as error:
            raise SharingError(f"{path}: {error}") from error

    def close(self) -> None:
        self._connection.close()

    # Receipts and contracts.

    def add(self, receipts: Iterable[tuple[Receipt, bytes]]) -> int:
        """Write receipts, all or none; return how many were new. A serial is written once, the first."""
        sql = (
            f"INSERT OR IGNORE INTO receipt ({_RECEIPT_COLUMNS}, data)"  # noqa: S608
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        )
        rows = [
            (
                each.gateway, each.serial, each.requestor, each.helper, each.contract, each.start_s,
                each.end_s, each.up_bytes, each.down_bytes, each.total_bytes, each.amount,
                each.currency, data,
            )
            for each, data in receipts
        ]  # fmt: skip
        return self._write(sql, rows)

    def add_contract(self, number: bytes, join: bytes, confirm: bytes) -> None:
        self._write("INSERT OR IGNORE INTO contract VALUES (?, ?, ?)", [(number, join, confirm)])

    def contract(self, number: bytes) -> tuple[bytes, bytes] | None:
        """Return the datagrams of the Join and the Confirm."""
        sql = "SELECT joined, confirmed FROM contract WHERE number = ?"
        return next((tuple(row) for row in self._read(sql, (number,))), None)

    def receipts(self, limit: int = 1000) -> list[Receipt]:
        """Return the newest receipts, the newest first."""
        sql = f"SELECT {_RECEIPT_COLUMNS} FROM receipt ORDER BY id DESC LIMIT ?"  # noqa: S608
        return [Receipt(*row) for row in self._read(sql, (limit,))]

    def receipts_since(self, serial: int, host: bytes, limit: int = 100) -> list[bytes]:
        """Return the signed receipts about a host with higher serials, the lowest first."""
        # Two searches by index: with OR, SQLite would sort all that a host has.
        each = "SELECT * FROM (SELECT serial, data FROM receipt WHERE {} = ? AND serial > ? {})"
        last = "ORDER BY serial LIMIT ?"
        both = f"{each.format('requestor', last)} UNION {each.format('helper', last)} {last}"
        values = (host, serial, limit, host, serial, limit, limit)
        return [row[1] for row in self._read(both, values)]

    def list_debts(self) -> list[Owed]:
        """Return who owes whom how much, by currency; the largest amounts first."""
        sql = (
            "SELECT requestor, helper, currency, sum(amount), sum(up_bytes + down_bytes), count(*)"
            " FROM receipt GROUP BY requestor, helper, currency ORDER BY 4 DESC, 1, 2"
        )
        return [Owed(*row) for row in self._read(sql, ())]

    def total_bytes(self, contract: bytes) -> int:
        """Return the bytes that a contract's receipts name; 0: it has none."""
        sql = "SELECT coalesce(max(total_bytes), 0) FROM receipt WHERE contract = ?"
        return int(self._read(sql, (contract,))[0][0])

    def highest_serial(self, gateway: bytes) -> int:
        sql = "SELECT coalesce(max(serial), 0) FROM receipt WHERE gateway = ?"
        return int(self._read(sql, (gateway,))[0][0])

    # Certificates. Hosts keep their own and their neighbours', for the names; the gateway issues them.

    def register(
        self, authority: CertificateAuthority, request: bytes, session: bytes, now_s: float
    ) -> bytes:
        """Return a new certificate, written before it is given away.

        Raises:
            UntrustedError: the request is wrong, or one of its keys is revoked, or this client has
                as many certificates as it may have.
        """
        wish, _ = open_sealed(
            request, CertificateRequest, MOST_CERTIFICATE_BYTES, "certificate request"
        )
        sql = (
            "SELECT 1 FROM revocation JOIN certificate USING (serial) WHERE host = ? OR session = ?"
        )
        if self._read(sql, (wish.host, session)):
            raise UntrustedError("this host's certificate was revoked; it gets no other one")
        sql = "SELECT count(*) FROM certificate WHERE session = ? AND expires_s > ?"
        if self._read(sql, (session, int(now_s)))[0][0] >= MOST_CERTIFICATES:
            raise UntrustedError(
                f"this client has {MOST_CERTIFICATES} certificates that still hold"
            )
        highest = self._read("SELECT coalesce(max(serial), 0) FROM certificate", ())[0][0]
        data = authority.issue(request, session, highest + 1, now_s)
        self.add_certificate(data)
        return data

    def add_certificate(self, data: bytes) -> None:
        """Write a verified certificate."""
        made, _ = open_sealed(data, Certificate, MOST_CERTIFICATE_BYTES, "certificate")
        row = (made.serial, made.host, made.session, made.name, made.expires_s, data)
        self._write("INSERT OR IGNORE INTO certificate VALUES (?, ?, ?, ?, ?, ?)", [row])

    def host_of_session(self, session: bytes) -> bytes | None:
        """Return the host that a session's key was certified for last; None: it was never registered."""
        sql = "SELECT host FROM certificate WHERE session = ? ORDER BY serial DESC LIMIT 1"
        return next((row[0] for row in self._read(sql, (session,))), None)

    def certificates_of(self, host: bytes, now_s: float) -> list[bytes]:
        """Return the certificates of a host that have not expired, the newest first."""
        sql = "SELECT data FROM certificate WHERE host = ? AND expires_s > ? ORDER BY serial DESC"
        return [row[0] for row in self._read(sql, (host, int(now_s)))]

    def name_of(self, host: bytes) -> str | None:
        sql = "SELECT name FROM certificate WHERE host = ? ORDER BY serial DESC LIMIT 1"
        return next((row[0] for row in self._read(sql, (host,))), None)

    def hosts(self, which: str) -> dict[bytes, str]:
        """Return the registered hosts of a name, or whose key begins so in hexadecimal, with names."""
        sql = (
            "SELECT host, name, max(serial) FROM certificate GROUP BY host"
            " HAVING name = ?1 OR substr(lower(hex(host)), 1, length(?1)) = lower(?1)"
        )
        return {host: name for host, name, _ in self._read(sql, (which,))}

    def revoke(self, host: bytes, now_s: float) -> int:
        """Withdraw all certificates of a host; return how many still held."""
        sql = (
            "INSERT OR IGNORE INTO revocation SELECT serial, ? FROM certificate"
            " WHERE host = ? AND expires_s > ?"
        )
        return self._write(sql, [(int(now_s), host, int(now_s))])

    def revocations(
        self, authority: CertificateAuthority, now_s: float, invited: Container[bytes]
    ) -> bytes:
        """Return the signed list of certificates that hold no more, though they have not expired.

        They were withdrawn, or their clients, by the keys of their sessions, are not `invited` any more.
        """
        sql = "SELECT serial FROM revocation JOIN certificate USING (serial) WHERE expires_s > ?"
        serials = {row[0] for row in self._read(sql, (int(now_s),))}
        sql = "SELECT serial, session FROM certificate WHERE expires_s > ?"
        for serial, session in self._read(sql, (int(now_s),)):
            if session not in invited:
                serials.add(serial)
        return authority.revocations(tuple(sorted(serials)[-MOST_REVOKED:]), now_s)

    def _prepare(self) -> None:
        with closing(self._connection.execute("PRAGMA application_id")) as found:
            owner = found.fetchone()[0]
        version = self._connection.execute("PRAGMA user_version").fetchone()[0]
        begun = self._connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
        if begun and (owner, version) != (_APPLICATION_ID, _VERSION):
            raise SharingError(f"{self.path} is a database of another program or version")
        own_file.write_ahead(self._connection)
        self._connection.execute("PRAGMA synchronous = NORMAL")
        if not begun:
            self._connection.executescript(_SCHEMA)
        self._connection.executescript(_INDEXES)

    def _write(self, sql: str, rows: Sequence[tuple[Any, ...]]) -> int:
        try:
            with self._connection:
                self._connection.execute("BEGIN IMMEDIATE")
                return max(self._connection.executemany(sql, rows).rowcount, 0)
        except sqlite3.Error as error:
            raise SharingError(f"{self.path}: {error}") from error

    def _read(self, sql: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        try:
            return list(self._connection.execute(sql, values))
        except sqlite3.Error as error:
            raise SharingError(f"{self.path}: {error}") from error
