"""Networks that lack an IP version, as programs meet them: real daemon, real connections."""

import json
import socket
import sys
from contextlib import ExitStack

import pytest
from kit.waiting import wait_until

FOUR, SIX = "198.51.100.9", "2001:db8:100::9"
NAMES = """
import json, socket
found = socket.getaddrinfo("dual.example", 443, type=socket.SOCK_STREAM)
print(json.dumps([each[4][0] for each in found]))
"""


class Versions:
    """The laptop of `tethered`, whose networks have the IP versions that a test gives them."""

    def __init__(self, tethered):
        self.laptop, self.phones = tethered.laptop, tethered.phones
        self.phones.ip("link", "set", "lo", "up")
        self.laptop.ip("link", "set", "lo", "up")
        self.phones.ip("address", "add", f"{FOUR}/32", "dev", "lo")
        self.phones.ip("address", "add", f"{SIX}/128", "dev", "lo", "nodad")
        for name, number in (("wlan0", 43), ("lte0", 44)):
            self.phones.ip("address", "add", f"2001:db8:{number}::1/64", "dev", name, "nodad")
            self.phones.ip("address", "add", f"fe80::{number}:1/64", "dev", name, "nodad")
            self.laptop.ip("address", "add", f"fe80::{number}:2/64", "dev", name, "nodad")

    def gain6(self, name, number):
        self.laptop.ip("address", "add", f"2001:db8:{number}::2/64", "dev", name, "nodad")
        self.laptop.ip(
            *("-6", "route", "add", "default", "via", f"fe80::{number}:1", "dev", name),
            *("metric", str(number)),
        )

    def lose6(self, name, number):
        self.laptop.ip("-6", "route", "del", "default", "dev", name)
        self.laptop.ip("address", "del", f"2001:db8:{number}::2/64", "dev", name)

    def lose4(self, name, number):
        self.laptop.ip("address", "del", f"192.168.{number}.2/24", "dev", name)

    def gain4(self, name, number):
        self.laptop.ip("address", "add", f"192.168.{number}.2/24", "dev", name)
        gateway = f"192.168.{number}.1"
        self.laptop.ip("route", "replace", "default", "via", gateway, "metric", str(number))

    def source(self, remote):
        """The own address from which a program reaches a server; None: it does not."""
        family = socket.AF_INET6 if ":" in remote else socket.AF_INET
        with self.laptop.entered():
            one = socket.socket(family, socket.SOCK_STREAM)
        with one:
            one.settimeout(3)
            try:
                one.connect((remote, 80))
            except OSError:
                return None
            return str(one.getsockname()[0])


@pytest.fixture
def versions(tethered):
    made = Versions(tethered)
    with ExitStack() as stack:
        for address, family in ((FOUR, socket.AF_INET), (SIX, socket.AF_INET6)):
            with made.phones.entered():
                stack.enter_context(socket.create_server((address, 80), family=family))
        yield made


def _shown(cedos):
    return " ".join(cedos.run("status").stdout.split())


def test_ipv4_goes_over_the_phone_where_wifi_has_ipv6_alone(versions, install):
    versions.gain6("wlan0", 43)
    versions.lose4("wlan0", 43)
    cedos = install(versions.laptop)
    with cedos.up():
        wait_until(
            lambda: "4" in cedos.client.status().default.others, describe=lambda: _shown(cedos)
        )
        assert versions.source(FOUR) == "192.168.44.2"
        assert versions.source(SIX) == "2001:db8:43::2"
        assert "New IPv4 connections go over lte0: wlan0 has no IPv4." in _shown(cedos)
        # It gains it, and loses it again, while it lives.
        versions.gain4("wlan0", 43)
        wait_until(lambda: versions.source(FOUR) == "192.168.43.2", describe=lambda: _shown(cedos))
        versions.lose4("wlan0", 43)
        wait_until(lambda: versions.source(FOUR) == "192.168.44.2", describe=lambda: _shown(cedos))
        # A rule that forbids the only network with IPv4.
        add = ("rule", "add", "--host", FOUR, "--only", "wlan0")
        assert cedos.run(*add).returncode == 0
        assert versions.source(FOUR) is None
        assert "refused: wlan0 has no IPv4" in cedos.run("rule").stdout
        # A hard budget does.
        assert cedos.run("rule", "remove", "1").returncode == 0
        assert versions.source(FOUR) == "192.168.44.2"
        spent = ("budget", "set", "data", "1kB", "--until", "2099-12-01", "--hard")
        assert cedos.run(*spent).returncode == 0, cedos.run(*spent).stderr
        versions.laptop.run(
            "ping", "-c", "12", "-i", "0.1", "-I", "lte0", "192.168.44.1", check=False
        )
        wait_until(
            lambda: cedos.client.status().default.others["4"].network is None,
            describe=lambda: _shown(cedos),
        )
        assert "New IPv4 connections are refused: wlan0 has no IPv4." in _shown(cedos)
        assert "budget" in cedos.client.status().default.others["4"].why
        config = str(cedos.folder / "cedos.toml")
        examined = " ".join(cedos.run("doctor", "--config", config).stdout.split())
        assert "wlan0 (wifi, no IPv4)" in examined
        assert "IPv4 refused: wlan0 has no IPv4." in examined
        assert versions.source(FOUR) is None
        assert versions.source(SIX) == "2001:db8:43::2"


def test_ipv6_alone_is_reached_over_the_phone_and_names_with_both_keep_to_wifi(versions, install):
    versions.gain6("lte0", 44)
    cedos = install(versions.laptop)
    names = cedos.folder / "hosts"
    names.write_text(f"{SIX} dual.example\n{FOUR} dual.example\n")
    script = 'mount --bind "$1" /etc/hosts; shift; exec "$@"'
    asked = ("unshare", "-m", "sh", "-ec", script, "sh", str(names), sys.executable, "-c", NAMES)
    with cedos.up():
        wait_until(
            lambda: "6" in cedos.client.status().default.others, describe=lambda: _shown(cedos)
        )
        assert versions.source(SIX) == "2001:db8:44::2"
        assert versions.source(FOUR) == "192.168.43.2"
        assert json.loads(versions.laptop.run(*asked).stdout) == [FOUR, SIX]
        assert "New IPv6 connections go over lte0: wlan0 has no IPv6." in _shown(cedos)
        # Wi-Fi gains it, and loses it again.
        versions.gain6("wlan0", 43)
        wait_until(lambda: versions.source(SIX) == "2001:db8:43::2", describe=lambda: _shown(cedos))
        versions.lose6("wlan0", 43)
        wait_until(lambda: versions.source(SIX) == "2001:db8:44::2", describe=lambda: _shown(cedos))
