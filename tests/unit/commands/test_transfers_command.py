"""`cedos transfers`, line by line."""

import json
import os
import socket
import time
from datetime import datetime, timedelta

import msgspec
import pytest
from click.testing import CliRunner

from cedos.api.transfers import TransferInTable, TurnMessage
from cedos.commands.transfers import command, lines
from cedos.daemon.transfers import FILE
from cedos.errors import DaemonUnreachableError
from cedos.model import Direction

NOW = datetime(2026, 11, 24, 17, 0)


def waiting(*, running=True, uid=1000):
    begin, wanted = (NOW.replace(hour=hour, minute=42).timestamp() for hour in (17, 18))
    return TransferInTable(
        key="0" * 32,
        uid=uid,
        name="song.flac",
        server="server.example",
        direction=Direction.DOWN,
        size_bytes=100_000_000,
        done_bytes=40_000_000,
        bytes_by_network={"lte0": 1_000_000, "wlan0": 39_000_000},
        deadline_unix_s=wanted,
        running=running,
        turn=TurnMessage(spare=("lte0",), begin_unix_s=begin, metered_bytes=60e6),
    )


def test_what_waits_is_explained_at_once():
    text = "\n".join(lines([waiting()], NOW, 1000))
    assert "song.flac" in text
    assert "18:42" in text
    assert "40 MB of 100 MB (40 %): 98 % over wlan0, 2 % over lte0" in text
    assert "waiting for Wi-Fi, begins at the latest 17:42 over lte0" in text
    assert "60 MB of it metered" in text
    assert "USER" not in text


def test_what_failed_says_why_and_when_it_is_tried_again():
    again = NOW + timedelta(minutes=40)
    failed = msgspec.structs.replace(
        waiting(), why="the server does not answer", again_unix_s=again.timestamp()
    )
    assert list(lines([failed], NOW, 1000))[-1].strip() == (
        "the server does not answer; tried again at 17:40"
    )
    late = list(lines([failed], NOW + timedelta(minutes=110), 1000))[-1].strip()
    assert late.startswith("wanted by 18:42:00, which has passed; the server does not answer; ")
    late_evening = NOW.replace(hour=23, minute=30)
    after = msgspec.structs.replace(
        failed, deadline_unix_s=NOW.timestamp() + 90_000.0,
        again_unix_s=(late_evening + timedelta(hours=1)).timestamp(),
    )  # fmt: skip
    assert "; tried again tomorrow 00:30" in list(lines([after], late_evening, 1000))[-1]
    ended = msgspec.structs.replace(failed, running=False)
    said = " ".join(" ".join(lines([ended], NOW, 1000)).split())
    assert "; last tried in vain: the server does not answer" in said
    assert "tried again" not in said


@pytest.fixture
def left(tmp_path, monkeypatch):
    """The table of a daemon that is away."""
    for name in ("RUNTIME", "STATE"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(f"CEDOS_{name}_DIR", str(tmp_path / name))
    row = {
        "key": "0" * 32, "uid": os.getuid(), "name": "film.mkv", "server": "there", "direction": "down",
        "size_bytes": 12_000_000, "done_bytes": 6_000_000, "deadline_unix_s": time.time() + 3600.0,
    }  # fmt: skip
    path = tmp_path / "STATE" / FILE
    path.write_text(json.dumps({"rows": [[row, {"wlan0": 6_000_000}], "odd"], "networks": {}}))
    os.utime(path, (time.time() - 60.0, time.time() - 60.0))
    return path


def test_while_no_daemon_answers_what_it_knew_is_shown(left):
    result = CliRunner().invoke(command)
    assert isinstance(result.exception, DaemonUnreachableError)
    assert "what waits goes on by itself" in str(result.exception)
    since = datetime.fromtimestamp(left.stat().st_mtime)
    assert result.stdout.startswith(
        f"No daemon answers. What the last one knew, {since:%H:%M:%S}:\n"
    )
    assert "6 MB of 12 MB (50 %): 100 % over wlan0" in result.stdout
    assert "no daemon plans it: its program does, if that runs" in result.stdout
    told = json.loads(CliRunner().invoke(command, ["--json"]).stdout)
    assert told["daemon_answers"] is False
    assert "no daemon answers on" in told["error"]
    assert told["known_unix_s"] == left.stat().st_mtime
    assert [each["name"] for each in told["transfers"]] == ["film.mkv"]


@pytest.mark.parametrize("content", [None, "{"])
def test_where_nobody_can_tell_it_says_that_it_goes_on(left, content):
    left.unlink()
    if content is not None:
        left.write_text(content)
    result = CliRunner().invoke(command)
    assert result.stdout == ""
    assert "what waits goes on by itself" in str(result.exception)
    told = json.loads(CliRunner().invoke(command, ["--json"]).stdout)
    assert (told["known_unix_s"], told["transfers"]) == (None, None)
    assert content is None or left.read_text() == content  # it is the daemon's to put aside


def test_a_daemon_that_stands_still_is_not_waited_for(left):
    path = left.parent.parent / "RUNTIME" / "control.sock"
    with socket.socket(socket.AF_UNIX) as still:
        still.bind(str(path))
        still.listen()
        began_s = time.monotonic()
        result = CliRunner().invoke(command)
        assert time.monotonic() - began_s < 4.5
    assert "no answer for 3.5 s" in str(result.exception)
    assert "film.mkv" in result.stdout


def test_whose_program_does_not_run_says_what_to_do():
    text = "\n".join(lines([waiting(running=False, uid=0)], NOW, 1000))
    assert "its program does not run: it waits until the same command is given again" in text
    assert "root" in text
    late = "\n".join(lines([waiting(running=False)], NOW + timedelta(hours=2), 1000))
    assert "late, and its program does not run: the same command, given again, goes on" in late


def test_nothing_waits():
    (line,) = lines([], NOW, 0)
    assert "cedos-get --by 18:00" in line
