"""Foreground data that holds background data back, also of other processes."""

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cedos import config, session
from cedos.kernel.interface_kind import Hardware, Sysfs
from cedos.kernel.rtnetlink import Link
from cedos.model import Bulk, Label, NetworkKind, Urgency
from cedos.session.io.connect_attempts import asks_after_s
from cedos.session.io.driver import Foreground
from cedos.session.io.links import Egress, NetworkIdentifier, user_overrides
from cedos.session.io.path import QUIET_S, SILENCE_S, prepare
from cedos.session.protocol.crypto import KeyPair

OTHER = """
import sys, pathlib
from cedos.session.io.driver import Foreground
mine = Foreground(pathlib.Path(sys.argv[1]))
mine.on_sent(7)
mine.on_sent(8)
print("ready", flush=True)
sys.stdin.readline()
"""


def test_two_in_one_process_see_each_other(tmp_path):
    one, other = Foreground(tmp_path), Foreground(tmp_path)
    one.on_sent(3)
    other.on_sent(5)
    assert [other.idle_s(each) < 60 for each in (3, 4, 5)] == [True, False, True]
    assert [one.idle_s(each) < 60 for each in (3, 4, 5)] == [True, False, True]
    one.close()
    other.close()


def test_another_process_and_its_death(tmp_path):
    mine = Foreground(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", OTHER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"ready\n"
        assert mine.idle_s(8) < 60
        assert mine.idle_s(9) == float("inf")
        process.kill()
    # Its slots are free again: the next two claims get them.
    mine.on_sent(1)
    mine.on_sent(2)
    third = Foreground(tmp_path)
    assert third.idle_s(2) < 60
    assert third.idle_s(8) == float("inf")
    mine.close()
    third.close()


def test_what_cannot_be_mapped_is_not_shared(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    assert not Foreground(blocked / "below").shared
    link = tmp_path / "run"
    link.mkdir()
    (link / "foreground").symlink_to(tmp_path / "elsewhere")
    assert not Foreground(link).shared
    assert not (tmp_path / "elsewhere").exists()


BULK = Label(Urgency.BACKGROUND, Bulk.LARGE)
LOOPBACK = socket.if_nametoindex("lo")


async def test_what_one_program_sends_another_makes_room_for(tmp_path, monkeypatch):
    monkeypatch.setenv("CEDOS_RUNTIME_DIR", str(tmp_path))
    other = Foreground(tmp_path)  # has a slot of its own, as another process would

    key = KeyPair(os.urandom(32))
    async with (
        asyncio.timeout(100),
        await session.listen(("127.0.0.1", 0), key=key) as listener,
    ):
        near = await session.connect(
            listener.address, server_key=key.public, key=KeyPair(os.urandom(32))
        )
        far = await listener.accept()
        (path,) = near.flow.paths.values()

        async def background():
            await asyncio.sleep(0.02)  # the estimator polls every 10 ms
            await near.send(bytes(1000), BULK)
            assert await far.receive() is not None

        await background()
        assert path.facts.foreground_at_s == float("-inf")
        assert other.idle_s(LOOPBACK) == float("inf")

        other.on_sent(LOOPBACK)
        began_s = asyncio.get_running_loop().time()
        await background()
        assert abs(path.facts.foreground_at_s - began_s) < 60

        await asyncio.sleep(0.02)
        await near.send(b"urgent")
        await asyncio.sleep(0.02)
        assert other.idle_s(LOOPBACK) < 60
        near.abort()
        await near.wait_drained()
    other.close()


HARDWARE_ADDRESS = bytes.fromhex("0a1b2c3d4e5f")
PHONE = Link(5, "enx0a1b2c3d4e5f", "", 1, 0x11043, HARDWARE_ADDRESS)


def sysfs(root, driver):
    """Build the sysfs entries of a USB interface with this driver."""
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
    assert (found.kind, found.is_metered([])) == (NetworkKind.CELLULAR, True)


def test_a_kind_that_could_not_be_read_is_asked_for_again(monkeypatch, tmp_path):
    """Read it without a descriptor: the guess stayed until the next change of links."""
    hardware = sysfs(tmp_path, "r8152")
    identifier = NetworkIdentifier({}, hardware)
    with monkeypatch.context() as without:
        without.setattr(hardware, "look_up", lambda _: Hardware(known=False))
        assert identifier.identify(PHONE, {}).kind is NetworkKind.CELLULAR
        assert not identifier.certain
    assert identifier.identify(PHONE, {}).kind is NetworkKind.ETHERNET
    assert identifier.certain


def test_the_users_word_counts_for_sessions_too(tmp_path, monkeypatch):
    file = tmp_path / "cedos.toml"
    monkeypatch.setattr(config, "DEFAULT_FILE", file)
    assert user_overrides() == {}
    file.write_text(f"[networks.{PHONE.name}]\nmetered = false\n")
    found = NetworkIdentifier(user_overrides(), sysfs(tmp_path, "cdc_ether")).identify(PHONE, {})
    assert (found.kind, found.is_metered([])) == (NetworkKind.CELLULAR, False)
    file.write_text("[networks\n")
    assert user_overrides() == {}


def test_what_the_daemon_leaves_alone_may_carry_a_session(tmp_path):
    vpn = Link(7, "wg0", "wireguard", 65534, 0x10041)
    found = NetworkIdentifier({}, Sysfs(tmp_path)).identify(vpn, {})
    assert (found.kind, found.is_metered([])) == (NetworkKind.ETHERNET, False)
    ignored = NetworkIdentifier({PHONE.name: {"ignore": True}}, sysfs(tmp_path, "ipheth"))
    assert ignored.identify(PHONE, {}).is_metered([])


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
