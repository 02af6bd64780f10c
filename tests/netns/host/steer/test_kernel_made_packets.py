"""Packets that the kernel makes for a user without any privilege: the walls of a barred network hold."""

import asyncio
import json
import sys

import pytest
from kit.steered import steering_of

from cedos.host.steer.kernel.egress_wall import EgressWall

SECONDS = 3.0
MOST_BYTES = 6_000
"""Neighbours, routers, and a few reports."""
KINDS = ["mld", "igmp", "neighbours", "ping", "answers", "resets", "dhcp", "dhcpv6"]

# Each becomes a user without privilege, then lets the kernel send.
ATTACK = """
import os, socket, struct, sys, time
kind, interface, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
os.setgroups([]); os.setgid(65534); os.setuid(65534)
until = time.monotonic() + seconds
turn = 0
while time.monotonic() < until:
    turn += 1
    held = []
    try:
        if kind == "mld":
            for _ in range(8):
                joined = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
                held.append(joined)
                for number in range(60):
                    group = b"\\xff\\x05" + os.urandom(14)
                    joined.setsockopt(
                        socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, group + struct.pack("I", interface)
                    )
            time.sleep(0.02)
        elif kind == "igmp":
            for _ in range(8):
                joined = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                held.append(joined)
                for number in range(15):
                    group = b"\\xef" + os.urandom(3) + bytes(4) + struct.pack("i", interface)
                    joined.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group)
        elif kind == "neighbours":
            asking = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
            held.append(asking)
            host = "2001:db8:44::%x:%x" % (os.getpid() & 0xFFFF, 0x100 + turn % 0xF000)
            asking.sendto(b"x" * 1000, (host, 9))
        elif kind == "ping":
            asking = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM, socket.IPPROTO_ICMPV6)
            held.append(asking)
            asking.sendto(b"\\x80\\0\\0\\0\\0\\0\\0\\0" + bytes(1000), ("ff02::1", 0, 0, interface))
        elif kind == "answers":
            # Its own host answers a datagram that seems to come from a stranger, with the datagram.
            asking = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
            held.append(asking)
            asking.setsockopt(socket.IPPROTO_IPV6, 78, 1)  # IPV6_FREEBIND
            asking.bind(("2001:db8:44:%x::1" % (turn % 0xFFFF), 0))
            asking.sendto(bytes(1200), ("2001:db8:44::2", 9))
            time.sleep(0.001)
        elif kind == "resets":
            # Its own host resets a connection that seems to be of a neighbour, and looks for this one.
            asking = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
            held.append(asking)
            asking.setblocking(False)
            asking.setsockopt(socket.IPPROTO_IPV6, 78, 1)  # IPV6_FREEBIND
            asking.bind(("2001:db8:44::%x:%x" % (os.getpid() & 0xFFFF, 0x100 + turn % 0xF000), 0))
            asking.connect_ex(("2001:db8:44::2", 9))
        elif kind == "dhcp":
            asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            held.append(asking)
            asking.bind(("192.168.44.2", 68))
            for _ in range(100):
                asking.sendto(bytes(1400), ("192.168.44.1", 67))
        elif kind == "dhcpv6":
            asking = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
            held.append(asking)
            asking.bind(("2001:db8:44::2", 546))
            for _ in range(100):
                asking.sendto(bytes(1400), ("2001:db8:44::1", 547))
    except OSError:
        time.sleep(0.001)
    for each in held:
        each.close()
"""


def sent(host):
    shown = json.loads(host.client.run("ip", "-j", "-s", "link", "show", "lte0").stdout)
    return int(shown[0]["stats64"]["tx"]["bytes"])


def index_of(host):
    return next(network.index for network in host.networks() if network.name == "lte0")


async def attacked(host, kind):
    """Return the bytes that left while a user without privilege tried for some seconds."""
    before = sent(host)
    words = (sys.executable, "-c", ATTACK, kind, str(index_of(host)), str(SECONDS))
    with host.client.popen(*words) as attacker:
        while attacker.poll() is None:
            await asyncio.sleep(0.05)
    return sent(host) - before


@pytest.mark.parametrize("kind", KINDS)
def test_no_user_makes_the_kernel_send_much_over_a_barred_network(host, kind):
    host.client.sysctl("net.ipv4.ip_unprivileged_port_start", 0)
    host.client.sysctl("net.ipv4.ping_group_range", "0 65534")

    async def body():
        async with steering_of(host) as steering:
            await steering.barring.bar(["lte0"])
            assert await attacked(host, kind) < MOST_BYTES

    host.run(body)


@pytest.mark.parametrize("kind", ["mld", "answers"])
def test_the_second_wall_alone_lets_no_large_report_out(host, kind):
    """As in the moment after a flush; without the walls some megabytes leave."""

    async def body():
        with host.client.entered():
            wall = EgressWall()
        try:
            wall.put_up(["lte0"])
            assert await attacked(host, kind) < MOST_BYTES
        finally:
            wall.remove(())
            wall.close()

    host.run(body)


STRANGERS = """
import socket, sys
target, source, count = sys.argv[1:3], sys.argv[3], int(sys.argv[4])
family = socket.AF_INET6 if ":" in target[0] else socket.AF_INET
for number in range(count):
    sending = socket.socket(family, socket.SOCK_DGRAM)
    sending.setsockopt(socket.IPPROTO_IP, 15, 1)  # IP_FREEBIND
    sending.bind((source % (number // 250, number % 250), 0))
    sending.sendto(b"x", (target[0], int(target[1])))
    sending.close()
"""


@pytest.mark.parametrize(
    ("version", "net", "source"),
    [(4, "100.64.0.0/16", "100.64.%d.%d"), (6, "2001:db8:64::/48", "2001:db8:64::%x:%x")],
)
def test_strangers_datagrams_draw_few_answers_out(host, version, net, source):
    """Each was answered that its port is closed, by twice its bytes."""
    host.server.ip(f"-{version}", "route", "add", "local", net, "dev", "lo")
    gateway = "192.168.44.1" if version == 4 else "2001:db8:44::1"
    host.client.ip(f"-{version}", "route", "add", net, "via", gateway, "dev", "lte0")
    ours = host.address("lte0", version)

    async def body():
        async with steering_of(host) as steering:
            await steering.barring.bar(["lte0"])
            before = sent(host)
            words = (sys.executable, "-c", STRANGERS, ours, "9", source, "4000")
            done = await asyncio.to_thread(host.server.run, *words)
            assert done.returncode == 0
            await asyncio.sleep(0.2)
            assert sent(host) - before < 12_000

    host.run(body)
