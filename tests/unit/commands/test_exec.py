"""`cedos exec`: what is said to the daemon, and how the program's end is passed on."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from cedos.commands.exec import _caller
from cedos.controller.hint import MAX_LIFETIME_S, HintRequest, program_mark
from cedos.errors import HostError
from cedos.kernel import bpf
from cedos.kernel.bpf import run_inside
from cedos.model import Bulk, Direction, Urgency


@pytest.fixture
def cgroup(tmp_path):
    """A folder that looks like a cgroup's, as far as `run_inside` goes."""
    (tmp_path / "cgroup.procs").touch()
    leaf = tmp_path / "leaf"
    leaf.mkdir()
    (leaf / "cgroup.procs").touch()
    return leaf


@pytest.fixture
def no_marks(cgroup, monkeypatch):
    """Marking without privileges: remembers the marks."""
    marks = []

    @contextmanager
    def fake(mark):
        marks.append(mark)
        yield cgroup

    monkeypatch.setattr(bpf, "marked_cgroup", fake)
    return marks


def test_what_the_daemon_hears(cedos, control, fake_daemon, no_marks, monkeypatch):
    heard = []

    def run(cgroup, command, user):
        heard.extend(fake_daemon.hints.values())
        assert command == ("/bin/curl", "-O", "--size", "x")
        return 0

    monkeypatch.setattr(bpf, "run_inside", run)
    options = ["--label", "background", "-l", "small", "--size", "2GB", "--up", "-d", "2min"]
    result = cedos("exec", *options, "--", "/bin/curl", "-O", "--size", "x")
    assert result.exit_code == 0, result.output
    assert heard == [
        HintRequest(
            program="curl",
            size_bytes=2_000_000_000,
            direction=Direction.UP,
            urgency=Urgency.BACKGROUND,
            bulk=Bulk.SMALL,
            deadline_s=120.0,
            lifetime_s=MAX_LIFETIME_S,
        )
    ]
    assert no_marks == [program_mark(1)]
    assert fake_daemon.hints == {}  # taken back at the end


@pytest.mark.parametrize(("script", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)])
def test_exit_status(cedos, control, no_marks, script, status):
    assert cedos("exec", "--", "sh", "-c", script).exit_code == status


def test_commands_that_are_not_there(cedos, control, fake_daemon, no_marks, tmp_path):
    result = cedos("exec", "--", "no-such-program")
    assert (result.exit_code, result.stderr) == (127, "cedos: no-such-program was not found\n")
    (tmp_path / "plain").touch()
    assert cedos("exec", "--", str(tmp_path / "plain")).exit_code == 126
    assert fake_daemon.hints == {}


def test_labels_that_exclude_each_other(cedos, control):
    result = cedos("exec", "-l", "small", "-l", "large", "--", "true")
    assert result.exit_code == 2
    assert "large and small exclude each other" in result.stderr


def test_signals_reach_the_program(cgroup):
    code = (
        "import sys; from pathlib import Path; from cedos.kernel.bpf import run_inside\n"
        "sys.exit(run_inside(Path(sys.argv[1]), ['sh', '-c', 'echo on; sleep 30 & wait']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(cgroup)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"on\n"
        for number in (signal.SIGINT, signal.SIGQUIT):
            process.send_signal(number)  # reaches the program from the terminal, not from us
        time.sleep(0.1)
        assert process.poll() is None
        process.terminate()
        assert process.wait(10) == 128 + signal.SIGTERM


def test_the_program_enters_and_we_leave(cgroup):
    assert run_inside(cgroup, ["true"]) == 0
    assert (cgroup / "cgroup.procs").read_text() == "0"
    assert (cgroup.parent / "cgroup.procs").read_text() == "0"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
def test_the_program_runs_as_who_called_sudo(cgroup, tmp_path, monkeypatch):
    monkeypatch.setenv("SUDO_UID", "65534")
    user = _caller()
    assert user.uid == 65534
    status = run_inside(
        cgroup, ["sh", "-c", 'test "$(id -u)" = 65534 && test "$(id -G)" = 65534'], user
    )
    assert status == 0
    monkeypatch.setenv("SUDO_UID", "123456")
    with pytest.raises(HostError, match="names user 123456"):
        _caller()
    for value in ("", "0", "x"):
        monkeypatch.setenv("SUDO_UID", value)
        assert _caller() is None


def test_a_daemon_that_cannot_steer_by_mark(cedos, control, fake_daemon, no_marks):
    fake_daemon.marks = False
    result = cedos("exec", "--", "true")
    assert (result.exit_code, no_marks) == (4, [])
    assert "cannot steer by mark" in result.stderr
    assert fake_daemon.hints == {}
