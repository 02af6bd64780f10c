"""The doctor on hosts of all kinds: a folder stands for their /proc and /sys, a double for D-Bus."""

import asyncio
import json
import os
from collections import namedtuple

import pytest

from cedos.api.lock import only_daemon
from cedos.config import Config, PredictorsConfig
from cedos.config.directories import Directories
from cedos.doctor import Files, FindingState, host, kernel, limited, missing, ok
from cedos.doctor.host import can_run
from cedos.host.monitor.bus import BusError, SystemBus
from cedos.host.steer.journal_records import RETRANSMISSION, TCP_RETRIES


class FakeBus:
    def __init__(self, address):
        self.address = address

    async def call(self, *_):
        return [["org.freedesktop.DBus", "org.freedesktop.resolve1"]]

    async def close(self):
        pass


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


def put(files, name, content):
    path = files.path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content + "\n")


def sysctl(files, name, value):
    put(files, "/proc/sys/" + name.replace(".", "/"), value)


def test_the_daemon_runs_with_limits_but_not_without_networks():
    assert can_run([ok("a", "x"), limited("b", "x", "y"), missing("c", "x", "y")])
    assert not can_run([ok("a", "x"), missing("c", "x", "y", fatal=True)])


def test_mptcp_disabled(files):
    sysctl(files, "net.mptcp.enabled", "0")
    finding = kernel.mptcp(files)
    assert finding.state is FindingState.MISSING
    assert finding.remedy == "sysctl net.mptcp.enabled=1"


@pytest.mark.parametrize(
    ("name", "value", "daemon", "state"),
    [
        ("pm_type", "0", False, FindingState.OK),
        ("path_manager", "kernel", False, FindingState.OK),
        ("pm_type", "1", True, FindingState.OK),
        ("pm_type", "1", False, FindingState.LIMITED),
        ("path_manager", "userspace", False, FindingState.LIMITED),
    ],
)
def test_path_manager(files, name, value, daemon, state):
    sysctl(files, f"net.mptcp.{name}", value)
    assert kernel.path_manager(files, daemon).state is state


def test_retransmission(files):
    def found(daemon_runs):
        return kernel.retransmission(files, daemon_runs)

    assert found(False).state is FindingState.LIMITED  # a kernel without it
    for key, (usual, _) in RETRANSMISSION.items():
        sysctl(files, key, usual)
    assert found(False).state is FindingState.OK
    assert found(True).state is FindingState.LIMITED
    for key, (_, ours) in RETRANSMISSION.items():
        sysctl(files, key, ours)
    assert "1990 ms" in found(True).found
    sysctl(files, TCP_RETRIES, "9")
    assert "tcp_retries2 = 9" in found(True).found


Usage = namedtuple("Usage", "total used free")


def test_state_directory(tmp_path, monkeypatch):
    where = Directories(tmp_path / "not" / "yet", tmp_path)
    assert host.state(where).state is FindingState.OK
    assert not where.state.exists()
    monkeypatch.setattr(host.shutil, "disk_usage", lambda _: Usage(1, 1, 3_000_000))
    finding = host.state(where)
    assert (finding.state, finding.lost) == (FindingState.LIMITED, "history, once the disk is full")
    assert "3 MB free" in finding.found
    (tmp_path / "file").touch(mode=0o777)
    blocked = host.state(Directories(tmp_path / "file", tmp_path))
    assert blocked.fatal


def test_daemon(tmp_path):
    where = Directories(tmp_path / "state", tmp_path / "run")
    assert host.daemon(where) == ok("daemon", "not running")
    where.state.mkdir()
    (where.state / "journal.jsonl").touch()
    assert host.daemon(where).state is FindingState.OK
    (where.state / "journal.jsonl").write_text("{}\n")
    left = host.daemon(where)
    assert (left.state, left.remedy) == (FindingState.LIMITED, "cedos restore")
    with only_daemon(where.pid_file, steers=False):
        assert host.daemon(where) == ok("daemon", f"running (process {os.getpid()})")


def test_report(cedos, monkeypatch):
    found = [
        ok("kernel", "6.1"),
        limited("flows (conntrack)", "met", "moves", "wait"),
        missing("networks", "none", "everything", fatal=True),
    ]

    async def examine(*_):
        return found

    monkeypatch.setattr("cedos.commands.doctor.examine", examine)
    result = cedos("doctor")
    assert result.exit_code == 4
    assert result.stdout.splitlines() == [
        "ok       kernel             6.1",
        "limited  flows (conntrack)  met",
        "                            lost: moves",
        "                            fix:  wait",
        "missing  networks           none",
        "                            lost: everything",
    ]
    assert result.stderr == "cedos: the daemon cannot work here now (networks: none)\n"
    facts = json.loads(cedos("doctor", "--json").stdout)
    assert facts["can_run"] is False
    assert [one["state"] for one in facts["findings"]] == ["ok", "limited", "missing"]
    found.pop()
    assert cedos("doctor").exit_code == 0


MM = "org.freedesktop.ModemManager1"


class Played(SystemBus):
    """Answers by member or, for properties, by interface."""

    def __init__(self, **answers):
        super().__init__("unix:path=/nowhere")
        self._answers = answers

    async def call(self, service, path, interface, member, *_):
        asked = _[1][0].rpartition(".")[2] if member == "GetAll" else member
        if asked not in self._answers:
            raise BusError(f"{service} {member}: no answer within 2 s")
        return [self._answers[asked]]


async def test_modems():
    assert (await host.modems(Played(), set())).state is FindingState.LIMITED
    assert "does not answer" in (await host.modems(Played(), {MM})).found
    nothing = await host.modems(Played(GetManagedObjects={}), {MM})
    assert nothing.found == "running, without a modem"
    described = {f"{MM}.Modem": {"Ports": [["wwan0", 2]]}}
    some = await host.modems(Played(GetManagedObjects={"/m": described}), {MM})
    assert some.found == "running, with a modem behind wwan0"


def test_connection_tracking(files):
    assert "not loaded" in kernel.connection_tracking(files).found
    for value, state in (
        ("0", FindingState.LIMITED),
        ("1", FindingState.OK),
        ("2", FindingState.OK),
    ):
        sysctl(files, "net.netfilter.nf_conntrack_events", value)
        assert kernel.connection_tracking(files).state is state
    sysctl(files, "net.netfilter.nf_conntrack_max", "1000")
    for entries, state in (("950", FindingState.OK), ("951", FindingState.LIMITED)):
        sysctl(files, "net.netfilter.nf_conntrack_count", entries)
        finding = kernel.connection_tracking(files)
        assert finding.state is state
    assert "951 of 1000 entries" in finding.found


def test_bpf(files, monkeypatch):
    assert kernel.bpf(files).found == "no cgroup v2 is mounted"
    put(files, "/proc/self/mounts", "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0")

    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(kernel, "load", refuse)
    assert kernel.bpf(files).state is FindingState.LIMITED


def test_services_on_the_bus(monkeypatch):
    monkeypatch.setattr(host, "SystemBus", FakeBus)
    states = {one.topic: (one.state, one.found) for one in asyncio.run(host.on_the_bus())}
    assert states == {
        "systemd-resolved": (FindingState.OK, "running"),
        "ModemManager": (FindingState.LIMITED, "not running"),
        "UPower": (FindingState.LIMITED, "not running"),
    }


def test_no_bus(tmp_path):
    [finding] = asyncio.run(host.on_the_bus(f"unix:path={tmp_path}/none"))
    assert finding.state is FindingState.LIMITED
    assert "no system bus" in finding.found


def test_a_model_that_cannot_be_used(tmp_path):
    for content in (None, "{}"):
        path = tmp_path / "m.json"
        if content is not None:
            path.write_text(content)
        finding = host.model(Config(predictors=PredictorsConfig(model=str(path))))
        assert finding.state is FindingState.LIMITED
        assert str(path) in finding.found


def test_state_directory_of_somebody_else(tmp_path, monkeypatch):
    monkeypatch.setattr(host.os, "access", lambda *_: False)
    finding = host.state(Directories(tmp_path, tmp_path))
    assert (finding.state, finding.fatal) == (FindingState.LIMITED, False)
