"""IPv6 sockets that are bound to nothing do not get round what routing refuses; all others go on."""

import contextlib
import errno
import json
import pickle
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from kit.steered import steered

from cedos.controller.commands import NOWHERE
from cedos.host.steer.steering import Steering, restore

SERVED = "2001:db8:100::1"  # datagrams are answered only there
OTHER = "2001:db8:100::7"
AT_ONCE_S = 0.5
ETH_P_ALL = 3
CHILD = """
import asyncio, pickle, sys
from pathlib import Path
from cedos.host.steer.steering import Steering

async def main():
    networks = pickle.loads(bytes.fromhex(sys.argv[2]))
    async with Steering(Path(sys.argv[1])) as steering:
        await steering.networks_changed(networks)
        steering.set_default("wlan0")
        steering.set_destination("2001:db8:100::7", None, "")
        print("steering", flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""
NAMES = """
import json, socket
found = socket.getaddrinfo("dual.example", 443, type=socket.SOCK_STREAM)
print(json.dumps([each[4][0] for each in found]))
"""
by_rule_or_default = pytest.mark.parametrize("remote", [SERVED, OTHER])


@pytest.fixture
def networks(host):
    """Wi-Fi has no IPv6, not even an address: the kernel can only choose the phone's."""
    host.client.ip("-6", "address", "flush", "dev", "wlan0", "scope", "global")
    wlan0, lte0 = host.networks()
    return [replace(wlan0, addresses=wlan0.addresses[:1], next_hops=wlan0.next_hops[:1]), lte0]


def _steered(host, networks, body, **options):
    """Runs `body` while Wi-Fi is the default, and a rule refuses OTHER."""

    async def steer():
        async with Steering(host.directory, **options) as steering:
            await steering.networks_changed(networks)
            steering.set_default("wlan0")
            steering.set_destination(OTHER, None, NOWHERE)
            body()

    host.run(steer)


@by_rule_or_default
def test_a_socket_that_is_bound_to_nothing_is_refused_at_once(host, networks, remote):
    def body():
        for _ in range(3):
            begin_s = time.monotonic()
            with pytest.raises(ConnectionRefusedError):
                host.connect(6, to=remote)
            with pytest.raises(PermissionError):
                host.seen_udp(6, to=remote)
            assert time.monotonic() - begin_s < AT_ONCE_S

    before = host.state()
    _steered(host, networks, body)
    assert host.state() == before


@by_rule_or_default
def test_without_the_packet_filter_it_is_refused_after_a_second(host, networks, remote):
    def body():
        begin_s = time.monotonic()
        with pytest.raises(OSError, match="unreachable") as refused:
            host.connect(6, to=remote)
        assert refused.value.errno == errno.ENETUNREACH
        assert time.monotonic() - begin_s < 3
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as asking:
            asking.connect((remote, 8001))
            assert asking.getsockname()[0] == "::1"
            asking.settimeout(0.3)
            asking.send(b"who")
            with pytest.raises(TimeoutError):
                asking.recv(100)

    _steered(host, networks, body, filter_flows=False)
    assert "CEDOS" not in host.client.run("ip6tables-save").stdout


@by_rule_or_default
def test_what_is_bound_gets_there(host, networks, remote):
    phone = host.address("lte0", 6)

    def body():
        assert host.seen_tcp(6, to=remote, bind=phone) == phone
        for kind, port in ((socket.SOCK_STREAM, 8000), (socket.SOCK_DGRAM, 8001)):
            for name, value in ((socket.SO_BINDTODEVICE, b"lte0"), (None, b"")):
                with socket.socket(socket.AF_INET6, kind) as asking:
                    asking.settimeout(5)
                    if name is not None:
                        asking.setsockopt(socket.SOL_SOCKET, name, value)
                    else:
                        asking.bind((phone, 0))
                    asking.connect((remote if kind == socket.SOCK_STREAM else SERVED, port))
                    asking.send(b"who\n")
                    assert asking.recv(100).decode() == phone

    _steered(host, networks, body)


def test_what_lives_goes_on_while_the_rule_comes(host, networks):
    async def body():
        async with Steering(host.directory) as steering:
            await steering.networks_changed(networks)
            steering.set_default("lte0")
            living = [host.connect(6), host.connect(6, to=OTHER)]
            with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as asking:
                asking.connect((SERVED, 8001))
                asking.settimeout(5)
                living.append(asking)
                for name in ("wlan0", "lte0", "wlan0"):
                    steering.set_default(name)
                    steering.set_destination(OTHER, None, NOWHERE)
                    for one in living:
                        one.send(b"x\n")
                        assert one.recv(100)
                with pytest.raises(ConnectionRefusedError):
                    host.connect(6)
                steering.set_default("lte0")
                steering.set_destination(OTHER, None, None)
                assert host.seen_tcp(6) == host.address("lte0", 6)
                assert host.seen_tcp(6, to=OTHER) == host.address("lte0", 6)

    host.run(body)


def test_a_name_with_both_ip_versions_begins_with_ipv4(host, networks, tmp_path):
    names = tmp_path / "hosts"
    names.write_text(f"{OTHER} dual.example\n198.51.100.1 dual.example\n")
    script = 'mount --bind "$1" /etc/hosts; shift; exec "$@"'
    asked = ("unshare", "-m", "sh", "-ec", script, "sh", str(names), sys.executable, "-c", NAMES)

    def found():
        return json.loads(host.client.run(*asked).stdout)

    assert found() == [OTHER, "198.51.100.1"]
    _steered(host, networks, lambda: _equal(found(), ["198.51.100.1", OTHER]))


def _equal(one, other):
    assert one == other


@steered(default="wlan0")
async def test_what_a_lost_address_sends_leaves_in_no_report(host, steering):
    """The kernel told the lost address, over the other network, what it had refused, word for word."""
    steering.set_ruled({(OTHER, None): "wlan0"})
    with host.client.entered():
        asking = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        seen = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ALL))
    with asking, seen:
        asking.connect((OTHER, 8001))
        assert asking.getsockname()[0] == host.address("wlan0", 6)
        seen.bind(("lte0", ETH_P_ALL))
        seen.settimeout(0.3)
        lte0 = host.networks()[1]
        host.client.ip("link", "del", "wlan0")
        await steering.networks_changed([lte0])
        with contextlib.suppress(OSError):
            asking.send(b"secret")
        packets = []
        with contextlib.suppress(TimeoutError):
            while True:
                packets.append(seen.recv(2000))
        assert not any(b"secret" in each for each in packets)


def test_loopbacks_own_traffic_is_not_touched(host, networks):
    phone = host.address("lte0", 6)

    def body():
        for there, here in (("::1", "::1"), (phone, "::1"), ("::1", phone), (phone, phone)):
            with socket.socket(socket.AF_INET6) as listening, socket.socket(socket.AF_INET6) as one:
                listening.bind((there, 0))
                listening.listen()
                one.bind((here, 0))
                one.settimeout(2)
                one.connect(listening.getsockname())
            kind = socket.SOCK_DGRAM
            with (
                socket.socket(socket.AF_INET6, kind) as hearing,
                socket.socket(socket.AF_INET6, kind) as one,
            ):
                hearing.bind((there, 0))
                hearing.settimeout(2)
                one.bind((here, 0))
                one.sendto(b"x", hearing.getsockname())
                assert hearing.recv(10) == b"x"

    _steered(host, networks, body)


@steered(default="wlan0")
async def test_ipv4_is_unreachable_as_before(host, steering):
    steering.set_destination("198.51.100.7", None, NOWHERE)
    begin_s = time.monotonic()
    for ask in (host.seen_tcp, host.seen_udp):
        with pytest.raises(OSError, match="unreachable"):
            ask(4, to="198.51.100.7")
    assert time.monotonic() - begin_s < AT_ONCE_S
    rules = [line for line in host.client.ip("-4", "rule").splitlines() if "32146" in line]
    assert rules
    assert all("unreachable" in line for line in rules)
    assert "CEDOS" in host.client.run("iptables-save").stdout
    assert "REJECT" not in host.client.run("iptables-save").stdout
    phone = host.address("lte0", 4)
    assert host.seen_tcp(4, to="198.51.100.7", bind=phone) == phone


def test_a_loopback_without_ipv6_has_unreachable_rules_until_it_has_it_again(host, networks):
    host.client.sysctl("net.ipv6.conf.lo.disable_ipv6", 1)
    before = host.state()

    def rules():
        return [line for line in host.client.ip("-6", "rule").splitlines() if "unreachable" in line]

    async def body():
        async with Steering(host.directory) as steering:
            await steering.networks_changed(networks)
            steering.set_default("wlan0")
            steering.set_destination(OTHER, None, NOWHERE)
            assert {line[:6] for line in rules()} >= {"32146:", "32191:"}
            assert host.seen_tcp(4) == host.address("wlan0", 4)
            host.client.sysctl("net.ipv6.conf.lo.disable_ipv6", 0)
            await steering.networks_changed(networks)
            assert not {line[:6] for line in rules()} & {"32146:", "32191:"}
            with pytest.raises(ConnectionRefusedError):
                host.connect(6, to=OTHER)
            host.client.sysctl("net.ipv6.conf.lo.disable_ipv6", 1)

    host.run(body)
    assert host.state() == before


def test_kill_9_then_restore_leaves_nothing(host, networks):
    before = host.state()
    child = host.client.popen(
        *(sys.executable, "-c", CHILD, str(host.directory), pickle.dumps(networks).hex()),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert any(line.strip() == "steering" for line in child.stdout)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
    for remote in (SERVED, OTHER):
        with pytest.raises(ConnectionRefusedError):
            host.connect(6, to=remote)
    with host.client.entered():
        assert not restore(host.directory).left
    assert host.state() == before
    assert host.seen_tcp(6, to=OTHER) == host.address("lte0", 6)
