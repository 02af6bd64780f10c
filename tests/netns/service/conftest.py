"""A machine of its own, in namespaces and with systemd as its first process."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from kit.waiting import wait_until

from tests.netns.gateway.conftest import laptop

__all__ = ["laptop"]

SYSTEMD = Path("/lib/systemd/systemd")
_SCRIPT = Path(__file__).with_name("machine.sh")
_CGROUPS = (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))
# No units of the distribution: these would tidy up, mount and configure.
_TARGET = "[Unit]\nDefaultDependencies=no\nAllowIsolate=yes\n"
_UP_S = 20.0
# What ./test unpacks and does not install: this host's network is not to be managed by them.
_PACKAGES = Path(__file__).parents[3] / ".tools" / "desktop"


class Machine:
    """`systemctl` asks its systemd; `pid` is that one's, as the host counts."""

    def __init__(self, pid, log):
        self.pid, self.log = pid, log

    def run(self, *command, check=True):
        inside = ("nsenter", "-t", str(self.pid), "-m", "-p", "-n", "-u", "-i", "-C", "--")
        done = subprocess.run(
            (*inside, *command), check=False, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0 or not check, (command, done.stderr, self.log.read_text())
        return done

    def write(self, path, text):
        """Makes a file that only root may read."""
        line = 'umask 077; mkdir -p "${1%/*}"; printf %s "$2" > "$1"'
        self.run("sh", "-c", line, "sh", path, text)

    def systemctl(self, *words, check=True):
        return self.run("systemctl", *words, check=check).stdout

    def shown(self, unit, what):
        return self.systemctl("show", "--value", "-p", what, unit).strip()


@pytest.fixture
def machine(tmp_path):
    """`machine(namespace, units)`: starts one there, with these unit files.

    `desktop=True`: with NetworkManager and systemd-resolved as Debian has them, not started.
    """
    cgroups = next((each for each in _CGROUPS if (each / "cgroup.procs").exists()), None)
    if not SYSTEMD.exists() or cgroups is None or shutil.which("unshare") is None:
        pytest.skip("needs systemd, cgroup v2 and unshare")
    cgroup = cgroups / f"cedos-test-{os.getpid()}"
    started = []

    def start(where, units, *, desktop=False):
        if desktop and not _PACKAGES.is_dir():
            pytest.skip("needs Debian's NetworkManager, which ./test unpacks")
        folder, files, log = (tmp_path / name for name in ("machine", "units", "systemd.log"))
        folder.mkdir()
        files.mkdir()
        for name, text in {"machine.target": _TARGET, **units}.items():
            path = files / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        cgroup.mkdir(exist_ok=True)
        kinds = ("--pid", "--mount", "--uts", "--ipc", "--cgroup")
        with log.open("w") as out:
            process = subprocess.Popen(
                where.command(
                    *("sh", "-c", 'echo 0 > "$0"/cgroup.procs; exec "$@"', str(cgroup)),
                    *("unshare", *kinds, "--fork", "--kill-child"),
                    *("sh", str(_SCRIPT), str(folder), str(files)),
                    *([str(_PACKAGES)] if desktop else []),
                ),
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        started.append(process)
        made = Machine(_child(process, log), log)

        def runs():
            state = made.run("systemctl", "is-system-running", check=False).stdout.strip()
            return state in {"running", "degraded"}

        wait_until(runs, _UP_S, every_s=0.1, describe=log.read_text)
        return made

    yield start
    for process in started:
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    for _ in range(50):
        if not cgroup.exists():
            break
        for each in sorted(cgroup.rglob("*"), key=lambda path: -len(path.parts)):
            if each.is_dir():
                _remove(each)
        _remove(cgroup)
        time.sleep(0.1)


def _child(process, log):
    """The machine's first process, once it is systemd."""
    deadline_s = time.monotonic() + _UP_S
    while time.monotonic() < deadline_s and process.poll() is None:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        if children and "systemd" in Path(f"/proc/{children[0]}/comm").read_text():
            return int(children[0])
        time.sleep(0.05)
    raise AssertionError(log.read_text())


def _remove(folder):
    try:
        folder.rmdir()
    except OSError:
        return
