"""The wall on a barred interface: like the packet filter before it, it lets no program's packet out."""

import pytest
from kit.classic_bpf import run_bpf

from cedos.host.steer.kernel.egress_wall import DROP, PASS, program

ETHERNET, OTHER = 1, 519
ETHERTYPES = {4: 0x0800, 6: 0x86DD}


def ipv4(protocol, payload, options=0, fragment=0):
    head = bytes([0x45 + options, 0]) + bytes(4) + fragment.to_bytes(2, "big")
    return head + bytes([64, protocol]) + bytes(10 + 4 * options) + payload


def ipv6(protocol, payload):
    return bytes([0x60]) + bytes(5) + bytes([protocol, 64]) + bytes(32) + payload


def ports(source, destination):
    return source.to_bytes(2, "big") + destination.to_bytes(2, "big") + bytes(40)


def tcp(flags):
    return bytes(13) + bytes([flags]) + bytes(20)


def report(kind):
    """Behind the router alert."""
    return bytes([58, 0, 5, 2, 0, 0, 1, 0, kind]) + bytes(20)


PASSES = {
    "a reset": ipv4(6, tcp(0x14)),
    "a reset behind options": ipv4(6, tcp(0x14), options=3),
    "a reset, IPv6": ipv6(6, tcp(0x04)),
    "DHCP": ipv4(17, ports(68, 67)),
    "DHCPv6": ipv6(17, ports(546, 547)),
    "unreachable": ipv4(1, bytes([3]) + bytes(20)),
    "unreachable, IPv6": ipv6(58, bytes([1]) + bytes(20)),
    "a neighbour": ipv6(58, bytes([135]) + bytes(20)),
    "a listener": ipv6(0, report(143)),
}
DROPPED = {
    "a connection": ipv4(6, tcp(0x02)),
    "data": ipv4(6, tcp(0x18)),
    "data behind options": ipv4(6, tcp(0x18), options=3),
    "data, IPv6": ipv6(6, tcp(0x18)),
    "a datagram": ipv4(17, ports(4000, 443)),
    "DHCP's ports in IPv6": ipv6(17, ports(68, 67)),
    "DHCPv6's ports in IPv4": ipv4(17, ports(546, 547)),
    "a ping": ipv4(1, bytes([8]) + bytes(20)),
    "a ping, IPv6": ipv6(58, bytes([128]) + bytes(20)),
    "a ping behind the router alert": ipv6(0, report(128)),
    "TCP behind hop-by-hop options": ipv6(0, bytes([6, 0]) + bytes(60)),
    "a fragment's end": ipv4(6, tcp(0x04), fragment=0x2001),
    "GRE": ipv4(47, bytes(40)),
    "IPv6 in IPv4": ipv4(41, bytes(40)),
    "a fragment of IPv6": ipv6(44, bytes(40)),
}


def given(packet, link_type):
    version = packet[0] >> 4
    before = bytes(14) if link_type == ETHERNET else b""
    return run_bpf(program(link_type), before + packet, ethertype=ETHERTYPES[version])


@pytest.mark.parametrize("link_type", [ETHERNET, OTHER])
@pytest.mark.parametrize(
    ("ethertype", "verdict"),
    [
        (0x0806, PASS),
        (0x888E, PASS),
        (0x88C7, PASS),
        (0x88B4, PASS),
        (0x8864, DROP),
        (0x8100, DROP),
        (4, DROP),
    ],
)
def test_of_other_protocols_only_those_of_the_link_pass(ethertype, verdict, link_type):
    assert run_bpf(program(link_type), bytes(1500), ethertype=ethertype) == verdict


@pytest.mark.parametrize("link_type", [ETHERNET, OTHER])
@pytest.mark.parametrize("kind", ["unreachable", "unreachable, IPv6"])
def test_an_answer_with_a_large_datagram_is_dropped(kind, link_type):
    """Any user has the kernel answer their own datagram, under another host's address, with its bytes."""
    assert given(PASSES[kind] + bytes(1000), link_type) == DROP


@pytest.mark.parametrize("link_type", [ETHERNET, OTHER])
@pytest.mark.parametrize("what", PASSES)
def test_what_keeps_the_network_passes(what, link_type):
    assert given(PASSES[what], link_type) == PASS


@pytest.mark.parametrize("link_type", [ETHERNET, OTHER])
@pytest.mark.parametrize("what", DROPPED)
def test_what_is_a_programs_is_dropped(what, link_type):
    assert given(DROPPED[what], link_type) == DROP
