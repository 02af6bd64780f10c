"""Guests with an interface of their own upon a barred one (macvlan): only the second wall sees them.

Containers and guests have raw sockets there.
"""

import asyncio
import json
import socket
import struct
from contextlib import suppress

import pytest
from kit.steered import steering_of

COUNT = 300
MOST_BYTES = 6_000


def left(host):
    shown = json.loads(host.client.run("ip", "-j", "-s", "link", "show", "lte0").stdout)
    return int(shown[0]["stats64"]["tx"]["bytes"])


def ipv4(protocol, payload):
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(payload), 1, 0, 64, protocol, 0)
    return head + socket.inet_aton("192.168.44.9") + socket.inet_aton("198.51.100.1") + payload


def ipv6(next_header, payload):
    head = struct.pack("!IHBB", 6 << 28, len(payload), next_header, 64)
    source = socket.inet_pton(socket.AF_INET6, "2001:db8:44::9")
    return head + source + socket.inet_pton(socket.AF_INET6, "2001:db8:100::1") + payload


def udp(source, to, payload):
    return struct.pack("!HHHH", source, to, 8 + len(payload), 0) + payload


DATA = bytes(1300)
KINDS = {
    "ICMP unreachable": (0x0800, ipv4(1, b"\x03\x01\0\0\0\0\0\0" + DATA)),
    "DHCP": (0x0800, ipv4(17, udp(68, 67, DATA))),
    "reset": (0x0800, ipv4(6, struct.pack("!HHIIBBHHH", 9, 80, 1, 1, 5 << 4, 4, 0, 0, 0) + DATA)),
    "ICMPv6 unreachable": (0x86DD, ipv6(58, b"\x01\0\0\0\0\0\0\0" + DATA)),
    "neighbour": (0x86DD, ipv6(58, b"\x87\0\0\0\0\0\0\0" + DATA)),
    "DHCPv6": (0x86DD, ipv6(17, udp(546, 547, DATA))),
    "ARP": (0x0806, DATA),
    # Also of a program without privilege: a socket of PPPoE asks for none.
    "PPPoE": (0x8864, b"\x11\0\0\x01" + struct.pack("!H", len(DATA)) + DATA),
}


def is_answered(host, version):
    """Ask a server of addresses behind lte0, whose own address has to be found first."""
    ours, theirs, near = (68, 67, "192.168.44.1") if version == 4 else (546, 547, "2001:db8:44::1")
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    with host.server.entered():
        serving = socket.socket(family, socket.SOCK_DGRAM)
        serving.bind((near, theirs))
    with host.client.entered():
        asking = socket.socket(family, socket.SOCK_DGRAM)
        asking.bind((host.address("lte0", version), ours))
    with serving, asking:
        serving.settimeout(5)
        asking.sendto(b"an address?", (near, theirs))
        return serving.recv(100) == b"an address?"


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_a_guest_upon_the_interface_leaves(host, make_namespace, kind):
    guest = make_namespace("guest")
    words = ("link", "add", "mv0", "link", "lte0", "type", "macvlan", "mode", "bridge")
    host.client.ip(*words)
    host.client.ip("link", "set", "mv0", "netns", guest.name)
    guest.ip("link", "set", "mv0", "up")
    protocol, packet = KINDS[kind]
    version = 4 if protocol == 0x0800 else 6
    there = json.loads(host.server.run("ip", "-j", "link", "show", "lte0").stdout)[0]["address"]
    here = json.loads(guest.run("ip", "-j", "link", "show", "mv0").stdout)[0]["address"]
    frame = b"".join(bytes.fromhex(each.replace(":", "")) for each in (there, here))
    frame += struct.pack("!H", protocol) + packet
    with guest.entered():
        raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        raw.bind(("mv0", 0))
    host.sockets.append(raw)

    async def body():
        async with steering_of(host) as steering:
            before = left(host)
            for _ in range(COUNT):
                raw.send(frame)
            await asyncio.sleep(0.1)
            assert left(host) - before > COUNT * len(DATA), "nothing bars it yet"
            await steering.barring.bar(["lte0"])
            before = left(host)
            for size in (len(frame), 60):
                for _ in range(COUNT):
                    with suppress(OSError):  # ENOBUFS: it was dropped
                        raw.send(frame[:size])
            await asyncio.sleep(0.1)
            assert left(host) - before < MOST_BYTES
            # The host's own goes on, also under another address.
            own = f"02:00:00:00:00:{version:02x}"
            host.client.ip("link", "set", "lte0", "address", own)
            await steering.networks_changed(host.networks())
            host.client.ip(f"-{version}", "neigh", "flush", "dev", "lte0")
            assert await asyncio.to_thread(is_answered, host, version)

    host.run(body)
