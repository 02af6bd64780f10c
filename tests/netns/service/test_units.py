"""The daemon's unit as `cedos example unit` prints it, started by a real systemd."""

import signal
import subprocess
import sys

import pytest
from kit.waiting import wait_until

from cedos.kernel.privileges import PART_NAME
from emu.testbed.services import accepts

# Its programs' own basics are not there: nothing of the distribution is started in this machine.
_ALONE = "[Unit]\nDefaultDependencies=no\nAfter=\n[Service]\nStandardOutput=file:/run/seen/log\n" \
    "StandardError=file:/run/seen/log\nRestart=no\n"  # fmt: skip
_CAPABILITIES = (1 << 12) | (1 << 13) | (1 << 39)  # NET_ADMIN, NET_RAW, BPF


def unit(what="unit"):
    done = subprocess.run(
        [sys.executable, "-m", "cedos", "example", what],
        check=False,  # 4 where the service could not read this installation
        capture_output=True,
        text=True,
    )
    return {"cedos.service": done.stdout, "cedos.service.d/alone.conf": _ALONE}


class Service:
    def __init__(self, machine, laptop):
        self.machine, self.laptop = machine, laptop

    def log(self):
        return str(self.machine.run("cat", "/run/seen/log", check=False).stdout)

    def start(self):
        done = self.machine.run("systemctl", "start", "cedos", check=False)
        assert done.returncode == 0, (done.stderr, self.log(), self.machine.log.read_text())

    def status(self):
        command = (sys.executable, "-m", "cedos", "status")
        return str(self.machine.run(*command).stdout)

    @property
    def pid(self):
        return str(self.machine.shown("cedos", "MainPID"))

    def children(self):
        return str(
            self.machine.run("cat", f"/proc/{self.pid}/task/{self.pid}/children").stdout
        ).split()

    def facts(self, pid):
        lines = self.machine.run("cat", f"/proc/{pid}/status").stdout.splitlines()
        return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}

    def state(self):
        shown = ("rule", "-6 rule", "route show table all", "-6 route show table all")
        found = [self.laptop.ip(*words.split()) for words in shown]
        found += [self.laptop.run(f"{name}-save").stdout for name in ("iptables", "ip6tables")]
        found += [self.laptop.run("sysctl", "-a", "-r", "^net.(mptcp|ipv4.tcp)").stdout]
        lines = [line for part in found for line in part.splitlines()]
        return sorted(line for line in lines if not line.startswith(("#", "multicast ff00::/8")))


@pytest.fixture
def service(tethered, machine):
    return Service(machine(tethered.laptop, unit()), tethered.laptop)


def test_the_unit_runs_with_little_and_leaves_nothing(service):
    before = service.state()
    service.start()
    # What reads packets and decides may do nothing; one small part of it may.
    facts = service.facts(service.pid)
    assert {int(facts[f"Cap{kind}"], 16) for kind in ("Inh", "Prm", "Eff", "Amb")} == {0}
    (part,) = map(service.facts, service.children())
    assert int(part["CapEff"], 16) == int(part["CapBnd"], 16) == _CAPABILITIES
    assert part["Name"] == PART_NAME
    for each in (facts, part):
        assert (each["NoNewPrivs"], each["Seccomp"]) == ("1", "2")
        assert each["Uid"].split()[0] != "0"
    wait_until(lambda: "Problems" not in service.status(), every_s=0.5, describe=service.status)
    assert "wlan0" in service.status()
    assert service.state() != before
    service.machine.systemctl("reload", "cedos")
    wait_until(
        lambda: service.machine.shown("cedos", "ActiveState") == "active",
        describe=service.log,
    )
    assert "reloading the configuration" in service.log()
    service.machine.systemctl("stop", "cedos")
    assert service.state() == before
    assert service.machine.shown("cedos", "Result") == "success"
    assert "EPERM" not in service.log()


def test_after_a_kill_systemd_has_everything_undone(service):
    before = service.state()
    service.start()
    assert service.state() != before
    service.machine.systemctl("kill", "--kill-whom=main", f"--signal={signal.SIGKILL}", "cedos")
    wait_until(lambda: service.machine.shown("cedos", "ActiveState") == "failed")
    assert service.state() == before


@pytest.mark.parametrize(
    ("what", "tenths"),
    [("unit", 20), ("gateway-unit", 12), ("redirect-unit", 17)],
)
def test_they_are_exposed_to_little(what, tenths, tmp_path):
    file = tmp_path / "cedos.service"
    file.write_text(unit(what)["cedos.service"])
    done = subprocess.run(
        [
            *("systemd-analyze", "security", "--offline=true", "--no-pager"),
            *(f"--threshold={tenths}", str(file)),
        ],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout.splitlines()[-1]


def test_the_gateways_unit_runs_without_privileges(tethered, machine):
    made = machine(tethered.laptop, unit("gateway-unit"))
    done = made.run("systemctl", "start", "cedos", check=False)
    assert done.returncode == 0, (done.stderr, made.run("cat", "/run/seen/log").stdout)
    wait_until(
        lambda: accepts(tethered.laptop, "127.0.0.1", 7009),
        describe=lambda: made.run("cat", "/run/seen/log").stdout,
    )
    pid = made.shown("cedos", "MainPID")
    lines = made.run("cat", f"/proc/{pid}/status").stdout.splitlines()
    facts = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    assert {int(facts[f"Cap{kind}"], 16) for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {0}
    made.systemctl("stop", "cedos")
    assert made.shown("cedos", "Result") == "success"
