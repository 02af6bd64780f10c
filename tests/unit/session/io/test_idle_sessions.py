"""Idle sessions: as records, in a file that survives its process, and found again."""

import errno
import os
import random
import shutil
from collections import deque
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cedos.errors import SessionError
from cedos.session.io import idle_sessions
from cedos.session.io.idle_sessions import KEY_BYTES, IdleFile, IdleSessions, RecordState
from cedos.session.protocol.crypto import Suite
from cedos.session.protocol.handshake.credentials import Credentials
from cedos.session.protocol.idle_record import IDLE_BYTES, IdleRecord, pack, unpack_session
from cedos.session.protocol.life import SessionLimits
from cedos.session.protocol.schedulers.interface import PathFacts
from cedos.session.protocol.schedulers.plain import RoundRobin
from cedos.session.protocol.session import Session

SIZE = 40


def record(number, tail=b""):
    key = random.Random(number).randbytes(16)
    return (key + tail).ljust(SIZE, b".")


@given(st.lists(st.tuples(st.sampled_from("pprc"), st.integers(0, 40), st.binary(max_size=8))))
@settings(max_examples=40)
def test_the_file_is_a_dictionary_that_survives(tmp_path_factory, steps):
    path = tmp_path_factory.mktemp("idle") / "idle"
    file, model = IdleFile(path, SIZE), dict[bytes, bytes]()
    for what, number, tail in steps:
        each = record(number, tail)
        if what == "p":
            file.put(each, RecordState.ASLEEP)
            model[each[:16]] = each
        elif what == "r":
            assert file.remove(each[:16]) == (model.pop(each[:16], None) is not None)
        else:
            file.close()
            file = IdleFile(path, SIZE)
        assert file.get(each[:16]) == model.get(each[:16])
        assert len(file) == len(model)
    assert sorted(file) == sorted(model.values())
    file.close()


def test_many_records_grow_the_file_and_the_index(tmp_path):
    file = IdleFile(tmp_path / "idle", SIZE)
    many = [record(number) for number in range(10_000)]
    for each in many:
        file.put(each, RecordState.ASLEEP)
    assert max(map(len, file._tables)) <= 64  # what one `put` at most has to enter anew
    for each in many[::3]:
        assert file.remove(each[:16])
    for each in many[1::3]:
        file.put(each[:16] + each[16:].replace(b".", b"!"), RecordState.ASLEEP)
    file.close()
    file = IdleFile(tmp_path / "idle", SIZE)
    assert len(file) == 10_000 - len(many[::3])
    for at, each in enumerate(many):
        changed = each[:16] + each[16:].replace(b".", b"!")
        assert file.get(each[:16]) == (None, changed, each)[at % 3]
    file.close()
    assert (tmp_path / "idle").stat().st_mode & 0o777 == 0o600


def test_a_nearly_full_table_is_not_rebuilt_by_each_put_after_a_remove(tmp_path, monkeypatch):
    """Records are exchanged one for another in one part of the index, which has any number of them."""
    file = IdleFile(tmp_path / "idle", SIZE)
    keys = (each.to_bytes(KEY_BYTES, "big") for each in range(1 << 30))
    part = (key for key in keys if hash(key) & idle_sessions._PART == 7)
    renewed = []
    rebuild = IdleFile._rebuild
    monkeypatch.setattr(
        IdleFile, "_rebuild", lambda self, at: (renewed.append(at), rebuild(self, at))
    )
    there = deque()
    for _ in range(44):  # one more than two thirds of 64, and all below
        there.append(next(part))
        file.put(there[-1] + bytes(SIZE - KEY_BYTES), RecordState.ASLEEP)
        renewed.clear()
        for _ in range(20):
            assert file.remove(there.popleft())
            there.append(next(part))
            file.put(there[-1] + bytes(SIZE - KEY_BYTES), RecordState.ASLEEP)
        assert len(renewed) <= 20 // (len(there) // 8 + 1) + 1
    file.close()


def test_what_was_half_written_is_no_record(tmp_path):
    path = tmp_path / "idle"
    file = IdleFile(path, SIZE)
    for number in range(3):
        file.put(record(number), RecordState.ASLEEP)
    file.close()
    raw = bytearray(path.read_bytes())
    at = raw.index(record(1))
    raw[at + 20] ^= 1
    path.write_bytes(raw)
    file = IdleFile(path, SIZE)
    assert [file.get(record(number)[:16]) is not None for number in range(3)] == [True, False, True]
    file.put(record(7), RecordState.ASLEEP)
    assert len(file) == 3
    file.close()


@pytest.mark.parametrize("content", [b"x", b"#!/bin/sh\n" * 50, os.urandom(5000)])
def test_another_file_is_refused_and_left_alone(tmp_path, content):
    path = tmp_path / "idle"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(SessionError, match="move it away"):
        IdleFile(path, SIZE)
    assert path.read_bytes() == content


def test_a_file_that_others_may_read_or_use_is_refused(tmp_path):
    file = IdleFile(tmp_path / "idle", SIZE)
    with pytest.raises(SessionError, match="in use"):
        IdleFile(tmp_path / "idle", SIZE)
    file.close()
    (tmp_path / "idle").chmod(0o640)
    with pytest.raises(SessionError, match="chmod"):
        IdleFile(tmp_path / "idle", SIZE)


def credentials(number=1):
    draw = random.Random(number)
    return Credentials(
        draw.randbytes(16), draw.randbytes(32), draw.randbytes(32), next(iter(Suite))
    )


def session(keep_alive_s=100):
    return Session(RoundRobin(), 0.0, keep_alive_s=keep_alive_s)


@given(st.binary(min_size=IDLE_BYTES, max_size=IDLE_BYTES))
def test_any_bytes_are_some_record(packed):
    assert IdleRecord.from_bytes(packed).to_bytes() == packed


def test_a_session_sleeps_wakes_after_a_restart_and_expires_in_its_time(tmp_path):
    sleepers, mine, core = IdleSessions(tmp_path / "idle"), credentials(), session()
    core.path_up(1, PathFacts(), 0.0)
    core.path_lost(1, 5.0)
    core.write(b"not yet")
    assert not sleepers.sleep(mine, core, 15.0, 1e9)
    core = session()
    core.path_up(1, PathFacts(), 0.0)
    core.path_lost(1, 5.0)
    assert sleepers.sleep(mine, core, 15.0, 1e9, b"abc")
    sleepers.close()

    sleepers = IdleSessions(tmp_path / "idle")
    assert len(sleepers) == 1
    assert sleepers.find(mine.flow_id) == mine
    assert sleepers.find(bytes(16)) is None
    woken = sleepers.wake(mine.flow_id, RoundRobin(), 3.0, 1e9 + 40, limits=SessionLimits())
    assert woken[1] == b"abc" + bytes(5)
    assert woken[0].absent_since_s == 3.0 - 50
    assert woken[0].next_timer() == 3.0 + 50
    assert sleepers.expire(1e9 + 89, lambda _: False) == 0
    assert sleepers.expire(1e9 + 90, lambda _: True) == 0
    assert sleepers.wake(mine.flow_id, RoundRobin(), 3.0, 1e9 + 90, limits=SessionLimits()) is None
    assert len(sleepers) == 0
    sleepers.close()


def test_beyond_the_limit_new_sessions_are_not_written_down(tmp_path):
    sleepers, first = IdleSessions(tmp_path / "idle", most=1), credentials()
    second = replace(first, flow_id=bytes(16))
    sleepers.note(first, 50, 1e9)
    sleepers.note(second, 50, 1e9)
    core = session()
    core.path_up(1, PathFacts(), 0.0)
    core.path_lost(1, 5.0)
    assert not sleepers.sleep(second, core, 15.0, 1e9)
    assert len(sleepers) == 1
    assert sleepers.sleep(first, core, 15.0, 1e9)
    sleepers.forget(first.flow_id)
    assert sleepers.sleep(second, core, 15.0, 1e9)
    sleepers.close()


def exchange(here, there):
    """Exchange all records of both ends, until neither has any."""
    moved = True
    while moved:
        moved = False
        for one, other in ((here, there), (there, here)):
            while parts := one.next_record(one.paths[0].path_id, 70_000, 1.0):
                other.receive(other.paths[0].path_id, b"".join(parts), 1.0)
                moved = True


def test_a_woken_session_remembers_all_that_a_record_holds():
    here, there = session(), session()
    for each in (here, there):
        each.path_up(1, PathFacts(), 0.0)
    exchange(here, there)
    here.write(b"x" * 5_000)
    here.finish()
    for _ in range(20):
        here.send(b"m" * 40, 1)
    there.send(b"l" * 9_000, 3)
    exchange(here, there)
    for each in (here, there):
        while each.read() or each.receive_run():
            pass
        each.tick(2.0)
    exchange(here, there)
    for each in (here, there):
        each.path_lost(1, 3.0)
        each.events()
        idle = pack(each, 5.0, 1e9)
        woken = unpack_session(idle, RoundRobin(), 70.0, 1e9, limits=each.limits)
        assert pack(woken, 71.0, 1e9 + 1) == idle
        assert idle.reserved > 0
        assert idle.delivered > 0
        assert woken.at_eof == each.at_eof
        assert woken.sender.stream.ended == each.sender.stream.ended
        assert woken.positions() == each.positions()


def killed(path):
    """Return the sessions that the next process finds in the file as it is now."""
    copy = path.with_name("copy")
    shutil.copy(path, copy)
    return IdleSessions(copy)


def test_a_session_that_was_awake_when_its_program_was_killed_is_unknown_to_the_next(tmp_path):
    sleepers, core = IdleSessions(tmp_path / "idle"), session()
    new, woken, withdrawn, asleep = map(credentials, range(4))
    sleepers.note(new, 100, 1e9)
    for each in (woken, withdrawn, asleep):
        assert sleepers.sleep(each, core, 1.0, 1e9)
    sleepers.wake(woken.flow_id, RoundRobin(), 2.0, 1e9, limits=SessionLimits())
    sleepers.withdraw(withdrawn.flow_id)
    assert len(sleepers) == 4
    left = killed(tmp_path / "idle")
    assert [left.find(each.flow_id) for each in (new, woken, withdrawn)] == [None] * 3
    assert left.find(asleep.flow_id) == asleep
    left.close()
    content = (tmp_path / "copy").read_bytes()
    assert content.count(asleep.secret) == 1
    assert not any(each.secret in content for each in (new, woken, withdrawn))
    assert sleepers.sleep(withdrawn, core, 3.0, 1e9)
    assert killed(tmp_path / "idle").find(withdrawn.flow_id) == withdrawn
    sleepers.close()


@pytest.mark.parametrize("closed", [False, True])
def test_no_session_outlives_a_power_failure_of_a_running_program(tmp_path, monkeypatch, closed):
    """The disk may have the file as it was a while before."""
    sleepers, mine = IdleSessions(tmp_path / "idle"), credentials()
    assert sleepers.sleep(mine, session(), 1.0, 1e9)
    if closed:
        sleepers.close()
    (tmp_path / "boot").write_text("5a44a8a2-7a3b-45cb-8c2c-9a6c0d34bd4e\n")
    monkeypatch.setattr(idle_sessions, "_BOOT", tmp_path / "boot")
    found = killed(tmp_path / "idle").find(mine.flow_id)
    assert found == (mine if closed else None)


def test_without_a_disk_it_stays_awake(tmp_path, monkeypatch):
    sleepers = IdleSessions(tmp_path / "idle")

    def full(_file, _offset, _size):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    core = session()
    slept = sum(sleepers.sleep(credentials(each), core, 1.0, 1e9) for each in range(5_000))
    assert slept == len(sleepers) < 5_000
    sleepers.note(credentials(9_999), 100, 1e9)
    assert len(sleepers) == slept
    sleepers.close()


def test_a_file_that_grew_by_a_part_only_is_read(tmp_path, monkeypatch):
    """A full disk left a part of a slot at its end, and no gateway with this file started any more."""
    path, records = tmp_path / "idle", [n.to_bytes(16, "big") + bytes(16) for n in range(5_000)]
    with monkeypatch.context() as patched:

        def full(file, _offset, size):
            os.truncate(file, size - 7)
            raise OSError(errno.ENOSPC, "No space left on device")

        patched.setattr(os, "posix_fallocate", full)
        with pytest.raises(OSError, match="No space"):
            IdleFile(path, 32)
    for known in (0, 10, len(records)):
        file = IdleFile(path, 32)
        assert len(file) == known
        assert [file.get(each[:16]) for each in records[:known]] == records[:known]
        for each in records[: 10 if known == 0 else None]:
            file.put(each, RecordState.ASLEEP)
        file.close()
        with path.open("ab") as grown:
            grown.write(bytes(7))
