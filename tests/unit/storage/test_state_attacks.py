"""Attacks by the owner of the state directory: nothing is written, read or waited for elsewhere."""

import os
import sqlite3
import stat
import struct
import tempfile
from contextlib import closing, suppress
from datetime import datetime
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from cedos.apps.sharing.store import SharingStore
from cedos.config import Config
from cedos.daemon import startup, state_file
from cedos.errors import HistoryError, SharingError
from cedos.host.profiler.sizes import SizeHistory
from cedos.kernel import own_file
from cedos.storage import budget_file
from cedos.storage.history import History
from cedos.storage.usage import BytesByServer, Usage, bytes_by_server

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def elsewhere(tmp_path):
    """A file that is none of ours."""
    path = tmp_path / "passwd"
    path.write_text("root:x:0:0\n")
    return path


@pytest.fixture
def state(tmp_path):
    folder = tmp_path / "state"
    folder.mkdir()
    return folder


def test_a_link_in_the_way_of_a_new_file_is_not_followed(state, elsewhere):
    (state / f"sizes.{os.getpid()}.new").symlink_to(elsewhere)
    own_file.write(state / "sizes.json", b"{}")
    assert elsewhere.read_text() == "root:x:0:0\n"
    assert (state / "sizes.json").read_bytes() == b"{}"
    assert not (state / "sizes.json").is_symlink()


def test_what_holds_the_new_file_already_is_not_written_to(state, elsewhere):
    (state / f"sizes.{os.getpid()}.new").hardlink_to(elsewhere)
    own_file.write(state / "sizes.json", b"{}")
    assert elsewhere.read_text() == "root:x:0:0\n"
    os.mkfifo(state / f"sizes.{os.getpid()}.new")
    own_file.write(state / "sizes.json", b"[]")  # and nobody waits for its reader
    assert (state / "sizes.json").read_bytes() == b"[]"


def test_state_files_are_for_their_owner_alone(state):
    before = os.umask(0)
    try:
        own_file.write(state / "sizes.json", b"{}")
        Usage(state / "usage.sqlite", "boot").close()
        History(state / "history.sqlite").close()
        (state / "old.sqlite").touch(0o644)
        Usage(state / "old.sqlite", "boot").close()
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in state.iterdir()}
    assert modes == dict.fromkeys(modes, 0o600)
    assert len(modes) == 5


def link(path, elsewhere):
    path.symlink_to(elsewhere)


def second_name(path, elsewhere):
    path.hardlink_to(elsewhere)


def fifo(path, _):
    os.mkfifo(path)


def folder(path, _):
    path.mkdir()


def endless(path, _):
    with path.open("wb") as file:
        file.truncate(1 << 40)


def foreign(path, _):
    path.write_text("{}")
    os.chown(path, 65534, 65534)


PLANTED = [link, second_name, fifo, folder, endless, pytest.param(foreign, marks=AS_ROOT)]


@pytest.mark.parametrize("plant", PLANTED)
def test_what_is_no_file_of_ours_is_put_aside(state, elsewhere, plant):
    path = state / "sizes.json"
    plant(path, elsewhere)
    with pytest.raises(OSError, match=r".") as refused:
        own_file.read(path)
    assert not isinstance(refused.value, FileNotFoundError)
    with capture_logs() as logs:
        assert state_file.read(path, "the sizes learned earlier") is None
    assert [each["event"] for each in logs] == ["the sizes learned earlier cannot be used"]
    assert not os.path.lexists(path)
    assert elsewhere.read_text() == "root:x:0:0\n"


@pytest.mark.parametrize("plant", PLANTED)
def test_no_reserve_is_kept_elsewhere(state, elsewhere, plant):
    plant(state / Usage.RESERVE, elsewhere)
    with closing(Usage(state / "usage.sqlite", "boot")) as usage:
        usage._connection.execute("PRAGMA query_only = 1")
        usage.write(1e9)
        assert usage.problem is not None
    assert elsewhere.read_text() == "root:x:0:0\n"


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 99, b'{"a": "\xe9"}', b'{"\xff": 1}', b"[" * 100_000, b'{"a": 1']
)
def test_what_does_not_read_is_put_aside(state, content):
    path = state / "rules.json"
    path.write_bytes(content)
    assert state_file.read(path, "the rules") is None
    assert not path.exists()
    (state / "budgets.json").write_bytes(content)
    assert budget_file.read_or_move_aside(state / "budgets.json")[0] == {}
    (state / budget_file.BEGINNINGS).write_bytes(content)
    assert budget_file.configured_budgets(Config(), datetime(2026, 11, 29), state) == {}


@pytest.mark.parametrize("content", ["[]", '{"version": 1, "hosts": [], "resources": []}'])
def test_sizes_of_another_version_are_put_aside(state, content):
    """The daemon ended with their error at each start."""
    path = state / "sizes.json"
    path.write_text(content)
    assert startup.sizes(path).state() == SizeHistory().state()
    assert not path.exists()


@pytest.mark.parametrize("plant", PLANTED[:3])
def test_no_database_is_made_elsewhere(state, elsewhere, plant):
    elsewhere.write_text("")  # SQLite would take it for a new database
    plant(state / "history.sqlite", elsewhere)
    history = History(state / "history.sqlite")
    assert history.problem is not None
    history.close()
    assert elsewhere.read_text() == ""


@pytest.mark.parametrize("plant", PLANTED[:3])
def test_no_reader_waits_for_what_is_no_database(state, elsewhere, plant):
    """`cedos usage` of root waited for ever for a fifo's writer."""
    plant(state / "usage.sqlite", elsewhere)
    with pytest.raises(HistoryError, match=r"usage\.sqlite"):
        Usage(state / "usage.sqlite", read_only=True)
    assert bytes_by_server(state / "usage.sqlite", 0.0) == BytesByServer(None, {}, {})


def test_a_link_to_nothing_makes_nothing(state, tmp_path):
    (state / "usage.sqlite").symlink_to(tmp_path / "cron.d")
    with pytest.raises(Exception, match=r"usage\.sqlite"):
        Usage(state / "usage.sqlite", "boot")
    assert not (tmp_path / "cron.d").exists()


def test_a_link_that_comes_after_the_look_makes_no_database_elsewhere(state, tmp_path, monkeypatch):
    """SQLite follows links, and root's programs open files in the service's folder."""
    elsewhere, ensure = tmp_path / "elsewhere", own_file.ensure

    def ensure_and_lose(path):
        ensure(path)
        path.unlink()
        path.symlink_to(elsewhere)

    monkeypatch.setattr(own_file, "ensure", ensure_and_lose)
    with pytest.raises(SharingError):
        SharingStore(state / "sharing.sqlite")
    with pytest.raises(HistoryError):
        Usage(state / "usage.sqlite", "boot")
    History(state / "history.sqlite").close()
    assert not os.path.lexists(elsewhere)


def names(path, victim):
    """Put a journal beside a database that names a file as the journal of several databases."""
    page, magic = 4096, bytes.fromhex("d9d505f920a163d7")
    header = magic + struct.pack(">5I", 0, 1, 1, 512, page)
    name = bytes(victim)
    tail = (
        struct.pack(">I", (1 << 30) // page + 1) + name + struct.pack(">2I", len(name), sum(name))
    )
    path.with_name(f"{path.name}-journal").write_bytes(header.ljust(512, b"\0") + tail + magic)


@AS_ROOT
def test_root_reads_what_lies_below_a_folder_of_root_alone(state, elsewhere):
    """The folder of a dynamic user lies below /var/lib/private, which no other user may enter."""
    assert state.parent.stat().st_mode & 0o077 == 0
    usage, sharing = state / "usage.sqlite", state / "sharing.sqlite"
    for _ in range(2):  # made, then opened
        Usage(usage, "boot").close()
        SharingStore(sharing).close()
        for each in (state, *state.iterdir()):
            os.chown(each, 65534, 65534)
    Usage(usage, read_only=True).close()
    # It may read what it reaches so, and no more.
    with own_file.database(usage), pytest.raises(PermissionError):
        elsewhere.unlink()


@AS_ROOT
@pytest.mark.parametrize("mode", ["WAL", "DELETE"])
@pytest.mark.parametrize("owner", [0, 65534])
def test_no_journal_beside_a_database_has_root_remove_a_file(elsewhere, mode, owner):
    """SQLite removes the file that such a journal names, even if it only reads."""
    with tempfile.TemporaryDirectory() as folder:  # which its owner may enter
        state = Path(folder)
        _plant_journals(state, elsewhere, mode, owner)


def _plant_journals(state, elsewhere, mode, owner):
    openers = {
        "history.sqlite": lambda path: History(path).flows(9),
        "usage.sqlite": lambda path: Usage(path, "boot").close(),
        "sharing.sqlite": lambda path: SharingStore(path).close(),
        "read.sqlite": lambda path: bytes_by_server(path, 0.0),
        "also.sqlite": lambda path: Usage(path, read_only=True).close(),
        "earlier.sqlite": lambda path: Usage(None, "boot", earlier=path).close(),
    }
    for name, opened in openers.items():
        path = state / name
        with closing(sqlite3.connect(path)) as planted:
            planted.execute(f"PRAGMA journal_mode = {mode}")
            planted.execute("CREATE TABLE t (a)")
        names(path, elsewhere)
        for each in (state, *state.iterdir()):
            os.chown(each, owner, owner)
        with suppress(HistoryError, SharingError):
            opened(path)
        assert elsewhere.exists(), name
        assert os.geteuid() == os.getegid() == 0
        names(path, elsewhere)
