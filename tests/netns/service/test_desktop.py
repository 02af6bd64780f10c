"""The daemon as a service of a laptop as Debian has it: message bus, NetworkManager, systemd-resolved."""

import json
import re
import sys
import time

import pytest
from kit.waiting import wait_until

from emu.testbed.services import Service as Program
from tests.netns.service.test_units import unit

_ALONE = "[Unit]\nDefaultDependencies=no\n"
_OTHERS = ("dbus.socket", "dbus.service", "NetworkManager.service", "systemd-resolved.service")
_CONFIG = "[probes]\nenabled = false\n"
_NETWORK_MANAGER = "[main]\nplugins=keyfile\nauth-polkit=false\n[device]\nmanaged=1\n"
_CONNECTION = """[connection]
id={name}
type=ethernet
interface-name={name}
metered={metered}
[ipv4]
method=auto
route-metric={metric}
[ipv6]
method=disabled
"""


class Desktop:
    def __init__(self, machine, laptop, phones):
        self.machine, self.laptop, self.phones = machine, laptop, phones

    def status(self):
        return json.loads(
            self.machine.run(sys.executable, "-m", "cedos", "status", "--json").stdout
        )

    def log(self):
        return str(self.machine.run("cat", "/run/seen/log", check=False).stdout)

    def asked_by_a_service(self, *options):
        words = [word for option in options for word in ("-p", option)]
        return str(
            self.machine.run(
                *("systemd-run", "-q", "--pipe", "--wait", "-p", "DynamicUser=yes", *words),
                *(sys.executable, "-m", "cedos", "status"),
                check=False,
            ).stdout
        )

    def network(self, name):
        return next((each for each in self.status()["networks"] if each["name"] == name), None)

    def until(self, there):
        wait_until(there, describe=lambda: (self.log(), self.status()))

    def start(self):
        done = self.machine.run("systemctl", "start", "cedos", check=False)
        assert done.returncode == 0, (done.stderr, self.log())
        self.until(lambda: len(self.status()["networks"]) == 2)

    def routing(self):
        shown = ("rule", "route show table all")
        lines = [line for words in shown for line in self.laptop.ip(*words.split()).splitlines()]
        return sorted(lines)


@pytest.fixture
def desktop(tethered, machine, tmp_path):
    """Both networks have their addresses by DHCP; by NetworkManager Wi-Fi is metered and LTE is not."""
    laptop, phones = tethered.laptop, tethered.phones
    for name in ("wlan0", "lte0"):
        laptop.ip("address", "flush", "dev", name)
    ranges = [f"--dhcp-range=192.168.{n}.50,192.168.{n}.99,2m" for n in (43, 44)]
    server = Program(
        phones,
        *("dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--user=root", "--no-resolv"),
        *("--pid-file=", "--no-ping", f"--dhcp-leasefile={tmp_path}/leases", "--no-hosts", *ranges),
        *("--host-record=there.example,192.0.2.1", "--local=/#/"),
        output=tmp_path / "dnsmasq.log",
    )
    try:
        others = {f"{name}.d/alone.conf": _ALONE for name in _OTHERS}
        made = machine(laptop, {**unit(), **others}, desktop=True)
        made.write("/etc/cedos/cedos.toml", _CONFIG)
        made.run("chmod", "-R", "a+rX", "/etc/cedos")
        made.write("/etc/NetworkManager/conf.d/test.conf", _NETWORK_MANAGER)
        for name, metered in (("wlan0", 1), ("lte0", 2)):
            text = _CONNECTION.format(name=name, metered=metered, metric=600 + metered)
            made.write(f"/etc/NetworkManager/system-connections/{name}.nmconnection", text)
        # As its package does.
        made.run("systemd-sysusers")
        made.run("ln", "-sf", "/run/systemd/resolve/stub-resolv.conf", "/etc/resolv.conf")
        made.systemctl("start", "dbus.socket", "systemd-resolved", "NetworkManager")
        for name in ("wlan0", "lte0"):
            made.run("nmcli", "--wait", "20", "connection", "up", name)
        yield Desktop(made, laptop, phones)
    finally:
        server.close()


def test_what_networkmanager_and_resolved_say_counts(desktop):
    """And the daemon's own doings do not get in their way, nor theirs in its."""
    before = desktop.routing()
    desktop.machine.run("useradd", "--system", "--user-group", "cedos")
    desktop.start()
    desktop.until(lambda: not desktop.status()["problems"])
    status = desktop.status()
    assert {each["name"]: each["metered"] for each in status["networks"]} == {
        "wlan0": True, "lte0": False,
    }  # fmt: skip
    found = {each["name"]: each["resolvers"] for each in status["networks"]}
    assert found == {"wlan0": ["192.168.43.1"], "lte0": ["192.168.44.1"]}
    # Services that may ask it find it, whatever folders they have.
    assert not desktop.asked_by_a_service()
    assert "wlan0" in desktop.asked_by_a_service("Group=cedos", "RuntimeDirectory=x")
    nmcli = ("nmcli", "--wait", "20")
    desktop.machine.run(*nmcli, "connection", "modify", "wlan0", "connection.metered", "no")
    desktop.machine.run(*nmcli, "device", "reapply", "wlan0")
    desktop.until(lambda: not desktop.network("wlan0")["metered"])
    desktop.machine.run(*nmcli, "device", "disconnect", "wlan0")
    desktop.until(lambda: desktop.status()["default"]["network"] == "lte0")
    desktop.machine.run(*nmcli, "connection", "up", "wlan0")
    desktop.until(lambda: desktop.network("wlan0")["up"])
    desktop.machine.systemctl("restart", "NetworkManager")
    desktop.machine.run("nm-online", "-q", "-t", "20")
    time.sleep(2)
    desktop.until(lambda: not desktop.status()["problems"])
    desktop.until(lambda: all(each["up"] for each in desktop.status()["networks"]))
    desktop.machine.systemctl("stop", "cedos")
    assert desktop.machine.shown("cedos", "Result") == "success"
    assert desktop.routing() == before


def test_a_user_that_systemd_makes_up_is_refused_by_the_bus_and_status_says_so(desktop):
    desktop.start()
    desktop.until(lambda: any("message bus" in each for each in desktop.status()["problems"]))
    problem = next(each for each in desktop.status()["problems"] if "message bus" in each)
    remedy = re.search("`(.*)`", problem)
    desktop.machine.run("sh", "-c", remedy[1].replace("sudo ", ""))
    desktop.until(lambda: len(desktop.status()["networks"]) == 2)
    desktop.until(lambda: not desktop.status()["problems"])
    assert desktop.network("wlan0")["metered"]


def test_a_silent_resolver_delays_no_look_up_by_resolved(desktop):
    """It asks on all networks, and waits for the silent one where another knows no such name."""
    desktop.machine.run("useradd", "--system", "--user-group", "cedos")
    desktop.start()
    desktop.until(lambda: not desktop.status()["problems"])

    def look_up(name):
        began_s = time.monotonic()
        done = desktop.machine.run("resolvectl", "--cache=no", "query", name, check=False)
        return done.returncode == 0, time.monotonic() - began_s

    assert look_up("there.example")[0]
    assert not look_up("nothere.example")[0]
    silence = ["OUTPUT", "-o", "wlan0", "-p", "udp", "--sport", "53", "-j", "DROP"]
    desktop.phones.run("iptables", "-I", *silence)
    for _ in range(2):  # (that it asks on both networks is its own doing)
        found, took_s = look_up("there.example")
        assert found
        assert took_s < 1
    found, took_s = look_up("nothere.example")
    assert not found
    assert took_s < 10  # (two minutes without the daemon: it tries in four ways)
    desktop.until(
        lambda: any("wlan0 does not answer" in each for each in desktop.status()["problems"])
    )
    desktop.phones.run("iptables", "-D", *silence)
    desktop.until(lambda: look_up("there.example")[0] and not desktop.status()["problems"])


def test_what_root_does_while_the_service_is_stopped_loses_nothing(desktop):
    made = desktop.machine
    made.run("useradd", "--system", "--user-group", "cedos")
    made.run("useradd", "--groups", "cedos", "member")
    cedos = (sys.executable, "-m", "cedos")

    def budgets():
        told = json.loads(made.run(*cedos, "budget", "--json").stdout)
        return {each["name"] for each in told}

    desktop.start()
    made.run(*cedos, "budget", "set", "data", "4GB", "--until", "2099-01-01")
    made.systemctl("stop", "cedos")
    made.run(*cedos, "budget", "set", "data", "1GB", "--name", "more", "--until", "2099-01-01")
    for words in (["usage"], ["budget"]):
        asked = made.run(
            "setpriv", "--reuid", "member", "--init-groups", *cedos, *words, check=False
        )
        assert asked.returncode == 3, asked
        assert "only root sees" in asked.stderr
    desktop.start()
    assert budgets() == {"data", "more"}
    made.systemctl("stop", "cedos")
    # By hand, as the README has it.
    made.run("systemd-run", "-q", "--unit=by-hand", *cedos, "up")
    desktop.until(lambda: made.run(*cedos, "status", check=False).returncode == 0)
    assert budgets() == {"data", "more"}
    made.systemctl("stop", "by-hand")
    desktop.start()
    assert budgets() == {"data", "more"}
    assert not made.run("sh", "-c", "ls /var/lib/cedos/*.aside-*", check=False).stdout
