"""Ruled destinations that skip the main table, and parts of them where its routes are asked first."""

import time
from dataclasses import replace
from ipaddress import ip_address, ip_interface, ip_network

import pytest

from cedos.controller.commands import NOWHERE
from cedos.host.privileged.part import _checked_routes
from cedos.host.steer.routing_plan import Destination
from cedos.host.steer.routing_rules import Routing, copy_specific_routes
from cedos.kernel.policy_routing import MAIN_TABLE, RTN_UNREACHABLE, SeenRoute

SERVER = ip_network("198.51.100.1/32")
TUNNEL = 9


@pytest.fixture
def routing(world):
    world.kernel.add_link(TUNNEL, "tun0", "tun")
    made = Routing(world.kernel)
    made.networks_changed([world.wlan0, world.lte0])
    made.set_default("wlan0")
    return made


def rule(routing, prefix, name, port=None):
    routing.set_destinations({Destination(ip_network(prefix), port, ruled=True): name})


def test_no_route_over_another_network_draws_what_is_ruled(world, routing):
    rule(routing, SERVER, "lte0")
    for prefix in ("198.51.100.1/32", "198.51.100.0/24", "128.0.0.0/1"):
        world.kernel.add_main_route(prefix, world.wlan0.index)
        assert world.carrier() == "lte0"
        assert world.carrier(local="192.168.44.2") == "lte0"
        assert world.carrier(local="192.168.43.2") == "wlan0"
        # It forwards for containers as the host has it.
        assert world.carrier(local="172.17.0.2", forwarded=True) == "wlan0"
    rule(routing, SERVER, NOWHERE)
    assert world.carrier() is None


def test_the_ruled_networks_own_routes_and_a_vpns_go_first(world, routing):
    world.kernel.add_main_route("198.51.100.0/24", world.lte0.index)
    rule(routing, SERVER, "lte0")
    way = world.kernel.way(SERVER[0])
    assert (way.index, way.destination.prefixlen) == (world.lte0.index, 24)
    world.kernel.add_main_route("198.51.100.0/25", TUNNEL)
    routing.reconcile()
    assert world.carrier() == "tun0"
    world.kernel.add_main_route("198.51.100.0/26", world.wlan0.index)
    routing.reconcile()
    assert world.carrier() == "lte0"


def test_beside_a_vpn_or_the_ruled_networks_own_route_none_draws_in_the_moment_after_it_came(
    world, routing
):
    """Main was asked first there, and so for whatever came or stayed in it, until the daemon followed."""
    kernel, (wlan0, lte0) = world.kernel, (world.wlan0.index, world.lte0.index)
    kernel.add_main_route("198.51.100.0/24", lte0, metric=50)
    kernel.add_main_route("10.0.0.0/8", TUNNEL, metric=50)
    for prefix in ("198.51.100.0/24", "10.0.0.0/8"):
        kernel.add_main_route(prefix, wlan0)
    rule(routing, "0.0.0.0/0", "lte0", 443)
    rule(routing, SERVER, "lte0")
    ways = {"198.51.100.1": "lte0", "198.51.100.7": "lte0", "10.1.1.1": "tun0"}
    assert {each: world.carrier(remote=each, port=443) for each in ways} == ways
    for prefix in ("198.51.100.1/32", "198.51.100.7/32", "10.1.1.1/32"):
        kernel.add_main_route(prefix, wlan0)
    assert {each: world.carrier(remote=each, port=443) for each in ways} == ways
    # With its interface all routes go.
    kernel.all_routes = [each for each in kernel.all_routes if each.index != TUNNEL]
    assert world.carrier(remote="10.1.1.1", port=443) == "lte0"
    # Wi-Fi comes again: what is not known to be a network yet is no VPN.
    routing.networks_changed([world.lte0])
    assert world.carrier(remote="198.51.100.7", port=443) == "lte0"


def test_this_hosts_own_refusals_hold_within_a_rule(world, routing):
    world.kernel.add_main_route("198.51.100.0/24", 0)
    rule(routing, "0.0.0.0/0", "lte0", 443)
    refused = world.kernel.way(ip_address("198.51.100.7"), port=443)
    assert (refused.index, refused.type) == (0, RTN_UNREACHABLE)


def test_a_rule_for_a_port_leaves_subnets_and_vpns_within_it_alone(world, routing):
    for prefix, index in (
        ("10.0.0.0/8", TUNNEL),
        ("10.1.0.0/16", world.wlan0.index),
        ("10.1.1.0/24", TUNNEL),
        ("198.51.0.0/16", world.wlan0.index),
    ):
        world.kernel.add_main_route(prefix, index)
    rule(routing, "0.0.0.0/0", "lte0", 443)
    ways = {
        "10.2.0.1": "tun0", "10.1.2.1": "lte0", "10.1.1.1": "tun0", "198.51.100.1": "lte0",
        "192.168.43.7": "wlan0", "192.168.44.7": "lte0",
    }  # fmt: skip
    assert {each: world.carrier(remote=each, port=443) for each in ways} == ways
    assert world.carrier(remote="198.51.100.1", port=80) == "wlan0"


def test_a_subnet_is_no_reason_to_keep_a_ruled_host(world, routing):
    """A network may give this host an address beside any server's."""
    rule(routing, "192.168.43.7/32", "lte0")
    assert world.carrier(remote="192.168.43.7") == "lte0"
    assert world.carrier(remote="192.168.43.8") == "wlan0"


@pytest.mark.parametrize("length", [16, 24, 25])
def test_a_part_of_another_networks_subnet_is_nobodys_own(world, routing, length):
    """LTE's lease in Wi-Fi's own subnet drew all that was ruled there."""
    lease = ip_interface(f"192.168.43.77/{length}")
    lte0 = replace(world.lte0, addresses=(*world.lte0.addresses, lease))
    world.kernel.add_main_route(str(lease.network), lte0.index)
    rule(routing, "0.0.0.0/0", "wlan0", 445)
    routing.networks_changed([world.wlan0, lte0])
    assert world.carrier(remote="192.168.43.7", port=445) == "wlan0"
    assert world.carrier(remote="192.168.44.7", port=445) == "lte0"
    rule(routing, "0.0.0.0/0", NOWHERE, 445)
    assert world.carrier(remote="192.168.43.7", port=445) is None


@pytest.mark.parametrize("port", [None, 445])
def test_a_rule_equal_to_a_subnet_holds_beside_an_older_wider_one(world, routing, port):
    """The look-up of the subnet had the same preference, and was older."""
    for length in (*range(8, 24), *range(25, 32)):  # of however many lengths there are rules
        prefix = ip_network(f"192.168.44.{0 if length < 24 else 128}/{length}", strict=False)
        rule(routing, prefix, "wlan0")
    assert world.carrier(remote="192.168.44.7", port=445) == "lte0"
    rule(routing, "192.168.44.0/24", "wlan0", port)
    assert world.carrier(remote="192.168.44.7", port=445) == "wlan0"
    rule(routing, "192.168.44.0/24", None, port)
    assert world.carrier(remote="192.168.44.7", port=445) == "lte0"


def test_hundreds_of_routes_cost_little_and_make_no_rules(world, routing):
    """Of each interface 256 are read."""
    for number in range(512):
        prefix = f"10.{number // 250}.{number % 250}.0/24"
        world.kernel.add_main_route(prefix, TUNNEL if number % 2 else world.wlan0.index)
    began = time.process_time()
    for number in range(256):
        routing.destinations[Destination(ip_network(f"203.0.113.{number}/32"), ruled=True)] = "lte0"
    rule(routing, "0.0.0.0/0", "lte0", 443)
    assert time.process_time() - began < 2
    assert len(world.kernel.own) < 800
    assert world.carrier(port=443) == world.carrier(remote="203.0.113.9") == "lte0"


def sources(world, **changed):
    """The addresses from which a rule leads one destination over LTE, whose properties changed."""
    routing = Routing(world.kernel)
    routing.networks_changed([world.wlan0, replace(world.lte0, **changed)])
    rule(routing, "2001:db8:100::1/128", "lte0")
    return {str(each.source) for each in world.kernel.own if each.finds_source}


def test_addresses_in_prefixes_that_a_router_announces_do_not_multiply_the_rules(world):
    """Any neighbour may announce 16: a thousand ruled hosts made 17,000 rules, for each connection."""
    announced = [f"2001:db8:{number:x}:1::7/64" for number in range(15)]
    addresses = tuple(map(ip_interface, [*announced, "fe80::7/64"]))
    four = {f"2001:db8:{number}:1::7/128" for number in range(4)}
    assert sources(world, addresses=(*addresses[:4], addresses[-1])) == four
    # Of more, any one that the kernel finds at its interface.
    assert sources(world, addresses=addresses) == {"::/1", "8000::/1"}


def test_of_a_prefix_that_two_networks_may_share_the_own_addresses_are_led(world):
    """Lose the ruled one's: the kernel gives a socket the other's, and that leads over the other one."""
    own = ("2001:db8:45::2/64", "2001:db8:45::7/64", "2001:db8:44::2/64", "fe80::44/64")
    found = {"2001:db8:45::2/128", "2001:db8:45::7/128", "2001:db8:44::2/128"}
    assert sources(world, addresses=tuple(map(ip_interface, own))) == found


def test_the_routes_of_an_interface_never_seen_wait_until_the_daemon_is_told(world, routing):
    """They counted as a VPN's or containers'. If it is told of as no network, cedos is to ignore it."""
    networks = [world.wlan0, world.lte0]
    ways = {"198.51.100.1": "usb0", "198.51.100.2": "docker0", "198.51.100.3": "veth1"}
    rule(routing, "198.51.100.0/24", "lte0")
    for index, (kind, (remote, name)) in enumerate(
        zip(("", "bridge", "veth"), ways.items(), strict=True), 20
    ):
        world.kernel.add_link(index, name, kind)
        world.kernel.add_main_route(remote, index)
    routing.reconcile()
    found = {each: world.carrier(remote=each) for each in ways}
    assert found == ways | {"198.51.100.1": "lte0"}
    routing.networks_changed(networks)
    assert {each: world.carrier(remote=each) for each in ways} == ways


def test_a_copied_route_has_no_source_of_loopback_which_the_privileged_part_refuses(world):
    seen = SeenRoute(
        4, MAIN_TABLE, ip_network("10.77.0.0/24"), TUNNEL, 0, 3, None, b"", ip_address("127.0.0.1")
    )
    (route,) = copy_specific_routes([world.wlan0], [seen], [4])
    assert _checked_routes((route,)) == (replace(route, source=None),)
