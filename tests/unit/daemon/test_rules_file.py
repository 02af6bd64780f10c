"""The file of the user's rules: written off the event loop, again after a failure, and at the end."""

import asyncio
import errno
import os
import threading

import msgspec
import pytest
from kit.waiting import until

from cedos.daemon import state_file
from cedos.daemon.state_file import RulesFile
from cedos.kernel import own_file

RULE = {"host": "bank.example", "port": None, "only": [], "never": ["lte0"], "addresses": []}
UNKEPT = "cannot be written: your rules hold until the daemon ends, not longer"


@pytest.fixture
async def rules(tmp_path):
    file = RulesFile(tmp_path)
    running = asyncio.create_task(file.run())
    yield file
    running.cancel()
    await asyncio.wait({running})


@pytest.fixture
def full(monkeypatch):
    """The disk takes nothing until this is set."""
    free, real = threading.Event(), own_file.write

    def write(path, content, **how):
        if not free.is_set():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(path, content, **how)

    monkeypatch.setattr(own_file, "write", write)
    return free


def kept(tmp_path):
    return msgspec.json.decode((tmp_path / "rules.json").read_bytes())


async def test_what_the_disk_did_not_take_is_written_later(tmp_path, rules, full, monkeypatch):
    """A rule that was added while the disk was full was gone after the next start."""
    monkeypatch.setattr(state_file, "_AGAIN_S", 0.05)
    rules.take({"1": RULE})
    await rules.wait_written()
    assert rules.problems == [f"{tmp_path / 'rules.json'} {UNKEPT}"]
    full.set()
    await until(lambda: not rules.problems)
    assert kept(tmp_path) == {"1": RULE}


async def test_what_the_disk_did_not_take_is_written_at_the_end(tmp_path, rules, full):
    rules.take({"1": RULE})
    await rules.wait_written()
    full.set()
    rules.write()
    assert kept(tmp_path) == {"1": RULE}


async def test_nothing_waits_for_the_disk(tmp_path, rules, monkeypatch):
    """Fail-over waited 4 s for a slow disk, after one look-up of a ruled name."""
    may, real, written = threading.Event(), own_file.write, []

    def write(path, content, **how):
        may.wait(10)
        written.append(how)
        real(path, content, **how)

    monkeypatch.setattr(own_file, "write", write)
    for number in range(1, 9):
        rules.take({str(number): RULE})
        await asyncio.sleep(0.01)
    assert not written
    may.set()
    await rules.wait_written()
    assert kept(tmp_path) == {"8": RULE}
    assert written == [{"synced": True}] * 2, "what came meanwhile is written once"


@pytest.mark.parametrize(
    ("content", "left"),
    [
        (b"", {}),
        (b"\0" * 99, {}),
        (b"[]", {}),
        (msgspec.json.encode({"1": RULE, "2": {**RULE, "newer": 1}, "aliases": {}}), {"1": RULE}),
    ],
)
def test_a_file_that_cannot_be_used_is_told_of_until_it_is_removed(tmp_path, content, left):
    """The daemon began without the rules, and one line of the log said so."""
    (tmp_path / "rules.json").write_bytes(content)
    for _ in range(2):  # the next start tells of it, too
        again = RulesFile(tmp_path)
        assert msgspec.json.decode(msgspec.json.encode(again.read())) == left
    (problem,) = again.problems
    assert problem.startswith(
        f"rules are not in force: {tmp_path / 'rules.json.aside-1'} could not"
    )
    assert (tmp_path / "rules.json.aside-1").read_bytes() == content
    (tmp_path / "rules.json.aside-1").unlink()
    assert not again.problems


def test_rules_that_are_right_stay_where_they_are(tmp_path):
    content = msgspec.json.encode({"7": RULE, "aliases": {"7": {"bank.example": ["cdn.example"]}}})
    (tmp_path / "rules.json").write_bytes(content)
    file = RulesFile(tmp_path)
    assert msgspec.json.encode(file.read()) == content
    file.write()
    assert file.problems == []
    assert [each.name for each in tmp_path.iterdir()] == ["rules.json"]
