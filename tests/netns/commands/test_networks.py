"""Networks as a real daemon sees them: unknown names, a VPN, a dead Wi-Fi, flows, an idle hour."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest
from kit.laptop import Installed
from kit.waiting import wait_until

from cedos.budget_kinds import Resource
from cedos.model import Budget, Every
from emu.bench.daemon import wakeups

UNPLUGGED = """
[networks.usb0]
name = "phone"
[budgets.plan]
data = "4GB"
until = "2036-12-01"
networks = ["phone", "lte1"]
"""

RULE = ("--host", "192.0.2.7", "--never", "metered")


def test_what_it_carries_is_said_to_be_carried_by_it(tethered, install):
    laptop = tethered.laptop
    cedos = install(laptop)
    with cedos.up():
        assert cedos.run("rule", "add", *RULE).returncode == 0
        assert cedos.run("rule").stdout.splitlines()[1].endswith("never metered  wlan0")
        laptop.ip("tuntap", "add", "tun7", "mode", "tun")
        laptop.ip("address", "add", "10.8.0.2/24", "dev", "tun7")
        laptop.ip("link", "set", "tun7", "up")
        laptop.ip("route", "add", "default", "dev", "tun7", "metric", "1")
        wait_until(lambda: cedos.client.status().default.vpn == {"4": "tun7"})
        shown = cedos.run("status").stdout
        assert "New IPv4 connections go through the VPN tun7, which cedos leaves alone" in shown
        assert "Other new connections go over wlan0" in shown
        led = laptop.ip("route", "get", "192.0.2.7")
        assert "dev tun7" in led
        (rule,) = cedos.client.rules()
        assert rule.vpn == {"4": "tun7"}
        last = cedos.run("rule").stdout.splitlines()[1]
        assert last.endswith("IPv4 through the VPN tun7; else wlan0")
        laptop.ip("link", "del", "tun7")
        wait_until(lambda: not cedos.client.status().default.vpn)
        assert "dev wlan0" in laptop.ip("route", "get", "192.0.2.7")
        assert cedos.client.rules()[0].vpn == {}


SERVER = "198.51.100.1"
CONFIG = f"""
[probes]
target = "{SERVER}"
dns = false
portal_url = ""
[providers]
host = false
"""


def test_one_rescued_connection_has_the_network_asked(tethered, install):
    laptop, phones = tethered.laptop, tethered.phones
    phones.ip("link", "set", "lo", "up")
    phones.ip("address", "add", f"{SERVER}/32", "dev", "lo")
    with phones.entered():
        web = socket.create_server((SERVER, 80))
    cedos = install(laptop)
    (cedos.folder / "cedos.toml").write_text(CONFIG)
    with web, cedos.up():

        def default():
            return cedos.client.status().default.network

        def until(name, within_s):
            began_s = time.monotonic()
            wait_until(
                lambda: default() == name, within_s, describe=lambda: cedos.run("status").stdout
            )
            return time.monotonic() - began_s

        until("wlan0", 10)
        time.sleep(3.0)
        laptop.run("iptables", "-I", "INPUT", "-i", "wlan0", "-j", "DROP")
        with laptop.entered(), socket.create_connection((SERVER, 80), timeout=5):
            print(f"{until('lte0', 5):.1f} s")
        known = {each.name: each.indicators for each in cedos.client.networks()}
        assert known["wlan0"]["silence_s"].value


IPPROTO_MPTCP = 262
ASKING = """
[probes]
target = "gateway"
interval_s = 0.2
idle_interval_s = 0.2
[providers]
host = false
"""


def test_dead_flows_and_own_look_ups_are_not_listed(tethered, install):
    laptop, phones = tethered.laptop, tethered.phones
    laptop.ip("link", "set", "lo", "up")
    with phones.entered():
        web = socket.create_server(("192.168.43.1", 80))
    cedos = install(laptop)
    with cedos.up():

        def listed():
            return [flow.flow for flow in cedos.client.flows()]

        def until(count):
            wait_until(lambda: len(listed()) == count, 10, describe=listed)
            return listed()

        with laptop.entered():
            client = socket.create_connection(("192.168.43.1", 80), timeout=5)
            asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            asking.connect(("192.168.43.1", 53))
            serving = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            serving.bind(("192.168.43.2", 4444))
            listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP)
            listening.bind(("127.0.0.1", 0))
            listening.listen(1)
            local = socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP)
            local.connect(listening.getsockname())
        asking.send(b"?")
        serving.sendto(b"?", ("192.168.43.1", 53))
        flows = until(3)
        assert not any("127.0.0.1" in flow for flow in flows)
        for each in (asking, local, listening):
            each.close()
        assert sorted(flow[:3] for flow in until(2)) == ["tcp", "udp"]
        serving.close()
        until(1)
        client.close()
        web.close()
        until(0)


def test_the_look_ups_of_the_daemon_are_nobodys_flows(tethered, install):
    cedos = install(tethered.laptop)
    (cedos.folder / "cedos.toml").write_text(ASKING)
    # The network answers neither pings nor questions: each question stays open until it is given up.
    tethered.phones.run("iptables", "-A", "INPUT", "-p", "icmp", "-j", "DROP")
    with tethered.phones.entered():
        silent = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in "wl"]
        for number, each in zip((43, 44), silent, strict=True):
            each.bind((f"192.168.{number}.1", 53))
    with cedos.up():
        silent[0].settimeout(20)
        assert silent[0].recv(512)
        seen = [flow.flow for _ in range(10) for flow in (time.sleep(0.1), cedos.client.flows())[1]]
    assert seen == []
    for each in silent:
        each.close()


WAITS_S = 1.5
UNTIL = "2099-12-01T00:00:00"


def test_nothing_waits_for_iptables(tethered, install, tmp_path, monkeypatch):
    cedos, laptop = install(tethered.laptop), tethered.laptop
    slow, waits = tmp_path / "bin", tmp_path / "waits"
    slow.mkdir()
    for name in ("iptables", "ip6tables"):
        for program in (name, f"{name}-save", f"{name}-restore"):
            real = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
            wait = f"[ -e {waits} ] && echo . >>{waits} && sleep {WAITS_S}"
            (slow / program).write_text(f'#!/bin/sh\n{wait}\nexec {real} "$@"\n')
            (slow / program).chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow}:{os.environ['PATH']}")
    with cedos.up():
        waits.touch()
        cedos.client.set_budget(
            Budget("data", Resource.DATA, 100.0, UNTIL, every=Every.MONTH, hard=True)
        )
        laptop.run("ping", "-c", "3", "-i", "0.2", "-I", "lte0", tethered.metered)  # spends it
        slowest_s, until_s = 0.0, time.monotonic() + 2 * WAITS_S
        while time.monotonic() < until_s:
            began_s = time.monotonic()
            cedos.client.budgets()
            slowest_s = max(slowest_s, time.monotonic() - began_s)
            time.sleep(0.05)
        laptop.ip("link", "set", "wlan0", "down")
        began_s = time.monotonic()
        while any(each.name == "wlan0" and each.up for each in cedos.client.status().networks):
            assert time.monotonic() < began_s + WAITS_S / 2
            time.sleep(0.02)
        assert waits.read_text()  # that iptables was called
        waits.unlink()
    print(f"slowest answer {slowest_s:.2f} s")
    assert slowest_s < WAITS_S / 2


_SECONDS = 8.0


def test_an_idle_daemon_is_hardly_woken(tethered, tmp_path):
    """It was 8 to 10 times a second when each task had a beat of its own, and once is usual now."""
    tethered.phones.ip("address", "add", f"{SERVER}/32", "dev", "lo")
    config = f'[probes]\ntarget = "{SERVER}"\nportal_url = ""\n[providers]\nhost = false\n'
    with Installed(tethered.laptop, tmp_path, base=config).up() as daemon:
        time.sleep(4.0)  # past the first pings and decisions
        before = wakeups(daemon.pid)
        time.sleep(_SECONDS)
        woken = wakeups(daemon.pid) - before
    assert 0 < woken / _SECONDS < 6


def test_names_that_no_network_has_are_told(tethered, install):
    cedos = install(tethered.laptop, UNPLUGGED)
    config = str(cedos.folder / "cedos.toml")
    misspelt = (
        'the budget "plan" names the network lte1, which is not there now; did you mean lte0?'
    )
    unplugged = (
        "[networks.usb0] names the interface usb0, which is not there now; there are lte0, wlan0"
    )
    examined = " ".join(cedos.run("doctor", "--config", config).stdout.split())
    assert misspelt in examined
    assert unplugged in examined
    with cedos.up("--dry-run") as process:
        problems = cedos.client.status().problems
        assert misspelt in problems
        assert unplugged in problems
        tethered.plug("usb0", 45)
        wait_until(lambda: len(cedos.client.networks()) == 3)
        wait_until(lambda: not any("usb0" in problem for problem in cedos.client.status().problems))
        # What was there once is not misspelt.
        tethered.laptop.ip("link", "delete", "usb0")
        while len(cedos.client.networks()) > 2:
            pass
        problems = cedos.client.status().problems
        assert not any("usb0" in problem for problem in problems)
        assert misspelt in problems
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
    assert errors.count(misspelt) == 1
    assert unplugged in errors


RULED = "203.0.113.5"
LOOK = f"""
import socket
seen = set()
while True:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            one.connect(("{RULED}", 9))
            own = one.getsockname()[0]
        except OSError:
            own = "refused"
    if own not in seen:
        print(own)
        seen.add(own)
"""


@pytest.mark.parametrize("only", ["lte0", "absent"])
def test_a_changing_lease_takes_no_rule_away(tethered, install, only):
    """Between two leases its default route counted as the host's own: no rule held for up to 1.5 s."""
    laptop, installed = tethered.laptop, install(tethered.laptop)
    if only == "absent":  # then no network carries IPv4 for a moment
        laptop.ip("link", "delete", "lte0")
    with installed.up():
        assert installed.run("rule", "add", "--host", RULED, "--only", only).returncode == 0
        looking = laptop.popen(sys.executable, "-uc", LOOK, stdout=subprocess.PIPE, text=True)
        try:
            # As a DHCP client does it that gets a refusal, and then another lease with option 121.
            for number in range(30):
                laptop.ip("address", "flush", "dev", "wlan0")
                laptop.ip("address", "add", f"10.{number}.0.2/16", "dev", "wlan0")
                router = ("via", f"10.{number}.0.1", "dev", "wlan0")
                laptop.ip("route", "replace", "default", *router, "metric", "10")
                laptop.ip("route", "replace", RULED, *router)
                time.sleep(0.1)
        finally:
            looking.kill()
        seen = set(looking.communicate()[0].split("\n")[:-1])
        assert seen == ({"192.168.44.2"} if only == "lte0" else {"refused"})


def test_a_port_that_no_rule_can_be_about_stops_no_routing(tethered, install):
    """The kernel refuses the rule for its rescue, and from then on refused all others, for good."""
    laptop, installed = tethered.laptop, install(tethered.laptop)
    with installed.up() as process:
        with laptop.entered():
            silent = socket.socket()
        with silent:
            silent.settimeout(3)
            with pytest.raises(TimeoutError):
                silent.connect(("198.51.100.9", 65_535))
        assert installed.run("rule", "add", "--host", RULED, "--only", "lte0").returncode == 0
        assert "dev lte0" in laptop.ip("route", "get", RULED)
        assert installed.client.status().problems == []
        assert "Invalid" not in installed.ends(process)
