"""The host's own default over what may or may not be a network, as a user meets it."""

import pytest
from kit.waiting import wait_until

SERVER = "198.51.100.9"


@pytest.fixture
def cabled(tethered):
    """A laptop on a cable, `eth0`, whose Wi-Fi and phone are there, too."""
    far = tethered.phones
    far.ip("link", "set", "lo", "up")
    far.ip("address", "add", f"{SERVER}/32", "dev", "lo")
    tethered.laptop.ip("link", "add", "eth0", "type", "veth", "peer", "eth0", "netns", far.name)
    far.ip("address", "add", "192.168.50.1/24", "dev", "eth0")
    far.ip("link", "set", "eth0", "up")
    return tethered


def _routed(cabled, name):
    """Gives an interface over the cable an address and the best default route."""
    laptop = cabled.laptop
    laptop.ip("address", "add", "192.168.50.2/24", "dev", name)
    for each in {name, "eth0"}:
        laptop.ip("link", "set", each, "up")
    laptop.ip("route", "add", "default", "via", "192.168.50.1", "dev", name, "metric", "10")


def _bridge(cabled, name="br0"):
    cabled.laptop.ip("link", "add", name, "type", "bridge")
    cabled.laptop.ip("link", "set", "eth0", "master", name)
    _routed(cabled, name)


def _leads(cabled, name):
    return f"dev {name} " in cabled.laptop.ip("route", "get", SERVER)


@pytest.mark.parametrize("stacked", ["bridge", "macvlan", "veth"])
def test_an_uplink_of_any_kind_is_a_network(cabled, install, stacked):
    name = {"bridge": "br0", "macvlan": "tun5", "veth": "eth0"}[stacked]
    if stacked == "bridge":
        _bridge(cabled)
    elif stacked == "macvlan":
        cabled.laptop.ip("link", "add", "link", "eth0", "name", name, "type", "macvlan")
        _routed(cabled, name)
    else:
        _routed(cabled, name)
    cedos = install(cabled.laptop)
    with cedos.up():
        wait_until(
            lambda: cedos.client.status().default.network == name, describe=lambda: _shown(cedos)
        )
        assert _leads(cabled, name)
        (found,) = (each for each in cedos.client.networks() if each.name == name)
        assert (found.up, found.metered, found.kind) == (True, False, "ethernet")


def test_a_bridge_of_the_phone_is_metered(cabled, install):
    laptop = cabled.laptop
    laptop.ip("link", "set", "eth0", "name", "usb5")
    laptop.ip("link", "add", "br0", "type", "bridge")
    laptop.ip("link", "set", "usb5", "master", "br0")
    laptop.ip("link", "set", "usb5", "up")
    laptop.ip("address", "add", "192.168.50.2/24", "dev", "br0")
    laptop.ip("link", "set", "br0", "up")
    laptop.ip("route", "add", "default", "via", "192.168.50.1", "dev", "br0", "metric", "10")
    cedos = install(laptop)
    with cedos.up():
        (found,) = (each for each in cedos.client.networks() if each.name == "br0")
        assert (found.metered, found.kind) == (True, "cellular")
        assert cedos.client.status().default.network == "wlan0"


def test_what_the_user_has_ignored_stays_the_hosts_default(cabled, install):
    laptop = cabled.laptop
    cedos = install(laptop, "[networks.br0]\nignore = true\n")
    config = str(cedos.folder / "cedos.toml")
    with cedos.up():
        assert cedos.client.status().default.network == "wlan0"
        _bridge(cabled)
        wait_until(
            lambda: cedos.client.status().default.network is None, describe=lambda: _shown(cedos)
        )
        told = cedos.client.status().default.host_defaults["4"]
        assert (told.interface, told.what) == ("br0", "bridge")
        assert "New IPv4 connections go over br0 (bridge), the host's own default" in _shown(cedos)
        assert "only usable" not in _shown(cedos)
        assert _leads(cabled, "br0")
        examined = cedos.run("doctor", "--config", config).stdout
        assert "the host's own IPv4 default is br0 (bridge)" in " ".join(examined.split())
        # What is bound to a network goes there.
        bound = laptop.ip("route", "get", SERVER, "from", "192.168.44.2")
        assert "dev lte0 " in bound
        assert cedos.run("rule", "add", "--host", SERVER, "--only", "lte0").returncode == 0
        assert _leads(cabled, "lte0"), "by the rule"
        assert "as the host itself" not in cedos.run("rule").stdout
        laptop.ip("link", "set", "br0", "down")
        wait_until(lambda: cedos.client.status().default.network is not None)
        assert _leads(cabled, "lte0"), "by the rule"


def test_what_the_host_refuses_stays_refused(tethered, install):
    laptop = tethered.laptop
    cedos = install(laptop)
    with cedos.up():
        laptop.ip("route", "add", "blackhole", "default", "metric", "1")
        wait_until(lambda: "4" in cedos.client.status().default.host_defaults)
        assert "refused by the host's own routes" in _shown(cedos)
        assert cedos.run("rule", "add", "--host", SERVER, "--only", "lte0").returncode == 0
        assert "IPv4 as the host itself" in cedos.run("rule").stdout
        assert laptop.run("ip", "route", "get", SERVER, check=False).returncode
        laptop.ip("route", "del", "blackhole", "default", "metric", "1")
        wait_until(lambda: cedos.client.status().default.network == "wlan0")


def _shown(cedos):
    return " ".join(cedos.run("status").stdout.split())
