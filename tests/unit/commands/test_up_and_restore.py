"""`up` and `restore` with a daemon and steering of the test's own in their place."""

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
import time
import types
from contextlib import nullcontext

import pytest
from kit.waiting import wait_until

from cedos.api import lock
from cedos.api.lock import only_daemon
from cedos.commands import restore, up
from cedos.host.steer.undo import Undone

DAEMON = """
import asyncio, sys, types
from cedos.errors import ConfigError
module = types.ModuleType("cedos.daemon.service")
async def run(config, dry_run, config_file, **_):
    if config.energy.file:
        raise ConfigError("no such radios")
    try:
        print("running", config.decision.objective, dry_run, flush=True)
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0.3)
        print("undone", flush=True)
module.run = run
sys.modules["cedos.daemon.service"] = module
from cedos.api import lock
lock._NAME += sys.argv.pop(1)
from cedos.commands.cedos import main
main()
"""


@pytest.fixture(autouse=True)
def _own_name(monkeypatch):
    """Tests run side by side, and beside a daemon of the host."""
    monkeypatch.setattr(lock, "_NAME", f"\0cedos-test-up-{os.getpid()}")


@pytest.fixture(autouse=True)
def _hang_up():
    """Restore SIGHUP, which programs inherit as ignored if nohup runs the tests."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def a_daemon(monkeypatch, run):
    module = types.ModuleType("cedos.daemon.service")
    module.run = run
    monkeypatch.setitem(sys.modules, "cedos.daemon.service", module)
    # This process is to keep its privileges.
    part = types.ModuleType("cedos.host.privileged.process")
    part.privileged_process = lambda state: nullcontext()
    monkeypatch.setitem(sys.modules, "cedos.host.privileged.process", part)
    monkeypatch.setattr(up.privileges, "require", lambda what: None)


def start(*arguments, service=False):
    return subprocess.Popen(
        [sys.executable, "-c", DAEMON, str(os.getpid()), "up", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "INVOCATION_ID": "5" * 32 if service else ""},
        start_new_session=True,  # without a terminal
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_signals_let_it_undo_everything(folders, number):
    with start("--dry-run") as process:
        assert process.stdout.readline() == "running balanced True\n"
        process.send_signal(number)
        time.sleep(0.1)
        process.send_signal(number)  # a second one does not cut that short
        out, err = process.communicate(timeout=20)
    assert (out, process.returncode) == ("undone\n", 0)
    (line,) = err.splitlines()
    assert "ending" in line
    assert ("Ctrl-C" if number is signal.SIGINT else number.name) in line


def test_a_closed_terminal_undoes_and_ends(folders):
    shown = folders / "shown"
    ours, terminal = pty.openpty()
    code = (
        "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    with shown.open("w") as out, subprocess.Popen(
        [sys.executable, "-c", code, "-c", DAEMON, str(os.getpid()), "up", "--dry-run"],
        stdin=terminal,
        stdout=out,
        stderr=terminal,
        env={**os.environ, "INVOCATION_ID": "5" * 32},  # shells of desktops have it, too
        start_new_session=True,
    ) as process:  # fmt: skip
        os.close(terminal)
        wait_until(shown.read_text)
        os.close(ours)
        assert process.wait(20) == 0
    assert shown.read_text() == "running balanced True\nundone\n"


def test_started_with_nohup_it_outlives_its_terminal(folders):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does; it is inherited
    try:
        process = start("--dry-run")
    finally:
        signal.signal(signal.SIGHUP, before)
    with process:
        assert process.stdout.readline() == "running balanced True\n"
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.terminate()
        out, _ = process.communicate(timeout=20)
    assert (out, process.returncode) == ("undone\n", 0)


def test_a_service_reloads_its_configuration(folders):
    file = folders / "c.toml"
    file.touch()
    with start("--dry-run", "--config", str(file), service=True) as process:

        def reload(text, *lines):
            file.write_text(text)
            process.send_signal(signal.SIGHUP)
            assert process.stdout is not None
            assert [process.stdout.readline() for _ in lines] == list(lines)

        assert process.stdout.readline() == "running balanced True\n"
        fastest = '[decision]\nobjective = "max-s"\n'
        reload(fastest, "undone\n", "running max-s True\n")
        assert "reloading" in process.stderr.readline()
        reload("[decison]\n")
        refused = process.stderr.readline()
        assert "the old one stays" in refused
        assert "unknown section [decison], did you mean [decision]?" in refused
        reload('[energy]\nfile = "none"', "undone\n", "running max-s True\n")
        process.terminate()
        out, err = process.communicate(timeout=20)
    assert (out, process.returncode) == ("undone\n", 0)
    assert "back to the old one" in err
    assert "no such radios" in err


def test_a_second_daemon_is_refused(folders):
    with start("--dry-run") as first:
        first.stdout.readline()
        with start("--dry-run") as second:
            out, err = second.communicate(timeout=20)
        assert (out, second.returncode) == ("", 5)
        assert err.startswith(f"cedos: a daemon (process {first.pid}) runs already")
        first.kill()
    with start("--dry-run") as third:
        assert third.stdout.readline() == "running balanced True\n"
        third.terminate()
        third.communicate(timeout=20)


def test_configuration(cedos, folders, monkeypatch):
    seen = []

    async def run(config, dry_run, config_file, **_):
        seen.append((config, dry_run, config_file))

    a_daemon(monkeypatch, run)
    file = folders / "c.toml"
    file.write_text('[decision]\nobjective = "balanced"\n[log]\nlevel = "error"')
    assert cedos("up", "--config", str(file)).exit_code == 0
    [(config, dry_run, read)] = seen
    assert config.decision.objective == "balanced"
    assert not dry_run
    assert read == file, "the status shows it"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
@pytest.mark.parametrize("name", ["up", "restore"])
def test_missing_privileges(folders, name):
    code = (
        "import os, sys; import cedos.commands.cedos, cedos.commands.up, cedos.commands.restore\n"
        "os.setgid(65534); os.setuid(65534); cedos.commands.cedos.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, name], check=False, capture_output=True, text=True
    )
    assert done.returncode == 3
    assert f"cedos {name} needs CAP_NET_ADMIN and CAP_NET_RAW: run it as root" in done.stderr
    assert done.stderr.count("\n") == 1


def some_steering(monkeypatch, undone, left=()):
    calls = []

    def undo(state_dir, dry_run=False):
        calls.append((state_dir, dry_run))
        return Undone(tuple(undone), left)

    module = types.ModuleType("cedos.host.steer.steering")
    module.restore = undo
    monkeypatch.setitem(sys.modules, "cedos.host.steer.steering", module)
    monkeypatch.setattr(restore.privileges, "require", lambda what: None)
    monkeypatch.setattr(restore, "hold_namespace", nullcontext)  # others test here, too
    return calls


def test_restore(cedos, folders, monkeypatch):
    calls = some_steering(monkeypatch, ["rule 100", "sysctl net.mptcp.pm_type"])
    result = cedos("restore")
    assert result.stdout == "undone: rule 100\nundone: sysctl net.mptcp.pm_type\n"
    result = cedos("restore", "--dry-run")
    assert result.stdout.startswith("would undo: rule 100\n")
    facts = json.loads(cedos("restore", "--json").stdout)
    assert facts == {
        "dry_run": False,
        "undone": ["rule 100", "sysctl net.mptcp.pm_type"],
        "left": [],
    }
    state = folders / "state"
    assert calls == [(state, False), (state, True), (state, False)]


def test_nothing_to_restore(cedos, monkeypatch):
    some_steering(monkeypatch, [])
    result = cedos("restore")
    assert (result.exit_code, result.stdout) == (0, "nothing to undo\n")


def test_a_living_daemon_restores_by_itself(cedos, folders, monkeypatch):
    calls = some_steering(monkeypatch, ["x"])
    with only_daemon(folders / "run" / "daemon.pid", steers=False):
        result = cedos("restore")
        assert result.exit_code == 5
        assert f"(process {os.getpid()}) is running" in result.stderr
        assert calls == []
        assert cedos("restore", "--dry-run").stdout == "would undo: x\n"


def test_what_is_left_is_named_and_the_exit_status_says_so(cedos, folders, monkeypatch):
    some_steering(monkeypatch, ["rule 100"], ("sysctl net.ipv4.tcp_rmem = 1 2 3: unknown",))
    result = cedos("restore")
    assert result.exit_code == 1
    assert result.stdout == "undone: rule 100\n"
    assert "could not be undone: sysctl net.ipv4.tcp_rmem = 1 2 3: unknown" in result.stderr
    assert str(folders / "state" / "journal.jsonl") in result.stderr
    result = cedos("restore", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["left"] == ["sysctl net.ipv4.tcp_rmem = 1 2 3: unknown"]


def test_a_cancelled_daemon_is_not_taken_for_a_clean_end(cedos, monkeypatch):
    async def run(config, dry_run, config_file, **_):
        raise asyncio.CancelledError

    a_daemon(monkeypatch, run)
    with pytest.raises(asyncio.CancelledError):
        cedos("up")
