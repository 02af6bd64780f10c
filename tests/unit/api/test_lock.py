"""Two daemons never steer one namespace."""

import fcntl
import os
import select
import shutil
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cedos.api import lock
from cedos.api.lock import daemon_of, only_daemon, running_pid
from cedos.errors import AlreadyRunningError, HostError, PrivilegeError
from cedos.kernel.privileges import PART_NAME

HOLDER = """
import sys
from pathlib import Path
from cedos.api import lock
lock._NAME = "\\0" + sys.argv[2]
with lock.only_daemon(Path(sys.argv[1]), steers=True):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def name(monkeypatch):
    """An abstract name of this test's own, so that tests may run side by side."""
    name = f"\0cedos-test-{os.getpid()}"
    monkeypatch.setattr(lock, "_NAME", name)
    return name


def test_the_lock_is_free_again_afterwards(tmp_path, name):
    pid_file = tmp_path / "run" / "daemon.pid"
    assert running_pid(pid_file) is None
    for _ in range(2):
        with only_daemon(pid_file):
            assert running_pid(pid_file) == os.getpid()
        assert running_pid(pid_file) is None


def test_a_second_daemon_with_the_same_directory(tmp_path, name):
    pid_file = tmp_path / "daemon.pid"
    with only_daemon(pid_file, steers=False):
        with (
            pytest.raises(AlreadyRunningError, match=rf"process {os.getpid()}.*{pid_file}"),
            only_daemon(pid_file, steers=False),
        ):
            pass
        assert running_pid(pid_file) == os.getpid()


def test_a_stranger_who_locks_the_file_keeps_nobody_from_starting(tmp_path, name):
    pid_file = tmp_path / "daemon.pid"
    pid_file.write_text("4194305\n")  # no process can have this number
    with pid_file.open() as strangers:
        fcntl.flock(strangers, fcntl.LOCK_SH)
        with only_daemon(pid_file):
            assert running_pid(pid_file) == os.getpid()
            assert stat.S_IMODE(pid_file.stat().st_mode) == 0o600


def test_who_may_not_open_the_file_is_told_who_steers(tmp_path, name, monkeypatch):
    monkeypatch.setattr(lock, "_can_steer", lambda uid: True)

    def refuse(*_, **__):
        raise PermissionError

    with only_daemon(tmp_path / "daemon.pid"):
        monkeypatch.setattr(os, "open", refuse)
        for _ in range(5):  # however often
            assert running_pid(tmp_path / "daemon.pid") == os.getpid()
            time.sleep(0.1)
    assert running_pid(tmp_path / "daemon.pid") is None


def test_a_second_daemon_with_other_directories(tmp_path, name, monkeypatch):
    monkeypatch.setattr(lock, "_can_steer", lambda uid: True)
    with only_daemon(tmp_path / "a.pid"):
        with (
            pytest.raises(AlreadyRunningError, match=rf"process {os.getpid()}.*this network"),
            only_daemon(tmp_path / "b.pid"),
        ):
            pass
        assert running_pid(tmp_path / "b.pid") is None
        with only_daemon(tmp_path / "c.pid", steers=False):
            pass


@pytest.mark.parametrize("queue", [None, 0, 1])
def test_a_holder_without_privileges_is_no_daemon(tmp_path, name, monkeypatch, queue):
    """A user that did not listen, or filled the queue, kept the daemon from starting."""
    monkeypatch.setattr(lock, "_can_steer", lambda uid: False)
    with socket.socket(socket.AF_UNIX) as squatter, socket.socket(socket.AF_UNIX) as waiting:
        squatter.bind(name)
        if queue is not None:
            squatter.listen(queue)
            waiting.connect(name)
        with only_daemon(tmp_path / "daemon.pid"):
            pass


def test_a_killed_daemon_leaves_nothing_held(tmp_path, name, monkeypatch):
    monkeypatch.setattr(lock, "_can_steer", lambda uid: True)
    pid_file = tmp_path / "daemon.pid"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(pid_file), name[1:]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert select.select([other.stdout], [], [], 20)[0]
        assert other.stdout.readline() == b"held\n"
        assert running_pid(pid_file) == other.pid
        for path in (pid_file, tmp_path / "elsewhere.pid"):
            with (
                pytest.raises(AlreadyRunningError, match=f"process {other.pid}"),
                only_daemon(path),
            ):
                pass
        other.kill()
    assert running_pid(pid_file) is None
    with only_daemon(pid_file):
        assert running_pid(pid_file) == os.getpid()


USERS_HOLDER = """
import os, socket, sys
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
holding = socket.socket(socket.AF_UNIX)
holding.bind("\\0" + sys.argv[1])
holding.set_inheritable(True)
holding.listen(1)
words = ["unshare", "--user", "--map-root-user", "sh", "-c", "echo; exec sleep 60"]
os.execv(sys.argv[2], words)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
def test_a_user_cannot_pass_for_a_daemon_by_capabilities(tmp_path, name):
    """A user kept it from starting as root of a namespace of their own, or with a socket left to `su`."""
    command = [sys.executable, "-c", USERS_HOLDER, name[1:], shutil.which("unshare") or ""]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as user:
        try:
            if user.stdout.readline() != b"\n":
                pytest.skip("users have no namespaces here")
            status = Path(f"/proc/{user.pid}/status").read_text()
            assert "CapEff:\t0000000000000000" not in status
            with only_daemon(tmp_path / "daemon.pid"):
                pass
        finally:
            user.kill()


def test_who_can_steer():
    assert lock._can_steer(os.geteuid())
    assert lock._can_steer(0)
    assert not lock._can_steer(2**22 + 1)


def test_places_that_cannot_hold_a_pid_file(tmp_path, name):
    (tmp_path / "file").touch()
    with pytest.raises(HostError, match="File exists"), only_daemon(tmp_path / "file/d.pid"):
        pass
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(HostError, match="symbolic"), only_daemon(tmp_path / "link"):
        pass
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
def test_no_privilege(tmp_path, name):
    if (child := os.fork()) == 0:
        os.setuid(65534)
        try:
            with only_daemon(tmp_path / "x/daemon.pid"):
                os._exit(0)
        except PrivilegeError as error:
            os._exit(7 if "CEDOS_RUNTIME_DIR" in str(error) else 8)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_a_privileged_part_is_its_daemons():
    assert daemon_of(os.getpid()) == os.getpid()
    assert daemon_of(2**22 + 1) == 2**22 + 1  # no such process
    name = (
        "import ctypes, sys, time; ctypes.CDLL(None).prctl(15, sys.argv[1].encode());"
        "print(flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", name, PART_NAME], stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        assert daemon_of(process.pid) == os.getpid()
        process.kill()


@pytest.mark.timeout(10)
def test_what_was_put_in_the_lock_s_place_is_not_waited_for(tmp_path):
    """The folder is the daemon's user's: root's `cedos restore` and `doctor` look there."""
    pipe, link, endless = (tmp_path / name for name in ("pipe", "link", "endless"))
    os.mkfifo(pipe)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("1\n")
    link.symlink_to(elsewhere)
    with endless.open("wb") as file:
        file.truncate(1 << 40)
    held = [os.open(each, os.O_RDWR) for each in (pipe, elsewhere, endless)]
    try:
        for each in held:
            fcntl.flock(each, fcntl.LOCK_EX)
        assert [running_pid(each) for each in (pipe, link, endless)] == [None, None, None]
    finally:
        for each in held:
            os.close(each)
