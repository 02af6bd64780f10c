"""An event log that clients begin and end: where it is written, and who may have what recorded."""

import os
import time

import pytest
from kit.controller import Script

from cedos.api.messages import RecordingRequest
from cedos.controller.events import ProvidersRead
from cedos.daemon import event_log
from cedos.daemon.event_log import Recording
from cedos.errors import HistoryError, NotFoundError, PrivilegeError

START, STOP = RecordingRequest(on=True, file="a.log"), RecordingRequest(on=False)
ROOT, MEMBER = 0, 70_001


@pytest.fixture
def log(tmp_path):
    recording = Recording(Script().controller, tmp_path)
    yield recording
    recording.end()


def test_a_log_begins_below_the_state_directory_for_the_daemons_user_alone(log, tmp_path):
    assert not log.state().on
    told = log.ask(START, MEMBER)
    file = tmp_path / "records" / "a.log"
    assert (told.on, told.files, told.names) == (True, (str(file),), False)
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert log.state() == told
    log.add(ProvidersRead(), 9.0, ())
    assert log.state().events == 1
    ended = log.ask(STOP, MEMBER)
    assert (ended.on, ended.files) == (False, told.files)
    assert file.stat().st_size == ended.size_bytes > 0
    assert log.state().files == ()


def test_no_second_log_begins_and_no_file_is_overwritten(log, tmp_path):
    with pytest.raises(NotFoundError, match="nothing is recorded"):
        log.ask(STOP, ROOT)
    log.ask(START, ROOT)
    with pytest.raises(HistoryError, match=r"recorded in .*a\.log already"):
        log.ask(RecordingRequest(on=True), ROOT)
    log.ask(STOP, ROOT)
    with pytest.raises(HistoryError, match="is there already"):
        log.ask(START, ROOT)
    assert not log.state().on
    named = log.ask(RecordingRequest(on=True), ROOT)
    assert named.files[0].startswith(str(tmp_path / "records" / time.strftime("%Y-")))


def test_only_root_may_have_the_names_of_hosts_recorded(log):
    wish = RecordingRequest(on=True, names=True)
    with pytest.raises(PrivilegeError, match="only root"):
        log.ask(wish, MEMBER)
    assert log.ask(wish, ROOT).names


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_link_leads_the_daemon_nowhere_else(log, tmp_path, what):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    if what == "folder":
        (tmp_path / "records").symlink_to(elsewhere)
    else:
        (tmp_path / "records").mkdir()
        (tmp_path / "records" / "a.log").symlink_to(elsewhere / "a.log")
    with pytest.raises(HistoryError):
        log.ask(START, ROOT)
    assert list(elsewhere.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_another_users_folder_is_not_used(log, tmp_path):
    (tmp_path / "records").mkdir()
    os.chown(tmp_path / "records", MEMBER, MEMBER)
    with pytest.raises(HistoryError, match="cannot be used"):
        log.ask(START, ROOT)


def test_who_begins_log_after_log_does_not_fill_the_disk(log, monkeypatch):
    monkeypatch.setattr(event_log, "MOST_BYTES", 100)
    log.ask(START, MEMBER)
    log.ask(STOP, MEMBER)
    with pytest.raises(HistoryError, match="earlier logs"):
        log.ask(RecordingRequest(on=True, file="b.log"), MEMBER)


def test_who_begins_log_after_log_leaves_a_bounded_number_of_files(log, monkeypatch, tmp_path):
    """Begin and end logs as a member did, who left 87,000 of them, at 26 a second."""
    monkeypatch.setattr(event_log, "MOST_FILES", 3)
    for number in range(3):
        log.ask(RecordingRequest(on=True, file=f"{number}.log"), MEMBER)
        log.ask(STOP, MEMBER)
    with pytest.raises(HistoryError, match="3 earlier logs"):
        log.ask(RecordingRequest(on=True, file="3.log"), MEMBER)
    (tmp_path / "records" / "1.log").unlink()
    assert log.ask(RecordingRequest(on=True, file="3.log"), MEMBER).on


def test_where_a_log_could_not_be_written_any_more_another_one_may_begin(log):
    log.ask(START, ROOT)
    log.log.problem = "the disk is full"
    assert (log.state().on, log.state().problem) == (False, "the disk is full")
    assert log.ask(RecordingRequest(on=True, file="b.log"), ROOT).on
