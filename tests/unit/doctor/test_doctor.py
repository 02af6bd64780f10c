"""The doctor on hosts of all kinds: a folder stands for their /proc and /sys, a double for D-Bus."""

import asyncio
import io
import json
import os
from collections import namedtuple

import pytest

from cedos.api.lock import only_daemon
from cedos.api.messages import NetworkMessage
from cedos.config import Config, PredictorsConfig
from cedos.config.directories import Directories
from cedos.config.sections import SteeringConfig
from cedos.doctor import Files, FindingState, host, kernel, limited, missing, ok
from cedos.doctor.host import can_run
from cedos.errors import PrivilegeError
from cedos.host.monitor.bus import BusError, SystemBus
from cedos.host.steer.journal_records import RETRANSMISSION, TCP_RETRIES
from cedos.model import NetworkKind
from predictors.base import Calibration


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


@pytest.mark.parametrize(
    ("release", "state", "lost"),
    [
        ("6.18.44-fc", FindingState.OK, ""),
        ("5.19.0", FindingState.OK, ""),
        ("5.15.0-91-generic", FindingState.LIMITED, "per-connection"),
        ("5.4.0", FindingState.LIMITED, "cannot be moved"),
        ("strange", FindingState.LIMITED, "cannot be moved"),
    ],
)
def test_kernel(release, state, lost):
    finding = kernel.version(release)
    assert finding.state is state
    assert lost in finding.lost


def test_mptcp_disabled(files):
    sysctl(files, "net.mptcp.enabled", "0")
    finding = kernel.mptcp(files)
    assert finding.state is FindingState.MISSING
    assert finding.remedy == "sysctl net.mptcp.enabled=1"
    assert kernel.black_hole(files) is None


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


@pytest.mark.parametrize(
    ("lives", "state"),
    [(True, FindingState.OK), (False, FindingState.LIMITED), (None, FindingState.LIMITED)],
)
def test_black_hole(files, monkeypatch, lives, state):
    sysctl(files, "net.mptcp.enabled", "1")
    sysctl(files, "net.mptcp.blackhole_timeout", "3600")
    monkeypatch.setattr(kernel, "_mptcp_over_loopback", lambda: lives)
    finding = kernel.black_hole(files)
    assert finding.state is state
    assert ("blackhole_timeout=3600" in finding.remedy) == (lives is False)


def test_ping(files, monkeypatch):
    monkeypatch.setattr(kernel.privileges, "held", lambda: frozenset({"CAP_NET_RAW"}))
    assert kernel.ping(files).state is FindingState.OK
    monkeypatch.setattr(kernel.privileges, "held", frozenset)
    assert kernel.ping(files, frozenset({0})).state is FindingState.LIMITED
    sysctl(files, "net.ipv4.ping_group_range", "100\t200")
    assert kernel.ping(files, frozenset({1, 150})).state is FindingState.OK
    assert kernel.ping(files, frozenset({99, 201})).state is FindingState.LIMITED


def test_look_ups(files, monkeypatch):
    put(files, "/etc/resolv.conf", "nameserver 127.0.0.53")
    assert "systemd-resolved" in kernel.lookups(files, Config()).found
    put(files, "/etc/resolv.conf", "nameserver 192.0.2.1")
    off = Config(steering=SteeringConfig(lookups=False))
    assert kernel.lookups(files, off).remedy == "[steering] lookups = true"

    def refuse():
        raise PrivilegeError("no CAP_NET_RAW")

    monkeypatch.setattr(kernel, "open_capture", refuse)
    found = kernel.lookups(files, Config())
    assert (found.state, found.found) == (FindingState.LIMITED, "no CAP_NET_RAW")
    monkeypatch.setattr(kernel, "open_capture", io.BytesIO)
    assert "over another network" in kernel.lookups(files, Config()).found


def test_flows_of_this_very_host():
    assert asyncio.run(kernel.flows()).state is FindingState.OK


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


def test_how_well_the_running_daemon_predicts(tmp_path, serve, fake_daemon, monkeypatch):
    where = Directories(tmp_path / "state", tmp_path / "run")
    assert host.predictions(where) is None
    wlan, usb = (
        NetworkMessage(
            name=name, interface=name, kind=kind, metered=False, up=True, predicted=predicted
        )
        for name, kind, predicted in (
            ("wlan0", NetworkKind.WIFI, Calibration(20, 0.5, 0.9, 0.85)),
            ("usb0", NetworkKind.CELLULAR, None),
        )
    )
    known = [usb]

    async def networks():
        return known

    monkeypatch.setattr(fake_daemon, "networks", networks)
    with serve(fake_daemon, where.socket):
        assert host.predictions(where) is None, "there is nothing to say yet"
        known.append(wlan)
        assert host.predictions(where) == ok(
            "predictions", "Forecasts for wlan0 were 2 times too fast lately (20 transfers)"
        )


def test_report(cedos, monkeypatch):
    found = [
        ok("kernel", "6.1"),
        limited("MPTCP black hole", "met", "moves", "wait"),
        missing("networks", "none", "everything", fatal=True),
    ]

    async def examine(*_):
        return found

    monkeypatch.setattr("cedos.commands.doctor.examine", examine)
    result = cedos("doctor")
    assert result.exit_code == 4
    assert result.stdout.splitlines() == [
        "ok       kernel            6.1",
        "limited  MPTCP black hole  met",
        "                           lost: moves",
        "                           fix:  wait",
        "missing  networks          none",
        "                           lost: everything",
    ]
    assert result.stderr == "cedos: the daemon cannot work here now (networks: none)\n"
    facts = json.loads(cedos("doctor", "--json").stdout)
    assert facts["can_run"] is False
    assert [one["state"] for one in facts["findings"]] == ["ok", "limited", "missing"]
    found.pop()
    assert cedos("doctor").exit_code == 0


NM, MM, LOGIND = (
    "org.freedesktop.NetworkManager",
    "org.freedesktop.ModemManager1",
    "org.freedesktop.login1",
)


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


def test_endpoints_of_others(files, monkeypatch):
    sysctl(files, "net.mptcp.enabled", "1")
    # MPTCP_PM_ATTR_ADDR { FAMILY inet, ID 1, ADDR4 192.0.2.7 }
    endpoint = bytes.fromhex("1c000180 06000100 02000000 05000200 01000000 08000300 c0000207")

    async def dump(name, command):
        assert (name, command) == ("mptcp_pm", 3)
        return [endpoint, b"\x01"]

    monkeypatch.setattr(kernel.generic_netlink, "dump", dump)
    finding = asyncio.run(kernel.endpoints(files, False))
    assert finding.state is FindingState.OK
    assert finding.found.endswith(
        "2 of another program (NetworkManager?), in use while no daemon runs: 192.0.2.7"
    )
    kept = asyncio.run(kernel.endpoints(files, True))
    assert "not used while the daemon runs" in kept.found


@pytest.mark.parametrize("error", [PermissionError(1, "no"), LookupError("no mptcp_pm")])
def test_endpoints_that_cannot_be_seen(files, monkeypatch, error):
    sysctl(files, "net.mptcp.enabled", "1")

    async def dump(name, command):
        raise error

    monkeypatch.setattr(kernel.generic_netlink, "dump", dump)
    finding = asyncio.run(kernel.endpoints(files, False))
    assert finding.state is FindingState.LIMITED


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
        "NetworkManager": (FindingState.OK, "not used"),
        "screen (logind)": (FindingState.LIMITED, "logind is not running"),
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


async def test_network_manager():
    assert (await host.network_manager(Played(), set())).found == "not used"
    silent = await host.network_manager(Played(), {NM})
    assert (silent.state, "does not answer" in silent.found) == (FindingState.LIMITED, True)
    for checks, words in ((True, "running, checks"), (False, "running, does not check")):
        bus = Played(NetworkManager={"ConnectivityCheckEnabled": checks})
        finding = await host.network_manager(bus, {NM})
        assert finding.found == f"{words} for portals"
