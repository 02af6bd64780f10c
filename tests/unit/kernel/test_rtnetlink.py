"""The parser of rtnetlink, for messages that no recorded kernel has sent."""

import socket
import struct
from ipaddress import ip_address, ip_interface

import pytest

from cedos.host.monitor.links import changes_networks
from cedos.kernel import rtnetlink
from cedos.kernel.netlink import attribute, message, messages
from cedos.kernel.policy_routing import DefaultRoute, parse_default_routes

NEWLINK, NEWADDR, NEWROUTE = 16, 20, 24
FAR4, FAR6 = ip_address("10.9.1.1"), ip_address("fd09::1")


def received(kind, body):
    (decoded,) = messages(message(kind, 2, 1, body))
    return decoded


def link(name, hardware_address):
    body = struct.pack("=BxHiII", 0, 1, 7, 0x10041, 0)
    if hardware_address:
        body += attribute(1, hardware_address)
    return received(NEWLINK, body + attribute(3, name + b"\0"))


@pytest.mark.parametrize("length", [0, 4, 6, 8, 16, 20])
def test_hardware_addresses_of_any_length(length):
    written = bytes(range(0xA0, 0xA0 + length))
    parsed = rtnetlink.parse_link(link(b"tunnel0", written))
    assert parsed == rtnetlink.Link(7, "tunnel0", "", 1, 0x10041, written, False)
    assert parsed.running
    assert parsed.carries
    assert not parsed.loopback


def address(attributes, *, flags=0, scope=0, length=24):
    body = struct.pack("=BBBBI", socket.AF_INET, length, flags, scope, 7)
    for kind, value in attributes.items():
        body += attribute(kind, value)
    return received(NEWADDR, body)


def test_the_own_address_and_only_a_usable_one():
    far, own, wide_flags = 1, 2, 8
    here, peer = bytes((10, 9, 1, 2)), bytes((10, 9, 1, 3))
    wanted = rtnetlink.LinkAddress(7, ip_interface("10.9.1.2/24"))
    assert rtnetlink.parse_address(address({far: peer, own: here})) == wanted
    assert rtnetlink.parse_address(address({far: here})) == wanted
    assert rtnetlink.parse_address(address({})) is None
    assert rtnetlink.parse_address(address({own: here}, length=33)) is None
    on_link = rtnetlink.parse_address(address({own: here}, scope=253))
    assert not on_link.wide
    assert rtnetlink.parse_address(address({own: here}, flags=0x40)) is None
    assert (
        rtnetlink.parse_address(address({own: here, wide_flags: struct.pack("=I", 0x240)})) is None
    )


def route(body, *, length=0, table=254, kind=1):
    head = struct.pack("=BBBBBBBBI", socket.AF_INET, length, 0, 0, table, 3, 0, kind, 0)
    return received(NEWROUTE, head + body)


def test_default_routes():
    out, metric = attribute(4, struct.pack("=i", 7)), attribute(6, struct.pack("=I", 600))
    via4 = attribute(5, FAR4.packed)
    via6 = attribute(18, struct.pack("=H", socket.AF_INET6) + FAR6.packed)
    assert parse_default_routes(route(out + metric)) == [DefaultRoute(7, 4, None, 600)]
    assert parse_default_routes(route(out + via4)) == [DefaultRoute(7, 4, FAR4, 0)]
    assert parse_default_routes(route(out + via6)) == [DefaultRoute(7, 4, FAR6, 0)]
    hops = b"".join(
        struct.pack("=HBBi", 8 + len(via), 0, 0, index) + via
        for index, via in ((7, via4), (8, via6), (9, b""))
    )
    assert parse_default_routes(route(attribute(9, hops) + metric)) == [
        DefaultRoute(7, 4, FAR4, 600),
        DefaultRoute(8, 4, FAR6, 600),
        DefaultRoute(9, 4, None, 600),
    ]


def test_routes_that_are_no_default_routes_of_the_main_table():
    out = attribute(4, struct.pack("=i", 7))
    far = attribute(15, struct.pack("=I", 1234))
    prefix = attribute(1, bytes((10, 0, 0, 0)))
    unreachable, others = route(b"", kind=7), route(out + far, table=0)
    for one in (unreachable, others, route(out, table=99), route(out + prefix, length=8)):
        assert parse_default_routes(one) == []
        assert not changes_networks(one)
    assert changes_networks(route(out))


def test_an_interface_is_called_what_the_kernel_calls_it():
    assert rtnetlink.interface_name(socket.if_nametoindex("lo")) == "lo"
    assert rtnetlink.interface_name(2**31 - 1) is None
