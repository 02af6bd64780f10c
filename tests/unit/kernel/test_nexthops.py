"""Next hops of routes: objects, groups of them, and what a router says of itself."""

import struct
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.kernel.netlink import NetlinkMessage, attribute
from cedos.kernel.policy_routing import (
    RTM_NEWNEXTHOP,
    DefaultRoute,
    hops_of,
    is_main_default,
    parse_default_routes,
    parse_nexthops,
    parse_route,
)
from cedos.kernel.rtnetlink import RTM_NEWROUTE

ONE, OTHER = ip_address("192.0.2.1"), ip_address("fe80::1")


def nexthop(number, index=0, gateway=b"", group=b""):
    payload = struct.pack("=BBBxI", 2, 0, 0, 0) + attribute(1, struct.pack("=I", number))
    payload += attribute(5, struct.pack("=I", index)) if index else b""
    payload += attribute(6, gateway) if gateway else b""
    payload += attribute(2, group) if group else b""
    return NetlinkMessage(RTM_NEWNEXTHOP, 0, 1, payload)


def route(*attributes, family=2, length=0, kind=1):
    header = struct.pack("=BBBBBBBBI", family, length, 0, 0, 254, 3, 0, kind, 0)
    return NetlinkMessage(RTM_NEWROUTE, 0, 1, header + b"".join(attributes))


OBJECTS = parse_nexthops(
    [
        nexthop(7, 3, ONE.packed),
        nexthop(8, 4, OTHER.packed),
        nexthop(9, group=struct.pack("=IBBHIBBH", 7, 0, 0, 0, 8, 0, 0, 0)),
        nexthop(10, group=struct.pack("=IBBH", 99, 0, 0, 0) + b"cut"),
        route(),
    ]
)


@pytest.mark.parametrize(
    ("number", "hops"),
    [(7, [(3, ONE)]), (8, [(4, OTHER)]), (9, [(3, ONE), (4, OTHER)]), (10, []), (11, [])],
)
def test_a_route_that_names_an_object_goes_where_that_leads(number, hops):
    assert list(hops_of(number, OBJECTS)) == hops
    named = route(attribute(30, struct.pack("=I", number)), attribute(6, struct.pack("=I", 50)))
    assert is_main_default(named)
    assert parse_default_routes(named, OBJECTS) == [
        DefaultRoute(index, 4, gateway, 50) for index, gateway in hops
    ]
    seen = parse_route(named, objects=OBJECTS)
    assert (seen.index, *seen.others) == (tuple(index for index, _ in hops) or (0,))


@pytest.mark.parametrize(("said", "rank"), [(1, 0), (0, 1), (3, 2), (2, 1)])
def test_a_routers_preference_ranks_it(said, rank):
    told = route(attribute(4, struct.pack("=I", 3)), attribute(20, bytes([said])), family=10)
    assert [each.rank for each in parse_default_routes(told)] == [(0, rank)]
    seen = parse_route(told)
    assert seen.rank == (0, rank)


@pytest.mark.parametrize("kind", [6, 7, 8])
def test_a_route_that_refuses_leads_nowhere(kind):
    refusing = route(attribute(4, struct.pack("=I", 1)), kind=kind)
    assert parse_route(refusing) is None
    seen = parse_route(refusing, (kind,))
    assert seen.index == 0
    assert not is_main_default(refusing)


@given(st.binary(max_size=80))
def test_any_bytes_are_answered(payload):
    message = NetlinkMessage(RTM_NEWNEXTHOP, 0, 1, payload)
    for number in parse_nexthops([message]):
        list(hops_of(number, OBJECTS))
