"""`cedos up` as the systemd unit runs it: with the two capabilities and nothing else."""

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from kit.waiting import wait_until

from cedos.api.client import ControlClient

CEDOS = (sys.executable, "-m", "cedos")
CAPABILITIES = "-all,+net_admin,+net_raw"
# Another user, as the unit has it, unless the interpreter lies where only root may look.
OTHER_USER = all(folder.stat().st_mode & 1 for folder in Path(sys.executable).resolve().parents)
UID = 65534 if OTHER_USER else 0
AS_THE_UNIT = (
    "setpriv", *((f"--reuid={UID}", f"--regid={UID}", "--clear-groups") if OTHER_USER else ()),
    f"--inh-caps={CAPABILITIES}", f"--ambient-caps={CAPABILITIES}",
    f"--bounding-set={CAPABILITIES}", "--securebits=+noroot", "--no-new-privs",
)  # fmt: skip


class Host:
    """A laptop with Wi-Fi and a phone, and cedos on it."""

    def __init__(self, namespace, folder):
        self.namespace, self.folder = namespace, folder
        self._variables = [
            f"CEDOS_STATE_DIR={folder}/state",
            f"CEDOS_RUNTIME_DIR={folder}/run",
            f"NOTIFY_SOCKET={folder}/notify",
            "WATCHDOG_USEC=1000000",
        ]

    def cedos(self, *arguments):
        command = (*AS_THE_UNIT, "env", *self._variables, *CEDOS, *arguments)
        return self.namespace.run(*command, check=False)

    @contextmanager
    def up(self, *arguments, service=False):
        variables = [*self._variables, f"INVOCATION_ID={'5' * 32 * service}"]
        command = (*AS_THE_UNIT, "env", *variables, *CEDOS, "up", *arguments)
        with self.namespace.popen(
            *command, stderr=subprocess.PIPE, text=True, start_new_session=True
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def eventually_usable(self, count):
        """Until the daemon has so many usable networks."""
        wait_until(lambda: sum(each.up for each in self.status().networks) == count)

    def status(self):
        return ControlClient(self.folder / "run" / "control.sock").status()

    def routing(self):
        shown = ("rule", "-6 rule", "route show table all", "-6 route show table all")
        tables = [self.namespace.ip(*words.split()) for words in shown]
        return [*tables, self.namespace.sysctl("net.mptcp.pm_type"), *self.filters()]

    def filters(self):
        saved = [self.namespace.run(f"{name}-save").stdout for name in ("iptables", "ip6tables")]
        return [line for text in saved for line in text.splitlines() if line[:1] != "#"]


@pytest.fixture
def host(tethered, tmp_path):
    os.chown(tmp_path, UID, UID)
    # pytest's own folders are for root alone.
    for folder in tmp_path.parents:
        if folder.stat().st_mode & 0o777 == 0o700:
            folder.chmod(0o755)
    return Host(tethered.laptop, tmp_path)


@pytest.fixture
def manager(tmp_path):
    """Hears what the daemon tells systemd."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        (tmp_path / "notify").chmod(0o777)
        listening.settimeout(30)
        yield listening


def hear(manager, beginning):
    deadline = time.monotonic() + 30
    while not manager.recv(4096).decode().startswith(beginning):
        assert time.monotonic() < deadline


def _connect(host, name):
    number = {"wlan0": 43, "lte0": 44}[name]
    host.namespace.ip("link", "set", name, "up")
    gateway = ("via", f"192.168.{number}.1", "metric", str(number))
    host.namespace.ip("route", "add", "default", *gateway)


def test_a_clean_life(host, manager):
    before = host.routing()
    with host.up() as process:
        hear(manager, "READY=1")
        hear(manager, "WATCHDOG=1")
        status = json.loads(host.cedos("status", "--json").stdout)
        assert [network["name"] for network in status["networks"]] == ["wlan0", "lte0"]
        assert status["default"]["network"] in {"wlan0", "lte0"}
        assert host.routing() != before
        assert host.filters().count("-A OUTPUT -j CEDOS_OUT") == 2
        assert host.cedos("explain").returncode == 0
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for pid, capabilities in ((process.pid, 0), (children[0], 0x3000)):
            held = Path(f"/proc/{pid}/status").read_text()
            assert f"CapEff:\t{capabilities:016x}\n" in held
        for command in ("up", "restore"):
            refused = host.cedos(command)
            assert refused.returncode == 5, refused
        # A socket's queue of ten is full after ten beats: what comes next is lost.
        while select.select([manager], [], [], 0)[0]:
            manager.recv(4096)
        process.send_signal(signal.SIGTERM)
        hear(manager, "STOPPING=1")
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    assert host.routing() == before
    assert host.cedos("restore").stdout == "nothing to undo\n"
    assert host.cedos("status").returncode == 6


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_program_with_hints(host, manager, tmp_path):
    with host.up() as process:
        hear(manager, "READY=1")
        variable = f"CEDOS_RUNTIME_DIR={tmp_path}/run"
        command = ("exec", "--label", "background", "--size", "20MB", "--", "ip", "rule")
        done = host.namespace.run("env", variable, *CEDOS, *command)
        assert re.search("fwmark 0xce[0-9a-f]{6} iif lo lookup", done.stdout)
        assert "fwmark" not in host.namespace.ip("rule")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)


def test_killed_and_restored(host, manager):
    before = host.routing()
    with host.up():
        hear(manager, "READY=1")
    assert host.routing() != before
    findings = json.loads(host.cedos("doctor", "--json").stdout)["findings"]
    assert [one["remedy"] for one in findings if one["topic"] == "daemon"] == ["cedos restore"]
    planned = host.cedos("restore", "--dry-run").stdout
    assert planned.startswith("would undo: ")
    assert host.routing() != before
    undone = host.cedos("restore")
    assert undone.stdout.startswith("undone: ")
    assert undone.returncode == 0
    assert host.routing() == before


def test_with_one_network_it_keeps_to_rules_and_follows_the_next(host, manager):
    host.namespace.ip("link", "set", "lte0", "down")
    before = host.routing()
    with host.up() as process:
        hear(manager, "READY=1\nSTATUS=wlan0; not usable: lte0 (no default route)")
        assert host.cedos("rule", "add", "--host", "198.51.100.7", "--only", "lte0").returncode == 0
        refused = host.namespace.run("curl", "-sm", "5", "198.51.100.7", check=False)
        assert refused.returncode == 7, "a rule for a network that is down"
        status = json.loads(host.cedos("status", "--json").stdout)
        assert [network["up"] for network in status["networks"]] == [True, False]
        assert "wlan0 is the only usable network" in status["default"]["reason"]
        _connect(host, "lte0")
        host.eventually_usable(2)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    host.namespace.ip("route", "del", "default", "dev", "lte0")
    host.namespace.ip("link", "set", "lte0", "down")
    assert host.routing() == before


def test_without_any_network_it_begins_and_follows_the_first(host, manager):
    for name in ("wlan0", "lte0"):
        host.namespace.ip("link", "set", name, "down")
    with host.up() as process:
        hear(manager, "READY=1\nSTATUS=none; not usable: ")
        hear(manager, "WATCHDOG=1")
        _connect(host, "wlan0")
        host.eventually_usable(1)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors


def test_ctrl_c_says_what_it_undid(host, manager):
    with host.up() as process:
        hear(manager, "READY=1")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    last = errors.splitlines()[-1]
    assert "undone: deleted: " in last
    assert " rules and " in last
    assert "the chains CEDOS_* of iptables" in last
    assert "set back: net.mptcp." in last


def test_a_service_reloads_while_connections_live(host, manager, tmp_path):
    file = tmp_path / "cedos.toml"
    file.write_text("[steering]\nrescue = false\n")
    with host.up("--config", str(file), service=True) as process:
        hear(manager, "READY=1")
        without = len(host.filters())
        file.write_text("")
        process.send_signal(signal.SIGHUP)
        hear(manager, "RELOADING=1\nMONOTONIC_USEC=")
        hear(manager, "READY=1")
        assert len(host.filters()) > without
        assert host.cedos("status").returncode == 0
        # What cannot be used is told where people look, until it is mended.
        for content, complains in (("[decison]\n", True), ("", False)):
            file.write_text(content)
            process.send_signal(signal.SIGHUP)
            wait_until(lambda told=complains: ("decison" in str(host.status().problems)) == told)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors


def test_a_dry_run_changes_nothing(host, manager):
    before = host.routing()
    with host.up("--dry-run") as process:
        hear(manager, "READY=1")
        assert json.loads(host.cedos("status", "--json").stdout)["dry_run"]
        assert host.routing() == before
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert process.returncode == 0


def test_restore_with_other_folders_leaves_a_living_daemon_alone(tethered, install, tmp_path):
    """`sudo` drops the daemon's variables: its rules, sysctls and walls were gone for up to a second."""
    cedos = install(tethered.laptop)
    others = [f"CEDOS_{what}_DIR={tmp_path}/other" for what in ("STATE", "RUNTIME")]
    command = ("env", *others, *CEDOS, "restore")
    with cedos.up() as process:
        before = tethered.laptop.ip("rule")
        refused = tethered.laptop.run(*command, check=False)
        assert refused.returncode == 5
        assert f"(process {process.pid}) runs already" in refused.stderr
        assert tethered.laptop.ip("rule") == before
        assert "set by another program" not in cedos.ends(process)
    assert tethered.laptop.run(*command).returncode == 0
