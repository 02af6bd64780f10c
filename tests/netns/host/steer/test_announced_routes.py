"""Routes that a network announces (DHCP's option 121, RFC 4191) draw nothing past a user's rule."""

import errno
import os
from dataclasses import replace
from ipaddress import ip_interface

import pytest
from kit.namespaces import tun
from kit.steered import steered

from cedos.host.steer.steering import Steering

both = pytest.mark.parametrize("version", [4, 6])
EXACT = {4: ("198.51.100.1/32",), 6: ("2001:db8:100::1/128",)}
AROUND = {4: ("198.51.100.0/24",), 6: ("2001:db8:100::/64",)}
HALVES = {4: ("0.0.0.0/1", "128.0.0.0/1"), 6: ("2000::/4", "3000::/4")}
# Addresses of the Internet: those above are for documentation, and count as private.
PUBLIC = {4: "9.8.0.0/16", 6: "2a00:1450::/32"}
GIVEN = {4: "9.8.8.77/24", 6: "2a00:1450:4001::77/64"}
EVERYWHERE = {4: "0.0.0.0/0", 6: "::/0"}
SERVER = {4: "198.51.100.1", 6: "2001:db8:100::1"}
ROUTER = {4: "192.168.43.1", 6: "2001:db8:43::1"}


def announce(host, version, prefixes):
    for prefix in prefixes:
        way = ("via", ROUTER[version], "dev", "wlan0", "proto", "dhcp")
        host.client.ip(f"-{version}", "route", "add", prefix, *way)


def device(host, version, *words):
    found = host.client.ip(f"-{version}", "route", "get", *words).split()
    return found[found.index("dev") + 1]


@both
@pytest.mark.parametrize("prefixes", [EXACT, AROUND, HALVES])
@pytest.mark.parametrize("rule", [EXACT, AROUND])
@pytest.mark.parametrize("first", [True, False])
def test_an_announced_route_draws_no_ruled_destination(host, version, prefixes, rule, first):
    places = [(place, None) for place in rule[version]]

    async def body():
        async with Steering(host.directory) as steering:
            if first:
                announce(host, version, prefixes[version])
            await steering.networks_changed(host.networks())
            steering.set_default("wlan0")
            steering.set_ruled(dict.fromkeys(places, "lte0"))
            if not first:
                announce(host, version, prefixes[version])
            # At once, before anything could have followed the new routes.
            mine = host.address("lte0", version)
            assert {host.seen_tcp(version), host.seen_udp(version)} == {mine}
            # Bound sockets go where they are bound.
            bound = host.address("wlan0", version)
            assert host.seen_tcp(version, bind=bound) == bound
            steering.set_ruled(dict.fromkeys(places, ""))
            with pytest.raises(OSError, match=r"unreachable|refused"):
                host.seen_tcp(version)
            steering.set_ruled(dict.fromkeys(places))
            assert host.seen_tcp(version) == host.address("wlan0", version)

    host.run(body)


@both
@pytest.mark.parametrize("prefixes", [EXACT, AROUND, HALVES])
@steered(default="wlan0")
async def test_nor_a_ruled_port_and_hosts_on_the_link_stay_reachable(
    host, steering, version, prefixes
):
    # With strict filters the kernel drops answers where a narrow route leads elsewhere: it sees no port.
    for interface in ("all", "wlan0", "lte0"):
        host.client.sysctl(f"net.ipv4.conf.{interface}.rp_filter", 2)
    steering.set_ruled({(EVERYWHERE[version], 8000): "lte0"})
    announce(host, version, prefixes[version])
    assert host.seen_tcp(version) == host.address("lte0", version)
    # Beside the rule a network has its own subnet.
    assert host.seen_tcp(version, to=ROUTER[version]) == host.address("wlan0", version)
    if version == 6:
        assert (
            device(host, 6, "fe80::1", "oif", "wlan0", "ipproto", "tcp", "dport", "8000") == "wlan0"
        )
        found = host.client.ip("-6", "route", "get", "fe80::1", "oif", "wlan0")
        assert "via" not in found


@both
@steered(default="lte0")
async def test_halves_of_the_internet_do_not_overrule_the_default(host, steering, version):
    tunnel = tun(host.client, "vpn0")
    host.client.ip("link", "set", "vpn0", "up")
    try:
        inside = {4: "10.0.0.0/8", 6: "fd00::/8"}[version]
        host.client.ip(f"-{version}", "route", "add", inside, "dev", "vpn0")
        announce(host, version, HALVES[version])
        mine = host.address("lte0", version)
        await host.until(lambda: host.seen_tcp(version) == mine)
        assert host.seen_udp(version) == mine
        assert not steering.problems
        assert device(host, version, {4: "10.1.2.3", 6: "fd00::1"}[version]) == "vpn0"
        assert device(host, version, ROUTER[version]) == "wlan0"
    finally:
        os.close(tunnel)


@both
@steered(default="wlan0", unchanged=True)
async def test_a_vpn_carries_what_is_ruled_whatever_a_network_announces(host, steering, version):
    steering.set_ruled({(SERVER[version], None): "lte0", (EVERYWHERE[version], 8000): "lte0"})
    asked = (SERVER[version], "ipproto", "tcp", "dport", "8000")
    assert device(host, version, *asked) == "lte0"
    tunnel = tun(host.client, "vpn0")
    host.client.ip("link", "set", "vpn0", "up")
    try:
        host.client.ip(f"-{version}", "route", "add", AROUND[version][0], "dev", "vpn0")
        await host.until(lambda: device(host, version, *asked) == "vpn0")
        announce(host, version, HALVES[version])
        await host.until(
            lambda: device(host, version, "192.0.2.1" if version == 4 else "2001:db8::") == "wlan0"
        )
        assert device(host, version, *asked) == "vpn0"
        # The closest route is the network's: it draws nothing out of the VPN to itself.
        announce(host, version, EXACT[version])
        await host.until(lambda: device(host, version, *asked) == "lte0")
    finally:
        os.close(tunnel)
    for prefix in (*HALVES[version], *EXACT[version]):
        host.client.ip(f"-{version}", "route", "del", prefix, "dev", "wlan0")


@both
@pytest.mark.parametrize("rule", [PUBLIC, EVERYWHERE])
@steered(default="wlan0")
async def test_an_address_that_a_network_gives_draws_no_ruled_destination(
    host, steering, version, rule
):
    """By DHCP, or one router's advertisement, a Wi-Fi had the servers of that subnet to itself."""
    port = 8000 if rule is EVERYWHERE else None
    steering.set_ruled({(rule[version], port): "lte0"})
    given = ip_interface(GIVEN[version])
    host.client.ip("address", "add", str(given), "dev", "wlan0", *(["nodad"] * (version == 6)))
    wlan0, lte0 = host.networks()
    await steering.networks_changed([replace(wlan0, addresses=(*wlan0.addresses, given)), lte0])
    server = str(given.ip + 1)
    assert device(host, version, server, "ipproto", "tcp", "dport", "8000") == "lte0"
    if port is not None:
        assert device(host, version, server, "ipproto", "tcp", "dport", "80") == "wlan0"


@pytest.mark.parametrize("keeps", [True, False])
@steered(default="wlan0")
async def test_a_network_that_lost_its_address_leads_nothing_ruled_elsewhere(host, steering, keeps):
    """The kernel took Wi-Fi's address for what was ruled, and so led it over Wi-Fi.

    With an address of the link alone the route stays, with a source that is no more: the kernel then
    answers that the network is unreachable. Else the route goes with the address, and the kernel takes
    none with such a source.
    """
    steering.set_ruled({(SERVER[4], None): "lte0"})
    if keeps:
        host.client.ip("address", "add", "169.254.7.7/16", "dev", "lte0", "scope", "link")
    host.client.ip(*f"address del {host.address('lte0', 4)}/24 dev lte0".split())
    if not keeps:
        await steering.networks_changed(host.networks())  # as they were an instant ago
    with pytest.raises(OSError, match="unreachable") as refused:
        host.seen_tcp(4)
    assert refused.value.errno == errno.ENETUNREACH
    host.client.ip(*f"address add {host.address('lte0', 4)}/24 dev lte0".split())
    await steering.networks_changed(host.networks())
    assert host.seen_tcp(4) == host.address("lte0", 4)


@pytest.mark.parametrize("rule", [EXACT, EVERYWHERE])
@steered(default="wlan0")
async def test_nor_does_one_that_lost_its_addresses_of_ipv6(host, steering, rule):
    """The first packet left by LTE from Wi-Fi's address, the repeated one and all others by Wi-Fi."""
    steering.set_ruled({(rule[6][0] if rule is EXACT else rule[6], 8000): "lte0"})
    own = host.address("lte0", 6)
    assert host.seen_tcp(6) == own
    # Of one that has come just now the daemon has to know: it might be Wi-Fi's.
    host.client.ip("address", "del", f"{own}/64", "dev", "lte0")
    for name in ("lte0", "wlan0"):
        host.client.ip("address", "add", "2001:db8:44::7/64", "dev", name, "nodad")
        with pytest.raises(OSError, match=r"unreachable|refused"):
            host.seen_tcp(6)
        if name == "lte0":
            wlan0, lte0 = host.networks()
            given = (lte0.addresses[0], ip_interface("2001:db8:44::7/64"))
            await steering.networks_changed([wlan0, replace(lte0, addresses=given)])
            assert host.seen_tcp(6) == "2001:db8:44::7"
            await steering.networks_changed(host.networks())
        host.client.ip("address", "del", "2001:db8:44::7/64", "dev", name)
    with pytest.raises(OSError, match=r"unreachable|refused"):
        host.seen_tcp(6)
    bound = host.address("wlan0", 6)
    assert host.seen_tcp(6, bind=bound) == bound
    steering.set_ruled({(rule[6][0] if rule is EXACT else rule[6], 8000): None})
    assert host.seen_tcp(6) == bound
