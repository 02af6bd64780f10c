"""Routing that others have set up, and the default that stays the host's own."""

from dataclasses import replace
from ipaddress import ip_interface, ip_network

import pytest

from cedos.controller.events import HostDefault
from cedos.host.steer.default_route import examine
from cedos.kernel.policy_routing import SeenRoute, SeenRule
from cedos.kernel.rtnetlink import Link
from cedos.model import Network, NetworkKind

RUNS, DOWN = 0x10041, 0x1001
WIFI = Link(3, "wlan0", "", 1, RUNS)
MODEM = Link(4, "wwan0", "", 65534, RUNS)
BRIDGE = Link(7, "br0", "bridge", 1, RUNS)
NETWORKS = [
    Network("wlan0", "wlan0", 3, NetworkKind.WIFI, False, (ip_interface("10.0.0.2/24"),)),
    Network("wwan0", "wwan0", 4, NetworkKind.CELLULAR, True, (ip_interface("10.1.0.2/24"),)),
]
TUNNELS = [
    Link(9, "tun0", "tun", 65534, RUNS),
    Link(9, "wg0", "wireguard", 65534, RUNS),
    Link(9, "ppp0", "", 512, RUNS),
    Link(9, "ipsec0", "xfrm", 1, RUNS),
    Link(9, "kept", "tun", 65534, DOWN),
    Link(9, "killswitch", "dummy", 1, RUNS),
]


def route(table, prefix, index, metric=0, **more):
    net = ip_network(prefix)
    seen = SeenRoute(net.version, table, net, index, metric, 3, None, b"")
    return replace(seen, **more)


def rule(preference, table, *, general=True, ours=False, **more):
    return replace(SeenRule(4, preference, table, general, ours, None), **more)


OWN = [route(254, "0.0.0.0/0", 3, 100), route(254, "::/0", 3, 100)]
LINKS = [WIFI, MODEM, BRIDGE, TUNNELS[0]]


def stays(*routes, rules=(), links=LINKS):
    """Return by IP version the interface of the default that stays the host's."""
    found = examine(rules, [*OWN, *routes], links, NETWORKS)
    return {version: each.interface for version, each in found.defaults.items()}


@pytest.mark.parametrize("tunnel", TUNNELS)
def test_a_better_default_into_a_tunnel(tunnel):
    links = [WIFI, tunnel]
    found = examine([], [*OWN, route(254, "0.0.0.0/0", 9, 50)], links, NETWORKS)
    assert found.defaults[4].vpn
    assert found.defaults.keys() == {4}
    assert f"a VPN ({tunnel.name}) carries all IPv4" in found.notes[0]
    assert stays(route(254, "0.0.0.0/0", 9, 500), links=links) == {}


@pytest.mark.parametrize(
    "link",
    [
        BRIDGE,
        Link(7, "eth5", "", 1, RUNS),  # with `ignore = true`
        Link(7, "blue", "vrf", 1, RUNS),
        Link(7, "flannel.1", "vxlan", 1, RUNS),
    ],
)
def test_a_better_default_over_what_is_no_network_stays(link):
    routes = [*OWN, route(254, "0.0.0.0/0", 7, 50), route(254, "::/0", 7, 500)]
    found = examine([], routes, [WIFI, MODEM, link], NETWORKS)
    what = link.kind or "no network of cedos"
    assert found.defaults == {4: HostDefault(link.name, vpn=False, what=what)}
    assert f"the host's own IPv4 default is {link.name}" in found.notes[0]


def test_a_default_over_a_link_that_is_down_is_none():
    down = replace(BRIDGE, flags=DOWN)
    assert stays(route(254, "0.0.0.0/0", 7, 50), links=[WIFI, MODEM, down]) == {}


def test_a_default_that_refuses_stays():
    assert stays(route(254, "0.0.0.0/0", 0, 50)) == {4: ""}
    assert stays(route(254, "0.0.0.0/0", 0, 500)) == {}


def test_a_network_that_borrows_its_address_is_left_to_the_host():
    borrowing = replace(NETWORKS[0], up=False, addresses=())
    found = examine([], OWN, LINKS, [borrowing, NETWORKS[1]])
    assert found.defaults.keys() == {4}
    assert not examine([], OWN, LINKS, [replace(borrowing, carrier=False)]).defaults


def test_two_halves_into_a_tunnel():
    halves = [route(254, "0.0.0.0/1", 9), route(254, "128.0.0.0/1", 9)]
    assert stays(*halves) == {4: "tun0"}
    assert stays(halves[0]) == {}


def test_all_but_private_networks_is_everything():
    prefixes = "0.0.0.0/5 8.0.0.0/7 11.0.0.0/8 12.0.0.0/6 16.0.0.0/4 32.0.0.0/3 64.0.0.0/2"
    more = "128.0.0.0/3 160.0.0.0/5 168.0.0.0/6 173.0.0.0/8 174.0.0.0/7 176.0.0.0/4 193.0.0.0/8"
    rest = "194.0.0.0/7 196.0.0.0/6 200.0.0.0/5 208.0.0.0/4"
    parts = [route(254, each, 9) for each in f"{prefixes} {more} {rest}".split()]
    assert stays(*parts) == {4: "tun0"}
    assert stays(*parts[:7]) == {}
    six = [route(254, each, 9) for each in ("2000::/4", "3000::/4", "fc00::/7")]
    assert stays(*six) == {6: "tun0"}
    assert stays(six[0], six[2]) == {}


def test_halves_over_a_network_are_overruled():
    halves = [route(254, "0.0.0.0/1", 3), route(254, "128.0.0.0/1", 3)]
    assert stays(*halves) == {}
    split = route(254, "10.0.0.0/8", 9)
    assert examine([], [*OWN, *halves, split], LINKS, NETWORKS).overruled == {4: 1}
    assert examine([], [*OWN, halves[0], split], LINKS, NETWORKS).overruled == {}


def test_a_rule_for_everything_into_a_tunnels_table():
    into = route(51820, "0.0.0.0/0", 9)
    assert stays(into, rules=(rule(32765, 51820),)) == {4: "tun0"}
    assert stays(into, rules=(rule(5270, 51820),)) == {4: "tun0"}
    # For some packets only: a split tunnel.
    assert stays(into, rules=(rule(5270, 51820, general=False),)) == {}
    assert stays(into, rules=(rule(5270, 99),)) == {}
    # As wg-quick has it: the main table's default is not asked for at first.
    quick = (rule(32764, 254, suppresses=True), rule(32765, 51820))
    assert stays(into, rules=quick) == {4: "tun0"}


def test_what_a_rule_before_ours_leads_over_a_network_stays():
    table = route(100, "0.0.0.0/0", 4)
    assert stays(table, rules=(rule(5000, 100),)) == {4: "wwan0"}
    assert stays(table, rules=(rule(32200, 100),)) == {}


@pytest.mark.parametrize("index", [4, 7])
def test_what_is_asked_before_our_rules_keeps_an_ip_version_to_itself(index):
    """`cedos rule` said nothing of it, though a user's rule cannot hold there."""
    table = route(100, "0.0.0.0/0", index)
    found = examine([rule(5000, 100)], [*OWN, table], LINKS, NETWORKS)
    assert found.defaults[4].first
    late = examine([], [*OWN, route(254, "0.0.0.0/0", 7, 50)], LINKS, NETWORKS)
    assert not late.defaults[4].first


def test_rules_that_ours_would_overtake_are_noted():
    found = examine([rule(32500, 88, general=False)], OWN, [WIFI], NETWORKS)
    assert "32500" in found.notes[0]
    assert not examine([rule(100, 88, general=False)], OWN, [WIFI], NETWORKS).notes
    assert not examine([rule(32050, 88, ours=True)], OWN, [WIFI], NETWORKS).notes
