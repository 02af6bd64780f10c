"""Leases of phones that announce themselves as metered, and of others."""

import errno
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

import pytest

from cedos.errors import ConfigError
from cedos.kernel.interface_kind import (
    Hardware,
    Identity,
    MeteredWord,
    Sysfs,
    announced_metered,
    carriers,
    check,
    guess,
    identify,
)
from cedos.kernel.netlink import text
from cedos.kernel.rtnetlink import Link
from cedos.model import NetworkKind

MAC = bytes.fromhex("020000000001")


RUNS = 0x10041


def link(name, kind="", *, index=3, flags=RUNS, lower=0, master=0, port_of=""):
    arphrd = 772 if name == "lo" else 1
    return Link(index, name, kind, arphrd, flags, MAC, lower, master, port_of)


@pytest.mark.parametrize(
    ("name", "hardware", "kind"),
    [
        ("wlp3s0", Hardware(), "wifi"),
        ("wlan0", Hardware(), "wifi"),
        ("eth1", Hardware(wireless=True), "wifi"),
        ("eth1", Hardware(device_type="wlan"), "wifi"),
        ("wwan0", Hardware(), "cellular"),
        ("lte0", Hardware(), "cellular"),
        ("usb0", Hardware(), "cellular"),
        ("bnep0", Hardware(device_type="bluetooth"), "cellular"),
        ("enx0a1b2c3d4e5f", Hardware(driver="rndis_host"), "cellular"),
        ("enx0a1b2c3d4e5f", Hardware(driver="ipheth"), "cellular"),
        ("enp0s20u1", Hardware(driver="cdc_ether"), "cellular"),
        ("enp0s20u1", Hardware(driver="cdc_ncm"), "cellular"),
        ("eth5", Hardware(driver="qmi_wwan", device_type="wwan"), "cellular"),
        ("enx0a1b2c3d4e5f", Hardware(driver="r8152"), "ethernet"),
        ("usb0", Hardware(driver="r8152"), "ethernet"),
        ("eno1", Hardware(driver="e1000e"), "ethernet"),
    ],
)
def test_kinds_of_real_interfaces(name, hardware, kind):
    assert guess(link(name), hardware) == NetworkKind(kind)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("lo", ""), ("veth12ab", "veth"), ("docker0", "bridge"), ("br-12ab34cd", "bridge"),
        ("home", "bridge"), ("tun0", "tun"), ("wg0", "wireguard"), ("work", "wireguard"),
        ("tailscale0", "tun"), ("virbr0", "bridge"), ("ifb0", "ifb"),
    ],
)  # fmt: skip
def test_what_is_no_network_of_its_own(name, kind):
    assert guess(link(name, kind), Hardware()) is None


def test_an_interface_with_a_name_that_is_not_utf_8_is_none():
    assert guess(Link(3, text(b"wl\xff0\0"), "", 1, 0x10041), Hardware(), leads_out=True) is None
    assert guess(Link(3, text("wlän%0".encode()), "", 1, 0x10041), Hardware()) is NetworkKind.WIFI


def test_a_member_of_a_bridge_or_bond_is_none():
    port = link("eth0", master=9, port_of="bridge")
    assert guess(port, Hardware(driver="e1000e"), leads_out=True) is None


class Drivers:
    """Interfaces by the drivers of their hardware."""

    def __init__(self, **drivers):
        self._drivers = drivers

    def look_up(self, link):
        return Hardware(driver=self._drivers.get(link.name, ""))


def behind(top, *others, leads_out=False):
    """Return how a link among others is identified; `usb5` is a phone."""
    hardware = Drivers(usb5="rndis_host", eth0="e1000e")
    beneath = carriers(top, {each.index: each for each in (top, *others)}, hardware)
    return guess(top, Hardware(), beneath, leads_out=leads_out)


ETHERNET, WIFI, CELLULAR = NetworkKind.ETHERNET, NetworkKind.WIFI, NetworkKind.CELLULAR
ETH = link("eth0", index=3)
PHONE = link("usb5", index=4)


def port(of, one):
    return replace(one, master=of.index, port_of=of.kind)


@pytest.mark.parametrize("kind", ["bridge", "bond", "team", "batadv"])
def test_what_has_ports_is_of_their_kind(kind):
    top = link("x0", kind, index=9)
    guest = port(top, link("vnet3", "tun", index=12))
    assert behind(top, port(top, ETH), guest) is ETHERNET
    assert behind(top, port(top, PHONE), guest) is CELLULAR
    assert behind(top, port(top, link("wlp2s0", index=5))) is WIFI
    # A bond that falls back on a phone.
    assert behind(top, port(top, ETH), port(top, PHONE)) is ETHERNET
    fallen = replace(ETH, flags=0x1001)
    assert behind(top, port(top, fallen), port(top, PHONE)) is CELLULAR


@pytest.mark.parametrize("kind", ["vlan", "macvlan", "ipvlan", "macvtap", "macsec"])
def test_what_is_stacked_is_of_the_kind_of_what_is_below(kind):
    assert behind(link("up0", kind, index=9, lower=3), ETH) is ETHERNET
    assert behind(link("up0", kind, index=9, lower=4), PHONE) is CELLULAR
    bridge = link("br0", "bridge", index=8)
    tagged = link("tagged", "vlan", index=9, lower=8)
    assert behind(tagged, bridge, port(bridge, PHONE)) is CELLULAR


def test_a_bridge_of_guests_is_a_network_only_where_it_leads_out():
    bridge = link("br-12ab34cd", "bridge", index=9)
    guests = port(bridge, link("veth1", "veth", index=11)), port(bridge, link("t", "tun", index=12))
    assert behind(bridge, *guests) is None
    assert behind(bridge, *guests, leads_out=True) is ETHERNET


@pytest.mark.parametrize("kind", ["tun", "wireguard", "vrf", "dummy", "vxlan", "ifb"])
def test_what_leads_to_no_access_network_is_none_even_if_it_leads_out(kind):
    assert behind(link("eth9", kind), leads_out=True) is None


def test_the_users_word_counts():
    overrides = {
        "wlan0": {"metered": True, "name": "home"},
        "wg0": {"kind": "ethernet"},
        "eth0": {"ignore": True},
        "enx1": {"kind": "cellular", "metered": False},
    }
    check(overrides)

    def of(name, kind=""):
        return identify(link(name, kind), Hardware(), overrides)

    assert of("wlan0") == Identity("home", NetworkKind.WIFI, user_metered=True)
    assert of("wg0", "wireguard") == Identity("wg0", NetworkKind.ETHERNET)
    assert of("eth0") is None
    assert of("enx1") == Identity("enx1", NetworkKind.CELLULAR, user_metered=False)
    assert of("usb0") == Identity("usb0", NetworkKind.CELLULAR)
    assert of("tun0", "tun") is None


HOME, HOTSPOT = ip_address("192.168.1.5"), ip_address("172.20.10.3")


CELLULAR, WIFI = NetworkKind.CELLULAR, NetworkKind.WIFI


@pytest.mark.parametrize(
    ("kind", "user", "word", "address", "metered"),
    [
        (WIFI, None, None, HOME, False),
        (WIFI, None, MeteredWord.GUESSED_YES, HOME, True),
        (WIFI, None, MeteredWord.YES, HOME, True),
        (WIFI, None, None, HOTSPOT, True),
        (WIFI, None, MeteredWord.NO, HOTSPOT, False),
        (WIFI, False, MeteredWord.YES, HOTSPOT, False),
        (CELLULAR, None, None, HOME, True),
        (CELLULAR, None, MeteredWord.NO, HOME, False),
        (CELLULAR, False, None, HOME, False),
        (NetworkKind.ETHERNET, None, None, ip_address("172.20.10.17"), False),
        (NetworkKind.ETHERNET, True, MeteredWord.NO, HOME, True),
    ],
)
def test_whose_word_on_its_bytes_counts(kind, user, word, address, metered):
    assert Identity("x", kind, user).is_metered([address], word) is metered


def test_wrong_words_are_refused_with_what_would_be_right():
    with pytest.raises(ConfigError, match=r"wlan0: kind 'wfi'; one of wifi, cellular, ethernet"):
        check({"wlan0": {"kind": "wfi"}})
    with pytest.raises(ConfigError, match="wlan0: helpers are called 'helper-2'"):
        check({"wlan0": {"name": "helper-2"}})
    with pytest.raises(ConfigError, match="wlan0 and lte0 are both called 'a'"):
        check({"wlan0": {"name": "a"}, "lte0": {"name": "a"}})


def sysfs(root, name, *, index=3, mac="02:00:00:00:00:01"):
    entry = root / name
    entry.mkdir()
    (entry / "ifindex").write_text(f"{index}\n")
    (entry / "address").write_text(f"{mac}\n")
    (entry / "uevent").write_text(f"INTERFACE={name}\nIFINDEX={index}\n")
    return entry


def test_sysfs_tells_driver_and_type(tmp_path):
    entry = sysfs(tmp_path, "enx1")
    driver = tmp_path / "drivers" / "cdc_ether"
    driver.mkdir(parents=True)
    (entry / "device").mkdir()
    (entry / "device" / "driver").symlink_to(driver)
    assert Sysfs(tmp_path).look_up(link("enx1")) == Hardware(genuine=True, driver="cdc_ether")

    wifi = sysfs(tmp_path, "wlp3s0")
    (wifi / "phy80211").mkdir()
    (wifi / "uevent").write_text("DEVTYPE=wlan\nINTERFACE=wlp3s0\n")
    found = Sysfs(tmp_path).look_up(link("wlp3s0"))
    assert (found.genuine, found.wireless, found.device_type) == (True, True, "wlan")


def test_sysfs_of_another_namespace_is_not_believed(tmp_path):
    entry = sysfs(tmp_path, "wlan0", index=2)
    (entry / "wireless").mkdir()
    assert Sysfs(tmp_path).look_up(link("wlan0", index=3)) == Hardware()
    other = sysfs(tmp_path, "lte0", mac="02:00:00:00:00:99")
    (other / "wireless").mkdir()
    assert Sysfs(tmp_path).look_up(link("lte0")) == Hardware()
    assert Sysfs(tmp_path).look_up(link("absent")) == Hardware()


def test_without_a_descriptor_the_hardware_is_as_it_was(tmp_path, monkeypatch):
    """A tethered phone was a wire then, and nothing that it carried was metered."""
    phone = sysfs(tmp_path, "enx1")
    (phone / "device").mkdir()
    (tmp_path / "cdc_ether").mkdir()
    (phone / "device" / "driver").symlink_to(tmp_path / "cdc_ether")
    facts, known = Sysfs(tmp_path), Hardware(genuine=True, driver="cdc_ether")
    assert facts.look_up(link("enx1")) == known

    def none_left(*_, **__):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Path, "open", none_left)
    assert facts.look_up(link("enx1")) == known
    new = link("enx1", index=4)
    found = facts.look_up(new)
    assert (found, guess(new, found)) == (Hardware(known=False), "cellular")
    monkeypatch.undo()
    assert facts.look_up(new) == Hardware()


NETWORKD = """# This is private data. Do not parse.
ADDRESS=192.168.43.77
NETMASK=255.255.255.0
ROUTER=192.168.43.1
VENDOR_SPECIFIC=414e44524f49445f4d455445524544
"""


DHCLIENT = """lease {
  interface "wlan0";
  fixed-address 192.168.43.77;
  option vendor-encapsulated-options 41:4e:44:52:4f:49:44:5f:4d:45:54:45:52:45:44;
  expire 1 2026/11/23 18:00:00;
}
lease {
  interface "eth0";
  fixed-address 10.0.0.5;
}
"""


def announced(folder, name, index=7):
    return announced_metered(name, index, networkd=folder, dhclient=folder)


def test_systemd_networkd(tmp_path):
    assert not announced(tmp_path, "wlan0")
    (tmp_path / "7").write_text(NETWORKD)
    assert announced(tmp_path, "wlan0", 7)
    assert not announced(tmp_path, "wlan0", 8)
    (tmp_path / "7").write_text(NETWORKD.replace("414e", "ffff"))
    assert not announced(tmp_path, "wlan0", 7)


def test_dhclient_and_its_latest_lease_of_an_interface(tmp_path):
    file = tmp_path / "dhclient.wlan0.leases"
    file.write_text(DHCLIENT)
    assert announced(tmp_path, "wlan0")
    assert not announced(tmp_path, "eth0")
    assert not announced(tmp_path, "wlan")
    file.write_text(DHCLIENT + 'lease {\n  interface "wlan0";\n  fixed-address 10.1.1.2;\n}\n')
    assert not announced(tmp_path, "wlan0")
    file.write_text(
        DHCLIENT.replace("41:4e:44:52:4f:49:44:5f:4d:45:54:45:52:45:44", '"ANDROID_METERED"')
    )
    assert announced(tmp_path, "wlan0")
