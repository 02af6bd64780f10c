"""The file of certificates and receipts."""

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from kit.neighbours import GATEWAY, START_S, Everyone, key_of, trust

from cedos.apps.sharing.protocol.certificates import (
    MOST_REVOKED,
    CertificateAuthority,
    UntrustedError,
    request_certificate,
)
from cedos.apps.sharing.protocol.receipts import Receipt, sign_receipt
from cedos.apps.sharing.store import MOST_CERTIFICATES, Owed, SharingStore
from cedos.errors import SharingError

ANN, BOB, CYD = (key_of(name).public for name in ("ann", "bob", "cyd"))
CONTRACT = b"c" * 32
AUTHORITY = CertificateAuthority(GATEWAY)


def receipt(serial, **changed):
    made = Receipt(
        GATEWAY.public, serial, ANN, BOB, CONTRACT, 10 * serial, 10 * serial + 10, 100, 200,
        300 * serial, 5, "EUR",
    )  # fmt: skip
    made = msgspec.structs.replace(made, **changed)
    return made, sign_receipt(made, GATEWAY)


@pytest.fixture
def store(tmp_path):
    opened = SharingStore(tmp_path / "state" / "sharing.db")
    yield opened
    opened.close()


def register(store, name, now_s=START_S):
    session = name.encode().ljust(32, b"s")
    wish = request_certificate(key_of(name), session, name, GATEWAY.public, now_s)
    return store.register(AUTHORITY, wish, session, now_s)


def test_receipts_are_written_once(store):
    assert store.add([receipt(1), receipt(2)]) == 2
    assert store.add([receipt(2), receipt(3)]) == 1
    assert store.add([receipt(3, amount=9_000_000)]) == 0, "the first one of a serial stays"
    assert [it.serial for it in store.receipts()] == [3, 2, 1]
    assert store.receipts()[0] == receipt(3)[0]
    assert store.highest_serial(GATEWAY.public) == 3
    assert store.highest_serial(ANN) == 0
    assert (store.total_bytes(CONTRACT), store.total_bytes(bytes(32))) == (900, 0)


def test_who_owes_what_to_whom(store):
    store.add([receipt(1), receipt(2), receipt(3, helper=CYD, amount=70)])
    store.add([receipt(4, currency="CHF", amount=1)])
    assert store.list_debts() == [
        Owed(ANN, CYD, "EUR", 70, 300, 1),
        Owed(ANN, BOB, "EUR", 10, 600, 2),
        Owed(ANN, BOB, "CHF", 1, 300, 1),
    ]


def test_each_host_is_given_its_own_receipts(store):
    all_three = [receipt(1), receipt(2, helper=CYD), receipt(3)]
    store.add(all_three)
    assert store.receipts_since(0, BOB) == [all_three[0][1], all_three[2][1]]
    assert store.receipts_since(1, BOB) == [all_three[2][1]]
    assert len(store.receipts_since(0, ANN)) == 3
    assert len(store.receipts_since(0, ANN, limit=2)) == 2


@pytest.mark.parametrize(
    "sql",
    ["UPDATE receipt SET amount = 0", "DELETE FROM receipt", "UPDATE certificate SET name = 'eve'",
     "DELETE FROM certificate", "DELETE FROM contract", "DELETE FROM revocation"],
)  # fmt: skip
def test_no_row_is_changed_or_removed(store, sql):
    store.add([receipt(1)])
    register(store, "ann")
    store.revoke(ANN, START_S)
    store.add_contract(CONTRACT, b"join", b"confirm")
    with (
        sqlite3.connect(store.path) as other,
        pytest.raises(sqlite3.IntegrityError, match="append only"),
    ):
        other.execute(sql)
    other.close()
    assert len(store.receipts()) == 1


def test_certificates_have_a_serial_each_and_are_found_again(store):
    for serial, name in enumerate(("ann", "bob", "ann"), 1):
        assert trust().read(register(store, name), START_S).serial == serial
    assert store.name_of(ANN) == "ann"
    assert store.name_of(CYD) is None
    assert store.host_of_session(b"bob".ljust(32, b"s")) == BOB
    assert store.host_of_session(bytes(32)) is None


def test_one_client_gets_a_few_certificates_a_month(store):
    for _ in range(MOST_CERTIFICATES):
        register(store, "eve")
    with pytest.raises(UntrustedError, match="16 certificates"):
        register(store, "eve")
    assert trust().read(register(store, "ann"), START_S).name == "ann"


def test_a_list_of_more_withdrawn_certificates_than_it_holds_is_accepted(store):
    data = register(store, "eve")
    row = store._read("SELECT host, session, name, expires_s, data FROM certificate", ())[0]
    store._write(
        "INSERT INTO revocation VALUES (?, ?)", [(n, 0) for n in range(1, MOST_REVOKED + 100)]
    )
    rows = [(serial, *row) for serial in range(2, MOST_REVOKED + 100)]
    store._write("INSERT INTO certificate VALUES (?, ?, ?, ?, ?, ?)", rows)
    known = trust()
    known.revoke(store.revocations(AUTHORITY, START_S, Everyone()))
    assert known.read(data, START_S).serial == 1, "the oldest are left out"


def test_receipts_of_a_host_are_found_without_reading_those_of_others(store):
    steps = []
    with sqlite3.connect(store.path) as other:
        for column in ("requestor", "helper"):
            sql = f"EXPLAIN QUERY PLAN SELECT data FROM receipt WHERE {column} = ? AND serial > ?"
            steps += [row[3] for row in other.execute(sql, (ANN, 0))]
    other.close()
    assert all("USING INDEX" in step for step in steps), steps


def test_a_request_that_proves_nothing_is_not_written(store):
    wish = request_certificate(key_of("eve"), b"e" * 32, "eve", GATEWAY.public, START_S)
    with pytest.raises(UntrustedError):
        store.register(AUTHORITY, wish, b"another session".ljust(32), START_S)
    assert store.name_of(key_of("eve").public) is None


def test_revocation_is_for_all_of_a_hosts_certificates_and_lasts_until_they_expire(store):
    first, second, other = (register(store, name) for name in ("ann", "ann", "bob"))
    assert store.revoke(ANN, START_S + 5) == 2
    assert store.revoke(ANN, START_S + 5) == 0
    known = trust()
    known.revoke(store.revocations(AUTHORITY, START_S + 5, Everyone()))
    for data in (first, second):
        with pytest.raises(UntrustedError):
            known.read(data, START_S + 5)
    assert known.read(other, START_S + 5).name == "bob"
    late = store.revocations(AUTHORITY, START_S + 31 * 86_400, Everyone())
    assert len(late) < len(store.revocations(AUTHORITY, START_S + 5, Everyone()))


def test_a_revoked_host_cannot_register_again_with_either_key(store):
    register(store, "ann")
    register(store, "bob")
    store.revoke(ANN, START_S)
    with pytest.raises(UntrustedError, match="revoked"):
        register(store, "ann")
    # Nor with a new key over the same session.
    session = b"ann".ljust(32, b"s")
    wish = request_certificate(key_of("ann's other"), session, "cyd", GATEWAY.public, START_S)
    with pytest.raises(UntrustedError, match="revoked"):
        store.register(AUTHORITY, wish, session, START_S)
    register(store, "bob")


def test_hosts_are_found_by_name_or_key(store):
    for name in ("ann", "bob"):
        register(store, name)
    session = b"cyd".ljust(32, b"s")
    wish = request_certificate(key_of("cyd"), session, "ann", GATEWAY.public, START_S)
    store.register(AUTHORITY, wish, session, START_S)
    assert store.hosts("bob") == store.hosts(BOB.hex()[:12].upper()) == {BOB: "bob"}
    assert store.hosts("ann") == {ANN: "ann", CYD: "ann"}, "hosts name themselves"
    assert store.hosts("dan") == {}
    assert store.hosts("%") == {}
    assert len(store.hosts("")) == 3


def test_a_contract_is_kept_as_it_was_signed(store):
    store.add_contract(CONTRACT, b"join", b"confirm")
    store.add_contract(CONTRACT, b"other", b"other")
    assert store.contract(CONTRACT) == (b"join", b"confirm")
    assert store.contract(bytes(32)) is None


def test_a_database_of_another_program_is_left_alone(tmp_path):
    path = tmp_path / "sharing.db"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE mine (a)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(SharingError, match="another program"):
        SharingStore(path)
    assert path.read_bytes() == before


def test_a_file_that_is_no_database_is_refused(tmp_path):
    path = tmp_path / "sharing.db"
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(SharingError):
        SharingStore(path)


def test_it_is_for_its_owner_alone(store):
    assert store.path.stat().st_mode & 0o077 == 0


WRITER = """
import sys
from pathlib import Path
from test_store_writer import receipt, SharingStore
store = SharingStore(Path(sys.argv[1]))
serial = 0
while True:
    serial += 1
    store.add([receipt(serial)])
    print(serial, flush=True)
"""


def test_what_was_written_survives_kill_9(tmp_path):
    """A receipt is given away only after it is written; so none that a host holds is missing here."""
    path = tmp_path / "sharing.db"
    (tmp_path / "test_store_writer.py").write_text(Path(__file__).read_text())
    folders = [str(tmp_path), str(Path(__file__).parents[3])]
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(folders)},
    )
    told = [int(writer.stdout.readline()) for _ in range(50)]
    writer.send_signal(signal.SIGKILL)
    told += [int(line) for line in writer.stdout.read().split(b"\n")[:-1] if line]
    writer.wait()
    writer.stdout.close()
    again = SharingStore(path)
    found = again.highest_serial(GATEWAY.public)
    assert told[-1] <= found <= told[-1] + 1
    assert len(again.receipts(10**6)) == found
    again.close()
