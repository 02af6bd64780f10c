"""The journal: on the disk before the change, whole again after any kill, and believed only so far."""

import fcntl
import os
import stat

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.errors import AlreadyRunningError, SteeringError
from cedos.host.steer.journal import FILE_NAME, LOCK_NAME, Journal
from cedos.host.steer.journal_records import (
    CONNECTIONS,
    CONNTRACK_ACCOUNTING,
    FILTER,
    RESCUE,
    ROUTING,
    TCP_RMEM,
    HostRecord,
    SysctlRecord,
    journal_line,
    read_records,
)

HOST = HostRecord({CONNTRACK_ACCOUNTING: "0"})
sizes = st.integers(1, 2**31 - 1)
records = st.lists(
    st.one_of(
        st.sampled_from([ROUTING, FILTER, CONNECTIONS, RESCUE]),
        st.builds(
            lambda before, after: SysctlRecord(TCP_RMEM, f"4096 {before}\t5", f"1 {after} 3"),
            sizes,
            sizes,
        ),
    ),
    max_size=6,
).map(lambda rest: [HOST, *rest])


def write(directory, what):
    journal = Journal(directory)
    for record in what:
        journal.append(record)
    journal.close()
    path = directory / FILE_NAME
    return path.read_bytes() if path.exists() else b""


def read(directory):
    journal = Journal(directory)
    try:
        return list(journal.read().records)
    finally:
        journal.close()


@given(what=records)
def test_what_was_appended_is_there_afterwards(fresh, what):
    directory = fresh()
    write(directory, what)
    assert read(directory) == what


@given(what=records, data=st.data())
def test_a_kill_in_the_middle_of_a_write_loses_no_more_than_that_line(fresh, what, data):
    directory = fresh()
    whole = write(directory, what)
    cut = data.draw(st.integers(0, len(whole)))
    (directory / FILE_NAME).write_bytes(whole[:cut])
    complete = what[: whole[:cut].count(b"\n")]
    found = read(directory)
    # Where only the line's end is missing, the record is whole all the same.
    assert found in (complete, what[: len(complete) + 1])
    # And what is appended then is not swallowed by the torn line.
    write(directory, [RESCUE])
    assert read(directory) == [*found, RESCUE]


@given(garbage=st.binary(max_size=300))
def test_garbage_never_raises(fresh, garbage):
    directory = fresh()
    (directory / FILE_NAME).write_bytes(garbage)
    read(directory)
    write(directory, [RESCUE])
    assert read(directory)[-1] == RESCUE


def test_the_record_is_on_the_disk_before_append_returns(tmp_path, monkeypatch):
    steps = []
    real_write, real_fsync = os.write, os.fsync
    monkeypatch.setattr(os, "write", lambda f, d: (steps.append("write"), real_write(f, d))[1])
    monkeypatch.setattr(os, "fsync", lambda f: (steps.append(f"fsync {f}"), real_fsync(f))[1])
    journal = Journal(tmp_path)
    journal.append(ROUTING)
    assert steps.index("write") < len(steps) - 1
    assert steps[-1] == f"fsync {journal._file}"
    # The folder too, or the file itself could be missing after a power cut.
    assert f"fsync {journal._directory}" in steps
    journal.close()


def test_a_full_disk_is_refused_and_the_next_record_is_whole(tmp_path, monkeypatch):
    real = os.write
    journal = Journal(tmp_path)
    journal.append(ROUTING)

    def full(file, data):
        if len(data) > 5:
            return real(file, data[:5])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(SteeringError, match="No space left"):
        journal.append(SysctlRecord("net.mptcp.close_timeout", "60", "1"))
    journal.append(CONNECTIONS)  # what bears our mark is undone without it
    monkeypatch.setattr(os, "write", real)
    journal.append(FILTER)
    assert list(journal.read().records) == [ROUTING, FILTER]
    assert list(journal.appended) == [ROUTING, CONNECTIONS, FILTER]
    journal.close()


def test_only_one_process_has_it(tmp_path):
    first = Journal(tmp_path)
    with pytest.raises(AlreadyRunningError, match="is steering now"):
        Journal(tmp_path)
    first.close()
    Journal(tmp_path).close()


def test_a_folder_that_is_none_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SteeringError, match="file"):
        Journal(tmp_path / "file" / "state")


def read_text(directory):
    return (directory / FILE_NAME).read_text()


ATTACKS = [
    b'{"undo":"sysctl","key":"kernel.core_pattern","before":"|/tmp/x","after":"core"}',
    b'{"undo":"sysctl","key":"/etc/cron.d/x","before":"* * * * * root x","after":""}',
    b'{"undo":"sysctl","key":"../../etc/passwd","before":"x","after":"y"}',
    b'{"undo":"sysctl","key":"net.ipv4.tcp_rmem","before":"1 2 3\\n4","after":"1 2 3"}',
    b'{"undo":"sysctl","key":"net.ipv4.tcp_rmem","before":"0 -1 3","after":"1 2 3"}',
    b'{"undo":"sysctl","key":"net.mptcp.path_manager","before":"a/b","after":"userspace"}',
    b'{"undo":"sysctl","key":"net.mptcp.close_timeout","before":60,"after":1}',
    b'{"undo":"sysctl","key":"net.mptcp.close_timeout","before":"60","after":"1","also":"x"}',
    b'{"undo":"sysctl","key":"net.mptcp.close_timeout"}',
    *(
        b'{"undo":"sysctl","key":"net.ipv6.conf.%s.use_oif_addrs_only","before":"0","after":"1"}'
        % name
        for name in (b"all", b"default", b"", b"/", b"a/../b", b"../a")
    ),
    b'{"undo":"host","before":{"kernel.modprobe":"/tmp/x"}}',
    b'{"undo":"routing","table":254}',
    b'{"undo":"packet-filter","chain":"INPUT"}',
    b'{"undo":"something newer"}',
    b'{"undo":7}',
]


@pytest.mark.parametrize("line", ATTACKS)
def test_what_cedos_never_writes_is_no_record_and_is_told(tmp_path, line):
    write(tmp_path, [HOST, ROUTING])
    with (tmp_path / FILE_NAME).open("ab") as file:
        file.write(line + b"\n")
    journal = Journal(tmp_path)
    found = journal.read()
    journal.close()
    assert found.records == [HOST, ROUTING]
    (told,) = found.foreign
    assert told.startswith("line 3 of the journal")
    assert told.isprintable()


def test_control_characters_of_a_journal_are_not_printed(tmp_path):
    (tmp_path / FILE_NAME).write_bytes(b'{"undo":"\\u001b]0;x\\u0007"}\n{"undo":"\xc2\x9b31m"}\n')
    journal = Journal(tmp_path)
    assert all(line.isprintable() for line in journal.read().foreign)
    journal.close()


def test_a_flood_of_lines_is_told_in_few_words(tmp_path):
    (tmp_path / FILE_NAME).write_bytes(b'{"undo":"x"}\n' * 50_000)
    journal = Journal(tmp_path)
    found = journal.read()
    journal.close()
    assert len(found.foreign) == 21
    assert found.foreign[-1].startswith("49980 more")


@pytest.mark.parametrize("plant", ["fifo", "link", "second name", "folder", "endless", "dangling"])
def test_what_is_no_file_of_ours_is_neither_read_nor_written(tmp_path, plant):
    state, elsewhere = tmp_path / "state", tmp_path / "crontab"
    state.mkdir()
    elsewhere.write_text("@daily true\n")
    path = state / FILE_NAME
    if plant == "fifo":
        os.mkfifo(path)
    elif plant == "link":
        path.symlink_to(elsewhere)
    elif plant == "second name":
        path.hardlink_to(elsewhere)
    elif plant == "folder":
        path.mkdir()
    elif plant == "dangling":
        path.symlink_to(tmp_path / "nothing")
    else:
        with path.open("wb") as file:
            file.truncate(1 << 40)
    journal = Journal(state)
    found = journal.read()
    assert not found.records
    assert found.damaged
    assert str(path) in found.foreign[0]
    if plant != "endless":
        with pytest.raises(SteeringError, match="journal"):
            journal.append(ROUTING)
    aside = journal.put_aside()
    assert os.path.lexists(aside)
    journal.append(ROUTING)
    journal.close()
    assert elsewhere.read_text() == "@daily true\n"
    assert not (tmp_path / "nothing").exists()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_journal_of_another_user_is_not_believed(tmp_path):
    write(tmp_path, [HOST, SysctlRecord(CONNTRACK_ACCOUNTING, "0", "1")])
    os.chown(tmp_path / FILE_NAME, 65534, 65534)
    journal = Journal(tmp_path)
    found = journal.read()
    journal.close()
    assert not found.records
    assert "belongs to another user (65534)" in found.foreign[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_stranger_who_locks_the_folder_keeps_nobody_out(tmp_path):
    strangers = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(strangers, fcntl.LOCK_EX)
    journal = Journal(tmp_path)
    assert stat.S_IMODE((tmp_path / LOCK_NAME).stat().st_mode) == 0o600
    journal.close()
    os.close(strangers)


def test_a_record_is_one_line_of_json():
    record = SysctlRecord(TCP_RMEM, "1\t2\t3", "4 5 6")
    line = msgspec.json.encode(record)
    assert msgspec.json.decode(line) == {
        "undo": "sysctl",
        "key": TCP_RMEM,
        "before": "1\t2\t3",
        "after": "4 5 6",
    }


def test_a_lost_or_changed_digit_is_damage_and_no_other_value():
    record = SysctlRecord("net.mptcp.close_timeout", "60", "30")
    line = journal_line(record)
    assert read_records(line).records == [record]
    for changed in (b'"6"', b'"61"', b'"600"'):
        found = read_records(line.replace(b'"60"', changed))
        assert not found.records
        assert found.damaged
    for cut in range(1, len(line) - 1):
        torn = read_records(line[:cut])  # its change was never made
        assert (list(torn.records), list(torn.foreign), torn.damaged) == ([], [], False)
