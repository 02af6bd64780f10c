"""The kernel's filter of connection tracking events: those of strangers' segments do not pass."""

import asyncio
import contextlib
import socket

import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6

from cedos.kernel import conntrack
from cedos.kernel.netlink import NETLINK_NETFILTER, NetlinkListener, messages

NEAR, FAR = {4: "10.9.1.2", 6: "fd09::2"}, {4: "10.9.1.1", 6: "fd09::1"}
SENT = (
    TCP(dport=7001, flags="S"),
    TCP(dport=7002, flags="PA"),
    TCP(dport=7003, flags="A"),
    UDP(dport=7004),
)


@pytest.mark.parametrize("version", [4, 6])
def test_segments_of_no_connection_wake_nobody(make_namespace, version):
    near, far = make_namespace("near"), make_namespace("far")
    near.ip("link", "add", "wlan0", "type", "veth", "peer", "far0", "netns", far.name)
    for side, name, addresses in ((near, "wlan0", NEAR), (far, "far0", FAR)):
        side.ip("address", "add", f"{addresses[4]}/24", "dev", name)
        side.ip("address", "add", f"{addresses[6]}/64", "dev", name, "nodad")
        side.ip("link", "set", name, "up")
    for program in ("iptables", "ip6tables"):
        near.run(program, "-A", "INPUT", "-m", "conntrack", "--ctstate", "INVALID")

    async def told(only):
        found = set()

        def on_datagram(datagram):
            for message in messages(datagram):
                tracked = conntrack.parse(message)
                found.add((tracked.original.destination_port, tracked.ended))

        with near.entered():
            listener = NetlinkListener(
                NETLINK_NETFILTER, conntrack.GROUPS, on_datagram, lambda: None, only=only
            )
        head = IP if version == 4 else IPv6
        with far.entered():
            wire = socket.socket(
                socket.AF_INET if version == 4 else socket.AF_INET6,
                socket.SOCK_RAW,
                socket.IPPROTO_RAW,
            )
        with wire, contextlib.closing(listener):
            for transport in SENT:
                packet = head(src=FAR[version], dst=NEAR[version]) / transport
                wire.sendto(bytes(packet), (NEAR[version], 0))
            async with asyncio.timeout(10):
                while (7004, False) not in found or (7003, True) not in found:
                    await asyncio.sleep(0.02)
        return found

    all_of_it = {(port, False) for port in (7001, 7002, 7003, 7004)}
    assert asyncio.run(told(b"")) >= all_of_it
    near.run("conntrack", "-F")
    seen = asyncio.run(told(conntrack.program()))
    assert {port for port, ended in seen if not ended} == {7001, 7004}
    assert {(7002, True), (7003, True)} <= seen
