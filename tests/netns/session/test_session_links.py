"""The choice of local networks for a session, by their routes, kinds and hotspots."""

import asyncio
import errno
from ipaddress import ip_address

import pytest

from cedos.kernel import interface_kind
from cedos.model import NetworkKind
from cedos.session.io import links
from cedos.session.io.links import EgressReader, EgressTable

FAR = "203.0.113.9"


def two_networks(make_namespace):
    near, far = make_namespace("near"), make_namespace("far")
    for number, name in enumerate(("wlan0", "lte0"), 1):
        near.ip("link", "add", name, "type", "veth", "peer", name, "netns", far.name)
        far.ip("address", "add", f"10.9.{number}.1/24", "dev", name)
        far.ip("link", "set", name, "up")
        near.ip("address", "add", f"10.9.{number}.2/24", "dev", name)
        near.ip("link", "set", name, "up")
    return near, far


def ways(namespace, to):
    with namespace.entered():
        kernel = EgressReader()
    try:
        return {way.interface: way.addresses for way in kernel.egresses(ip_address(to))}
    finally:
        kernel.close()


def test_a_way_needs_carrier_address_and_route(make_namespace):
    near, far = two_networks(make_namespace)
    assert ways(near, FAR) == {}
    near.ip("route", "add", "default", "via", "10.9.1.1", "dev", "wlan0", "metric", "100")
    near.ip("route", "add", "default", "via", "10.9.2.1", "dev", "lte0", "metric", "700")
    both = {"wlan0": frozenset({"10.9.1.2"}), "lte0": frozenset({"10.9.2.2"})}
    assert ways(near, FAR) == both
    assert set(ways(near, "10.9.2.1")) == {"wlan0", "lte0"}  # the other one's default route
    far.ip("link", "set", "wlan0", "down")
    assert set(ways(near, FAR)) == {"lte0"}
    far.ip("link", "set", "wlan0", "up")
    near.ip("address", "del", "10.9.2.2/24", "dev", "lte0")
    assert set(ways(near, FAR)) == {"wlan0"}


def test_destinations_of_a_specific_route_or_a_vpn(make_namespace):
    near, _ = two_networks(make_namespace)
    near.ip("route", "add", "default", "via", "10.9.1.1", "dev", "wlan0")
    with near.entered():
        kernel = EgressReader()

    def owns():
        return kernel.has_own(ip_address(FAR))

    assert not owns()
    near.ip("route", "add", "128.0.0.0/1", "via", "10.9.1.1", "dev", "wlan0", "proto", "dhcp")
    assert owns()
    near.ip("route", "del", "128.0.0.0/1")
    assert not owns()
    near.ip("tuntap", "add", "tun0", "mode", "tun")
    near.ip("link", "set", "tun0", "up")
    near.ip("route", "del", "default")
    near.ip("route", "add", "default", "dev", "tun0")
    assert owns()
    # 464XLAT's tunnel leads IPv4 to no VPN, and a virtual machine's is a port of a bridge.
    near.ip("address", "add", "192.0.0.4/32", "dev", "tun0")
    assert not owns()
    near.ip("link", "del", "tun0")
    near.ip("tuntap", "add", "vnet0", "mode", "tap")
    near.ip("link", "add", "virbr0", "type", "bridge")
    near.ip("link", "set", "vnet0", "master", "virbr0", "up")
    assert not kernel._vpns()
    kernel.close()


def test_ipv6(make_namespace):
    near, far = two_networks(make_namespace)
    assert ways(near, "2001:db8::1") == {}
    far.ip("address", "add", "fd00:1::1/64", "dev", "wlan0", "nodad")
    near.ip("address", "add", "fd00:1::2/64", "dev", "wlan0", "nodad")
    near.ip("-6", "route", "add", "default", "via", "fd00:1::1")
    (addresses,) = ways(near, "2001:db8::1").values()
    assert "fd00:1::2" in addresses
    # Steering refuses what is bound to nothing; what is bound to the interface goes on.
    near.ip("-6", "route", "add", "default", "dev", "lo", "src", "::1", "table", "88")
    near.ip("-6", "rule", "add", "pref", "32091", "iif", "lo", "lookup", "88")
    assert set(ways(near, "2001:db8::1")) == {"wlan0"}


def test_the_host_itself_and_a_tunnel(make_namespace):
    near, _ = two_networks(make_namespace)
    near.ip("route", "add", "default", "via", "10.9.1.1")
    assert set(ways(near, "127.0.0.1")) == {"lo"}
    assert set(ways(near, "10.9.2.2")) == {"lo"}
    near.ip("tuntap", "add", "vpn0", "mode", "tun")
    near.ip("link", "set", "vpn0", "up")
    near.ip("address", "add", "10.77.0.2/24", "dev", "vpn0")
    near.ip("route", "add", "203.0.113.0/24", "dev", "vpn0")
    # Without anybody at its other end, the tunnel has no carrier; never around it all the same.
    assert ways(near, FAR) == {}
    assert set(ways(near, "198.51.100.1")) == {"wlan0"}


@pytest.mark.parametrize("what", ["carrier", "address", "route"])
async def test_changes_are_told(make_namespace, what):
    near, far = two_networks(make_namespace)
    near.ip("route", "add", "default", "via", "10.9.1.1")

    with near.entered():
        told = asyncio.Event()
        links = EgressTable(told.set)
        try:
            assert [way.interface for way in links.egresses(FAR)] == ["wlan0"]
            if what == "carrier":
                far.ip("link", "set", "wlan0", "down")
            elif what == "address":
                near.ip("address", "del", "10.9.1.2/24", "dev", "wlan0")
            else:
                near.ip("route", "del", "default")
            async with asyncio.timeout(20):
                while links.egresses(FAR):
                    told.clear()
                    await told.wait()
        finally:
            links.close()


def test_a_link_that_comes_up_says_when(make_namespace):
    """Measured without: an hour's black-out ended a second late in every second trial."""
    near, _ = two_networks(make_namespace)
    route = ("route", "add", "default", "via", "10.9.1.1", "dev", "wlan0")
    near.ip(*route)

    async def watch():
        changed = asyncio.Event()
        links = EgressTable(changed.set)
        try:
            (way,) = links.egresses(FAR)
            assert way.came_s == float("-inf")
            near.ip("link", "set", "wlan0", "down")
            await asyncio.wait_for(changed.wait(), 5)
            before_s = asyncio.get_running_loop().time()
            near.ip("link", "set", "wlan0", "up")
            near.ip(*route)
            while not links.egresses(FAR) or links.egresses(FAR)[0].came_s < before_s:
                changed.clear()
                await asyncio.wait_for(changed.wait(), 5)
            return before_s, links.egresses(FAR)[0].came_s
        finally:
            links.close()

    with near.entered():
        before_s, came_s = asyncio.run(watch())
    assert before_s <= came_s


def test_a_link_that_was_up_has_not_come_when_something_else_of_it_changes(make_namespace):
    """It was waited for as one that had just come: 20 ms for nothing."""
    near, _ = two_networks(make_namespace)
    near.ip("route", "add", "default", "via", "10.9.1.1", "dev", "wlan0")

    async def watch():
        changed = asyncio.Event()
        links = EgressTable(changed.set)
        try:
            near.ip("link", "set", "wlan0", "mtu", "1400")
            await asyncio.wait_for(changed.wait(), 5)
            (way,) = links.egresses(FAR)
            return way.came_s
        finally:
            links.close()

    with near.entered():
        assert asyncio.run(watch()) == float("-inf")


WORLD = ip_address("198.51.100.1")


def egress(laptop):
    with laptop.entered():
        reader = EgressReader()
    try:
        (found,) = reader.egresses(WORLD)
    finally:
        reader.close()
    return found


@pytest.mark.parametrize(
    ("address", "announced", "metered"),
    [
        ("192.168.1.7/24", False, False),
        ("172.20.10.3/28", False, True),
        ("192.168.43.7/24", True, True),
    ],
)
def test_by_its_addresses_or_by_its_lease(make_namespace, monkeypatch, address, announced, metered):
    monkeypatch.setattr(links, "announced_metered", lambda name, index: announced)
    laptop, phone = make_namespace("laptop"), make_namespace("phone")
    laptop.ip("link", "add", "wlan0", "type", "veth", "peer", "wlan0", "netns", phone.name)
    laptop.ip("address", "add", address, "dev", "wlan0")
    for namespace in (laptop, phone):
        namespace.ip("link", "set", "wlan0", "up")
    laptop.ip("route", "add", "default", "dev", "wlan0")
    found = egress(laptop)
    assert (found.kind, found.metered) == (NetworkKind.WIFI, metered)


def test_without_a_descriptor_an_interface_is_metered_and_asked_about_again(
    make_namespace, monkeypatch
):
    """Else no network was left for a session."""
    laptop, phone = make_namespace("laptop"), make_namespace("phone")
    laptop.ip("link", "add", "eth0", "type", "veth", "peer", "eth0", "netns", phone.name)
    laptop.ip("address", "add", "192.168.43.7/24", "dev", "eth0")
    for namespace in (laptop, phone):
        namespace.ip("link", "set", "eth0", "up")
    laptop.ip("route", "add", "default", "dev", "eth0")

    def none_left(*_):
        raise OSError(errno.EMFILE, "Too many open files")

    async def watch():
        table = EgressTable(lambda: None)
        for failing in ("announced_metered", "_read"):
            with monkeypatch.context() as patched:
                where = links if failing == "announced_metered" else interface_kind
                patched.setattr(where, failing, none_left)
                (found,) = table.egresses(str(WORLD))
                assert found.metered
            (found,) = table.egresses(str(WORLD))
            assert (found.kind, found.metered) == (NetworkKind.ETHERNET, False)
            table._invalidate()
            laptop.ip("link", "set", "eth0", "mtu", str(1400 + len(failing)))
        table.close()

    with laptop.entered():
        asyncio.run(watch())
