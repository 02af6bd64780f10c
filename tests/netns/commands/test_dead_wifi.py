"""Wi-Fi dies while nobody transfers anything: the first connection into it is enough to notice."""

import socket
import time
from collections.abc import Callable

from kit.laptop import Installed, Tethered

SERVER = "198.51.100.1"
CONFIG = f"""
[probes]
target = "{SERVER}"
dns = false
portal_url = ""
[providers]
host = false
"""


def test_one_rescued_connection_has_the_network_asked(
    tethered: Tethered, install: Callable[..., Installed]
) -> None:
    laptop, phones = tethered.laptop, tethered.phones
    phones.ip("link", "set", "lo", "up")
    phones.ip("address", "add", f"{SERVER}/32", "dev", "lo")
    with phones.entered():
        web = socket.create_server((SERVER, 80))
    cedos = install(laptop)
    (cedos.folder / "cedos.toml").write_text(CONFIG)
    with web, cedos.up():

        def default() -> str | None:
            return cedos.client.status().default.network

        def until(name: str, within_s: float) -> float:
            began_s = time.monotonic()
            while default() != name:
                assert time.monotonic() < began_s + within_s, cedos.run("status").stdout
                time.sleep(0.1)
            return time.monotonic() - began_s

        until("wlan0", 10)
        time.sleep(3.0)
        laptop.run("iptables", "-I", "INPUT", "-i", "wlan0", "-j", "DROP")
        with laptop.entered(), socket.create_connection((SERVER, 80), timeout=5):
            print(f"{until('lte0', 5):.1f} s")
        known = {each.name: each.indicators for each in cedos.client.networks()}
        assert known["wlan0"]["silence_s"].value
