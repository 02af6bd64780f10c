"""The kinds of local networks, and how often a path over them asks."""

import socket
from pathlib import Path

import pytest

from cedos import config
from cedos.kernel.interface_kind import Sysfs
from cedos.kernel.rtnetlink import Link
from cedos.model import NetworkKind
from cedos.session.io.connect_attempts import asks_after_s
from cedos.session.io.links import Egress, NetworkIdentifier, user_overrides
from cedos.session.io.path import QUIET_S, SILENCE_S, prepare

HARDWARE_ADDRESS = bytes.fromhex("0a1b2c3d4e5f")
PHONE = Link(5, "enx0a1b2c3d4e5f", "", 1, 0x11043, HARDWARE_ADDRESS)


def sysfs(root, driver):
    """Of a USB interface with this driver."""
    entry, behind = root / "net" / PHONE.name, root / "drivers" / driver
    behind.mkdir(parents=True)
    (entry / "device").mkdir(parents=True)
    (entry / "device" / "driver").symlink_to(behind)
    (entry / "ifindex").write_text("5\n")
    (entry / "address").write_text("0a:1b:2c:3d:4e:5f\n")
    return Sysfs(root / "net")


@pytest.mark.parametrize("driver", ["cdc_ether", "rndis_host", "ipheth", "cdc_ncm"])
def test_a_tethered_phone_is_no_ethernet_whatever_its_name(tmp_path, driver):
    found = NetworkIdentifier({}, sysfs(tmp_path, driver)).identify(PHONE, {})
    assert (found.kind, found.metered([])) == (NetworkKind.CELLULAR, True)


def test_the_users_word_counts_for_sessions_too(tmp_path, monkeypatch):
    file = tmp_path / "cedos.toml"
    monkeypatch.setattr(config, "DEFAULT_FILE", file)
    assert user_overrides() == {}
    file.write_text(f"[networks.{PHONE.name}]\nmetered = false\n")
    found = NetworkIdentifier(user_overrides(), sysfs(tmp_path, "cdc_ether")).identify(PHONE, {})
    assert (found.kind, found.metered([])) == (NetworkKind.CELLULAR, False)
    file.write_text("[networks\n")
    assert user_overrides() == {}


def test_what_the_daemon_leaves_alone_may_carry_a_session(tmp_path):
    vpn = Link(7, "wg0", "wireguard", 65534, 0x10041)
    found = NetworkIdentifier({}, Sysfs(tmp_path)).identify(vpn, {})
    assert (found.kind, found.metered([])) == (NetworkKind.ETHERNET, False)
    ignored = NetworkIdentifier({PHONE.name: {"ignore": True}}, sysfs(tmp_path, "ipheth"))
    assert ignored.identify(PHONE, {}).metered([])


def egress(kind, *, metered):
    return Egress("net0", 2, frozenset(), kind, metered)


@pytest.mark.parametrize(
    ("kind", "metered", "expected_s"),
    [
        (NetworkKind.WIFI, False, SILENCE_S),
        (NetworkKind.ETHERNET, False, SILENCE_S),
        (NetworkKind.WIFI, True, QUIET_S),  # a phone's hotspot
        (NetworkKind.CELLULAR, True, QUIET_S),
        (NetworkKind.CELLULAR, False, QUIET_S),  # its bytes cost nothing, its radio does
    ],
)
def test_a_phone_is_asked_seldom(kind, metered, expected_s):
    assert asks_after_s(egress(kind, metered=metered)) == expected_s


@pytest.mark.skipif(
    not Path("/proc/sys/net/ipv4/tcp_rto_max_ms").exists(), reason="needs Linux 6.15"
)
def test_after_an_outage_the_next_retransmission_is_near():
    with socket.socket() as connection:
        before_ms = connection.getsockopt(socket.IPPROTO_TCP, 44)  # TCP_RTO_MAX_MS
        prepare(connection)
        assert connection.getsockopt(socket.IPPROTO_TCP, 44) == 2_000 != before_ms
