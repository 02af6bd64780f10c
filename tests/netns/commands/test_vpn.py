"""A VPN that takes all traffic while the daemon runs: it is left alone, and people are told."""

import time
from collections.abc import Callable
from typing import Any

RULE = ("--host", "192.0.2.7", "--never", "metered")


def test_what_it_carries_is_said_to_be_carried_by_it(
    tethered: Any, install: Callable[..., Any]
) -> None:
    laptop = tethered.laptop
    cedos = install(laptop)
    with cedos.up():
        assert cedos.run("rule", "add", *RULE).returncode == 0
        assert cedos.run("rule").stdout.splitlines()[1].endswith("never metered  wlan0")
        laptop.ip("tuntap", "add", "tun7", "mode", "tun")
        laptop.ip("address", "add", "10.8.0.2/24", "dev", "tun7")
        laptop.ip("link", "set", "tun7", "up")
        laptop.ip("route", "add", "default", "dev", "tun7", "metric", "1")
        _until(lambda: cedos.client.status().default.vpn == {"4": "tun7"})
        shown = cedos.run("status").stdout
        assert "New IPv4 connections go through the VPN tun7, which cedos leaves alone" in shown
        assert "Other new connections have gone over wlan0" in shown
        led = laptop.ip("route", "get", "192.0.2.7")
        assert "dev tun7" in led
        (rule,) = cedos.client.rules()
        assert rule.vpn == {"4": "tun7"}
        last = cedos.run("rule").stdout.splitlines()[1]
        assert last.endswith("IPv4 through the VPN tun7; else wlan0")
        laptop.ip("link", "del", "tun7")
        _until(lambda: not cedos.client.status().default.vpn)
        assert "dev wlan0" in laptop.ip("route", "get", "192.0.2.7")
        assert cedos.client.rules()[0].vpn == {}


def _until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
