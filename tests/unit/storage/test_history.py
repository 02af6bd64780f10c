import os
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

import pytest

from cedos.model import (
    Context,
    Decision,
    FlowKey,
    FlowRecord,
    Indicator,
    SizeEstimate,
    Strategy,
    StrategyKind,
    Subflow,
    Transfer,
)
from cedos.storage.history import History

KEY = FlowKey(ip_address("192.168.43.2"), 40000, ip_address("198.51.100.1"), 443)
CHOICE = Strategy(StrategyKind.SINGLE, ("wlan0",))


def a_decision(number, server_name="example.org"):
    return Decision(
        number,
        1.7e9 + number,
        Transfer(SizeEstimate(1, 1, 1, "hint"), flow=KEY, server_name=server_name),
        Context(1.0, {"wlan0": {"rtt_s": Indicator(0.02, 0.5)}}),
        (),
        CHOICE,
        "max_s",
        "because",
    )


def a_flow(decision):
    return FlowRecord(
        (Subflow(KEY, "wlan0", 1000, 10),), None, 1.0, 2.0, "example.org", decision=decision
    )


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "history.sqlite"


def numbers(history, **query):
    return [decision.number for decision in history.decisions(1000, **query)]


def test_only_the_owner_may_read_where_one_went(path):
    history = History(path)
    history.add_decision(a_decision(1))
    history.flush()
    for file in path.parent.iterdir():
        assert file.stat().st_mode & 0o077 == 0, file
    history.close()


def test_flows_and_decisions_are_found(path):
    history = History(path)
    for number in range(1, 6):
        history.add_decision(a_decision(number, "even.org" if number % 2 == 0 else "odd.net"))
        history.add_flow(a_flow(number))
        if number == 3:
            history.flush()
    assert numbers(history, flow="even") == [4, 2]
    assert numbers(history, flow="odd.net:443") == [5, 3, 1]
    assert numbers(history, flow="odd.net:80") == []
    assert numbers(history, number=2) == [2]
    assert numbers(history, number=5) == [5]
    assert [each.number for each in history.decisions(2)] == [5, 4]
    assert [each.number for each in history.decisions(1, flow="even")] == [4]
    assert history.flows(decision=3) == [a_flow(3)]
    assert len(history.flows(flow="198.51.100.1:443")) == 5
    assert history.flows(flow="203.0.113.1") == []
    history.close()


def test_the_file_stays_bounded(path):
    history = History(path, max_rows=10)
    for number in range(1, 101):
        history.add_decision(a_decision(number))
        history.add_flow(a_flow(number))
        if number % 7 == 0:
            history.flush()
    history.flush()
    assert numbers(history) == list(range(100, 90, -1))
    assert len(history.flows(1000)) == 10
    history.close()


def move_aside_is_told(history, path, why):
    assert history.notice is not None
    assert why in history.notice
    assert f"{path}.aside-1" in history.notice
    assert history.problem is None
    assert Path(f"{path}.aside-1").exists()
    history.add_decision(a_decision(1))
    history.flush()
    assert history.waiting == 0
    assert numbers(history) == [1]


def test_a_file_that_is_no_database_is_moved_aside(path):
    path.parent.mkdir()
    path.write_text("this is not a database\n" * 100)
    history = History(path)
    move_aside_is_told(history, path, "damaged or no database")
    assert Path(f"{path}.aside-1").read_text().startswith("this is not")
    history.close()


def test_another_programs_database_is_moved_aside(path):
    path.parent.mkdir()
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE bookmark (url TEXT)")
    other.commit()
    other.close()
    history = History(path)
    move_aside_is_told(history, path, "another program's database")
    history.close()


def test_a_newer_schema_is_moved_aside(path):
    History(path).close()
    newer = sqlite3.connect(path)
    newer.execute("PRAGMA user_version = 99")
    newer.close()
    history = History(path)
    move_aside_is_told(history, path, "schema 99")
    history.close()


def test_files_moved_aside_do_not_overwrite_each_other(path):
    path.parent.mkdir()
    for number in (1, 2):
        path.write_text(f"not a database, number {number}\n" * 100)
        history = History(path)
        history.close()
        assert f"number {number}" in Path(f"{path}.aside-{number}").read_text()


def test_damage_found_while_running_costs_the_file_not_the_records(path):
    history = History(path)
    for number in range(1, 200):
        history.add_decision(a_decision(number))
    history.close()
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(path.stat().st_size - 4096))
    history = History(path)
    history.add_decision(a_decision(1000))
    history.flush()
    assert numbers(history) == [1000]
    assert history.problem is None
    assert history.notice is not None
    assert "damaged" in history.notice
    history.close()


@pytest.mark.parametrize("text", ["{", "[]", '{"size": 3}', '{"size": null, "subflows": 7}'])
def test_a_record_that_does_not_read_is_left_out(path, text):
    """The daemon reads the last flows when it starts: for one of them it did not."""
    history = History(path)
    for number in (1, 2, 3):
        history.add_flow(a_flow(number))
        history.add_decision(a_decision(number))
    history.close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE flow SET record = ? WHERE decision = 2", (text,))
        connection.execute("UPDATE decision SET context = ? WHERE number = 2", (text,))
    again = History(path)
    assert again.flows() == [a_flow(3), a_flow(1)]
    assert numbers(again) == [3, 1]
    again.close()


@pytest.mark.parametrize("number", ["'x'", "9223372036854775807", "1e300", "x'00'"])
def test_a_damaged_number_is_not_the_highest(path, number):
    """The daemon did not start with a text there, and wrote nothing more behind the last number."""
    history = History(path)
    history.add_decision(a_decision(7))
    history.add_decision(a_decision(8))
    history.close()
    with closing(sqlite3.connect(path)) as damaged, damaged:
        damaged.execute(f"UPDATE decision SET number = {number} WHERE number = 8")
    again = History(path)
    assert again.next_number == 8
    again.close()


def test_without_a_folder_the_history_lives_in_memory_and_recovers(tmp_path):
    blocker = tmp_path / "state"
    blocker.write_text("a file where the folder should be")
    clock = Clock()
    history = History(blocker / "history.sqlite", max_waiting=5, retry_s=30.0, clock=clock)
    assert history.problem is not None
    assert "kept in memory" in history.problem
    assert history.next_number == 1
    for number in range(1, 9):
        history.add_decision(a_decision(number))
        history.flush()
    assert numbers(history) == [8, 7, 6, 5, 4]
    assert history.dropped == 3

    blocker.unlink()
    history.flush()
    assert history.waiting == 5, "tried before its time"
    clock.now_s = 31.0
    history.flush()
    assert history.problem is None
    assert history.waiting == 0
    assert numbers(history) == [8, 7, 6, 5, 4]
    history.close()


KILLED = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_history import a_decision
from cedos.storage.history import History
history = History(Path({path!r}))
number = history.next_number
while True:
    for number in range(number, number + 10):
        history.add_decision(a_decision(number))
    history.flush()
    print(number, flush=True)
    number += 1
"""


def test_killed_while_writing_nothing_flushed_is_lost(path):
    script = KILLED.format(tests=str(Path(__file__).parent), path=str(path))
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
            for _ in range(20):
                flushed = int(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
            flushed = int((process.stdout.read().split() or [flushed])[-1])
        history = History(path)
        assert history.notice is None
        assert history.problem is None
        # A batch is written whole or not at all.
        assert history.next_number - 1 in {flushed, flushed + 10}
        known = [decision.number for decision in history.decisions(100_000)]
        assert known == list(range(history.next_number - 1, 0, -1))
        history.close()


def test_adding_does_not_wait_for_the_disk(path):
    history = History(path)
    blocker = sqlite3.connect(path)
    blocker.execute("BEGIN IMMEDIATE")
    history.add_decision(a_decision(1))
    flushing = threading.Thread(target=history.flush)
    flushing.start()
    for number in range(2, 100):
        history.add_decision(a_decision(number))
    assert flushing.is_alive(), "the writer should be waiting for the other one's lock"
    blocker.rollback()
    blocker.close()
    flushing.join()
    history.flush()
    assert numbers(history) == list(range(99, 0, -1))
    history.close()


def test_others_can_read_the_file_meanwhile(path):
    history = History(path)
    history.add_decision(a_decision(1))
    history.flush()
    reader = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM decision").fetchone() == (1,)
    history.add_decision(replace(a_decision(2), reason="while someone reads"))
    history.flush()
    assert history.problem is None
    reader.rollback()
    assert reader.execute("SELECT reason FROM decision ORDER BY id DESC").fetchone() == (
        "while someone reads",
    )
    reader.close()
    history.close()
