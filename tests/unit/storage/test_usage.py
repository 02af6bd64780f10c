import os
import sqlite3
from contextlib import closing

import pytest

from cedos.errors import HistoryError
from cedos.storage.usage import Counter, Usage

NOW_S = 1.79e9
QUARTER_S = 900.0
SEEN = {"3/down": Counter("boot-1", 3, 1000)}


@pytest.mark.parametrize(
    ("before", "now", "risen"),
    [
        (Counter("a", 3, 1000), Counter("a", 3, 1500), 500),
        (Counter("a", 3, 1000), Counter("a", 3, 1000), 0),
        (Counter("a", 3, 1000), Counter("a", 3, 200), 200),  # reset
        (Counter("a", 3, 2**32 - 100), Counter("a", 3, 50), 150),  # went round at 32 bits
        (Counter("a", 3, 2**40), Counter("a", 3, 50), 50),  # 64 bits never go round
        (Counter("a", 3, 1000), Counter("a", 7, 5000), 5000),  # plugged in again
        (Counter("a", 3, 1000), Counter("b", 3, 5000), 5000),  # the host was started again
    ],
)
def test_what_a_counter_has_risen_by(before, now, risen):
    with closing(Usage(None)) as usage:
        usage.rise("x", before, counted_from_start=False)
        usage.write(NOW_S)
        assert usage.rise("x", now, counted_from_start=True) == risen
        assert usage.fresh is (now[:2] != before[:2] or now.value < before.value)


def test_a_counter_never_seen_counts_only_where_we_were_there():
    with closing(Usage(None)) as usage:
        assert usage.rise("x", Counter("a", 1, 500), counted_from_start=False) == 0
        assert usage.rise("y", Counter("a", 1, 500), counted_from_start=True) == 500


def test_it_survives_restarts_and_reboots(tmp_path):
    usage = Usage(tmp_path / "u.sqlite", "boot-1")
    usage.add("metered/lte0", 700.0)
    usage.counters.update(SEEN)
    usage.write(NOW_S)
    usage.close()
    again = Usage(tmp_path / "u.sqlite", "boot-2")
    assert again.totals == {"metered/lte0": 700.0}
    assert again.counters == SEEN
    again.add("metered/lte0", 300.0)
    assert again.sum_since(["metered/lte0", "metered/other"], NOW_S - 1.0) == 1000.0


def test_a_period_takes_what_came_after_its_beginning(tmp_path):
    usage = Usage(tmp_path / "u.sqlite")
    for quarter in range(10):
        usage.add("k", 100.0)
        usage.write(NOW_S + quarter * QUARTER_S)
    assert usage.sum_since(["k"], NOW_S - 1.0) == 1000.0
    assert usage.sum_since(["k"], NOW_S + 4 * QUARTER_S) == 500.0
    # Between two readings it is taken to have risen evenly.
    assert usage.sum_since(["k"], NOW_S + 4.5 * QUARTER_S) == pytest.approx(450.0)
    assert usage.sum_since(["k"], NOW_S + 1e6) == 0.0


def test_counting_began_when_it_did_however_often_it_is_asked(tmp_path):
    """`cedos usage` said "counting began 3 s ago" for a quarter of an hour."""
    began = []
    for start in range(2):
        usage = Usage(tmp_path / "u.sqlite", f"boot-{start}")
        for second in range(5):
            usage.add("k", 1.0)
            usage.add(f"k{second}", 1.0)  # another network comes
            usage.write(NOW_S + 1000 * start + second)
            began.append(usage.begins_s())
        usage.close()
    assert set(began) == {NOW_S}


def test_a_clock_set_right_stamps_anew_what_was_counted_since_the_start(tmp_path):
    usage = Usage(tmp_path / "u.sqlite", "boot-1")
    usage.add("k", 100.0)
    usage.write(NOW_S - 1e6)
    usage.close()
    usage = Usage(tmp_path / "u.sqlite", "boot-2")
    usage.add("k", 50.0)
    usage.write(1000.0)  # a clock without battery says 1970
    assert usage.sum_since(["k"], NOW_S - 3600.0) == 0.0
    usage.on_clock_jump(NOW_S - 1000.0)
    assert usage.sum_since(["k"], NOW_S - 3600.0) == pytest.approx(50.0, rel=0.01)
    assert usage.sum_since(["k"], NOW_S - 2e6) == 150.0


def test_a_jump_ahead_and_back_loses_nothing(tmp_path):
    usage = Usage(tmp_path / "u.sqlite", "boot-1")
    usage.add("k", 100.0)
    usage.write(NOW_S)
    usage.on_clock_jump(1e8)
    usage.add("k", 10.0)
    usage.write(NOW_S + 1e8)
    usage.on_clock_jump(-1e8)
    usage.add("k", 1.0)
    usage.write(NOW_S + 60.0)
    assert usage.sum_since(["k"], NOW_S - 10.0) == 111.0
    assert usage.sum_since(["k"], NOW_S + 70.0) == 0.0


def test_a_damaged_file_is_moved_aside(tmp_path):
    path = tmp_path / "u.sqlite"
    path.write_bytes(b"not a database, " * 100)
    usage = Usage(path)
    assert usage.notice is not None
    assert (tmp_path / "u.sqlite.aside-1").exists()
    usage.add("k", 1.0)
    usage.write(NOW_S)
    assert usage.problem is None


def test_a_file_with_other_columns_is_moved_aside(tmp_path):
    """The daemon ended with SQLite's error at each start."""
    path = tmp_path / "usage.sqlite"
    with closing(sqlite3.connect(path)) as other:
        other.executescript(
            "CREATE TABLE reading (key); CREATE TABLE counter (source);"
            "PRAGMA application_id = 0x63656475;"
        )
    usage = Usage(path)
    assert "moved" in (usage.notice or "")
    usage.close()


def test_another_programs_database_is_not_touched(tmp_path):
    path = tmp_path / "u.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE mine (x)")
    with pytest.raises(HistoryError, match="another program"):
        Usage(path, read_only=True)
    Usage(path).close()
    aside = sqlite3.connect(tmp_path / "u.sqlite.aside-1")
    assert aside.execute("SELECT name FROM sqlite_schema").fetchone() == ("mine",)


def test_a_disk_of_no_use_is_said_and_what_was_counted_stays(tmp_path):
    usage = Usage(tmp_path / "u.sqlite")
    usage.add("k", 5.0)
    other = sqlite3.connect(tmp_path / "u.sqlite", isolation_level=None, timeout=0.1)
    other.execute("BEGIN EXCLUSIVE")
    usage._connection.execute("PRAGMA busy_timeout = 10")
    usage.write(NOW_S)
    assert usage.problem is not None
    other.execute("ROLLBACK")
    usage.write(NOW_S + 1.0)
    assert usage.problem is None
    assert Usage(tmp_path / "u.sqlite").totals == {"k": 5.0}


def test_counters_by_names_of_interfaces_are_read_by_their_indices(tmp_path):
    """Rename an interface: its counter was charged again from its start."""
    usage = Usage(tmp_path / "u.sqlite", "boot-2")
    names = (
        ("wwan0/up", "boot-1", 3, 9000),
        ("usb0/up", "boot-2", 3, 50),
        ("usb1/up", "boot-2", 3, 70),
    )
    usage._connection.executemany("INSERT INTO counter VALUES (?, ?, ?, ?)", names)
    usage.close()
    again = Usage(tmp_path / "u.sqlite", "boot-2")
    assert again.rise("up", Counter("boot-2", 3, 75), counted_from_start=True) == 5


def test_what_is_counted_on_a_full_disk_outlasts_it(tmp_path, monkeypatch):
    """Fill the disk, and start the host again: a hard budget had all of its supply again, each time."""
    path = tmp_path / "u.sqlite"
    usage = Usage(path, "boot-1")
    usage.add("metered/lte0", 700.0)
    usage.write(NOW_S)
    full = "CREATE TRIGGER full BEFORE INSERT ON reading BEGIN SELECT RAISE(ABORT, 'full'); END"
    usage._connection.execute(full)
    usage.rise("down", Counter("boot-1", 3, 50), counted_from_start=True)
    for _ in range(3):  # each time as if it was killed
        usage.add("metered/lte0", 100.0)
        usage.write(NOW_S + 60.0)
        assert "meanwhile" in usage.problem
        usage = Usage(path, "boot-1")
    assert usage.totals == {"metered/lte0": 1000.0}
    assert usage.rise("down", Counter("boot-1", 3, 60), counted_from_start=True) == 10
    # A cut-off write leaves the one before.
    with (tmp_path / Usage.RESERVE).open("r+b") as file:
        file.seek(3 % 2 * (64 << 10) + 20)
        file.write(b"torn")
    usage = Usage(path, "boot-1")
    assert usage.totals == {"metered/lte0": 900.0}
    usage._connection.execute("DROP TRIGGER full")
    usage.write(NOW_S + 120.0)
    assert usage.problem is None
    usage = Usage(path, "boot-2")
    assert usage.totals == {"metered/lte0": 900.0}
    assert usage.sum_since(["metered/lte0"], NOW_S) == 200.0


def test_what_is_kept_nowhere_is_said(tmp_path):
    usage = Usage(tmp_path / "u.sqlite", "boot-1")
    usage._connection.execute("PRAGMA query_only = 1")
    os.close(usage._reserve._file)
    usage._reserve._file = os.open(usage._reserve.path, os.O_RDONLY)
    usage.add("metered/lte0", 700.0)
    usage.write(NOW_S)
    assert "until the daemon ends" in usage.problem
