"""What others have put into the host's routing."""

from ipaddress import ip_network

import pytest

from cedos.kernel.policy_routing import SeenRoute, SeenRule
from cedos.kernel.rtnetlink import Link
from cedos.steer.routing.tunnels import examine

WIFI = Link(3, "wlan0", "", 1, 0)
MODEM = Link(4, "wwan0", "", 65534, 0)
NETWORKS = {3, 4}
TUNNELS = [
    Link(9, "tun0", "tun", 65534, 0),
    Link(9, "wg0", "wireguard", 65534, 0),
    Link(9, "ppp0", "", 512, 0),
    Link(9, "ipsec0", "xfrm", 1, 0),
]


def route(table: int, prefix: str, index: int, metric: int = 0) -> SeenRoute:
    net = ip_network(prefix)
    return SeenRoute(net.version, table, net, index, metric, 3, None, b"")


def rule(preference: int, table: int, *, general: bool = True, ours: bool = False) -> SeenRule:
    return SeenRule(4, preference, table, general, ours, None)


OWN = [route(254, "0.0.0.0/0", 3, 100), route(254, "::/0", 3, 100)]


@pytest.mark.parametrize("tunnel", TUNNELS)
def test_a_better_default_into_a_tunnel(tunnel):
    found = examine([], [*OWN, route(254, "0.0.0.0/0", 9, 50)], [WIFI, tunnel], NETWORKS)
    assert found.tunnelled == {4: tunnel.name}
    assert tunnel.name in found.notes[0]
    worse = examine([], [*OWN, route(254, "0.0.0.0/0", 9, 500)], [WIFI, tunnel], NETWORKS)
    assert not worse.tunnelled


def test_two_halves_into_a_tunnel():
    halves = [route(254, "0.0.0.0/1", 9), route(254, "128.0.0.0/1", 9)]
    assert examine([], [*OWN, *halves], [WIFI, TUNNELS[0]], NETWORKS).tunnelled == {
        4: TUNNELS[0].name
    }
    assert not examine([], [*OWN, halves[0]], [WIFI, TUNNELS[0]], NETWORKS).tunnelled


def test_a_rule_for_everything_into_a_tunnels_table():
    routes = [*OWN, route(51820, "0.0.0.0/0", 9)]
    links = [WIFI, TUNNELS[1]]
    assert examine([rule(32765, 51820)], routes, links, NETWORKS).tunnelled == {4: TUNNELS[1].name}
    assert examine([rule(5270, 51820)], routes, links, NETWORKS).tunnelled == {4: TUNNELS[1].name}
    # For some packets only: a split tunnel.
    assert not examine([rule(5270, 51820, general=False)], routes, links, NETWORKS).tunnelled
    assert not examine([rule(5270, 99)], routes, links, NETWORKS).tunnelled


def test_a_modem_that_looks_like_a_tunnel_is_none():
    routes = [route(254, "0.0.0.0/0", 4, 50), *OWN]
    assert not examine([], routes, [WIFI, MODEM], NETWORKS).tunnelled


def test_rules_that_ours_would_overtake_are_noted():
    found = examine([rule(32500, 88, general=False)], OWN, [WIFI], NETWORKS)
    assert "32500" in found.notes[0]
    assert not examine([rule(100, 88, general=False)], OWN, [WIFI], NETWORKS).notes
    assert not examine([rule(32050, 88, ours=True)], OWN, [WIFI], NETWORKS).notes
