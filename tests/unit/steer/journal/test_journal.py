"""The journal: on the disk before the change, whole again after any kill."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.errors import AlreadyRunningError, SteeringError
from cedos.steer.journal.journal import FILE_NAME, Journal

values = st.one_of(st.text(), st.integers(), st.none(), st.lists(st.text(), max_size=3))
records = st.lists(
    st.builds(
        lambda kind, rest: {**rest, "undo": kind},
        st.text(),
        st.dictionaries(st.text(), values, max_size=4),
    ),
    max_size=6,
)


@pytest.fixture(scope="session")
def fresh(tmp_path_factory):
    """A folder of its own for each example."""
    return lambda: tmp_path_factory.mktemp("state")


def write(directory: Path, what: list[dict]) -> bytes:
    journal = Journal(directory)
    for record in what:
        journal.append(record)
    journal.close()
    path = directory / FILE_NAME
    return path.read_bytes() if path.exists() else b""


def read(directory: Path) -> list[dict]:
    journal = Journal(directory)
    try:
        return journal.records()
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
    write(directory, [{"undo": "next"}])
    assert read(directory) == [*found, {"undo": "next"}]


@given(garbage=st.binary(max_size=300))
def test_garbage_never_raises(fresh, garbage):
    directory = fresh()
    (directory / FILE_NAME).write_bytes(garbage)
    read(directory)
    write(directory, [{"undo": "next"}])
    assert read(directory)[-1] == {"undo": "next"}


def test_deep_nesting_never_raises(tmp_path):
    (tmp_path / FILE_NAME).write_bytes(b"[" * 100_000)
    assert read(tmp_path) == []


def test_the_record_is_on_the_disk_before_append_returns(tmp_path, monkeypatch):
    steps = []
    real_write, real_fsync = os.write, os.fsync
    monkeypatch.setattr(os, "write", lambda f, d: (steps.append("write"), real_write(f, d))[1])
    monkeypatch.setattr(os, "fsync", lambda f: (steps.append(f"fsync {f}"), real_fsync(f))[1])
    journal = Journal(tmp_path)
    journal.append({"undo": "x"})
    assert steps.index("write") < len(steps) - 1
    assert steps[-1] == f"fsync {journal._file}"
    # The folder too, or the file itself could be missing after a power cut.
    assert f"fsync {journal._directory}" in steps
    journal.close()


def test_short_writes_are_finished(tmp_path, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, data: real(file, data[:3]))
    journal = Journal(tmp_path)
    journal.append({"undo": "something long"})
    journal.close()
    assert read(tmp_path) == [{"undo": "something long"}]


def test_a_full_disk_is_refused_and_the_next_record_is_whole(tmp_path, monkeypatch):
    real = os.write
    journal = Journal(tmp_path)
    journal.append({"undo": "first"})

    def full(file, data):
        if len(data) > 5:
            return real(file, data[:5])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(SteeringError, match="No space left"):
        journal.append({"undo": "second one"})
    monkeypatch.setattr(os, "write", real)
    journal.append({"undo": "third"})
    assert journal.records() == [{"undo": "first"}, {"undo": "third"}]
    journal.close()


def test_only_one_process_has_it(tmp_path):
    first = Journal(tmp_path)
    with pytest.raises(AlreadyRunningError, match="is steering now"):
        Journal(tmp_path)
    first.close()
    Journal(tmp_path).close()


def test_it_is_gone_when_everything_is_undone(tmp_path):
    journal = Journal(tmp_path)
    journal.append({"undo": "x"})
    journal.remove()
    journal.remove()
    assert journal.records() == []
    assert not (tmp_path / FILE_NAME).exists()
    journal.append({"undo": "y"})
    assert json.loads((tmp_path / FILE_NAME).read_text()) == {"undo": "y"}
    journal.close()


def test_a_folder_that_is_none_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SteeringError, match="file"):
        Journal(tmp_path / "file" / "state")
