"""Helpers in the kernel's tables, without a kernel."""

import asyncio
from ipaddress import ip_address, ip_interface, ip_network

import pytest

from cedos.host.monitor.events import Change
from cedos.host.monitor.links import LinkMonitor, Tables, helpers
from cedos.kernel.policy_routing import HELPER_TABLES, REQUESTOR_TABLES, SHARING_PROTOCOL, SeenRoute
from cedos.kernel.rtnetlink import Link, LinkAddress
from cedos.model import NetworkKind
from tests.unit.host.monitor.networks.test_links import Genuine, PlayedTables

GATEWAY, HELPER = "198.51.100.9", "192.168.77.1"
WLAN = Link(2, "wlan0", "", 1, 0x10041)


def own(last, *, price=500_000, preferred=True):
    interface = ip_interface(f"169.254.1.{last}/32")
    return LinkAddress(2, interface, True, SHARING_PROTOCOL, preferred, price)


def route(table, last):
    to, via, source = ip_network(GATEWAY), ip_address(HELPER), ip_address(f"169.254.1.{last}")
    return SeenRoute(4, table, to, 2, 0, SHARING_PROTOCOL, via, b"", source)


def test_a_helper_has_its_address_its_price_and_one_host_that_it_leads_to():
    (found,) = helpers({2: WLAN}, [own(5)], [route(HELPER_TABLES[2], 5)])
    assert (found.name, found.kind, found.metered, found.up) == (
        *("helper-3", NetworkKind.HELPER, True, True),
    )
    assert (found.interface, found.egress) == ("wlan0", "wlan0/169.254.1.5")
    assert found.gateways == (ip_address(HELPER),)
    assert found.money_per_mb == pytest.approx(0.0005)
    assert found.reaches(ip_address(GATEWAY))
    assert not found.reaches(ip_address("198.51.100.1"))
    assert not found.carries(4)


def test_what_is_no_helpers_is_left_out():
    theirs = LinkAddress(2, ip_interface("192.168.77.100/24"))
    ways = [route(HELPER_TABLES[0], 5), route(REQUESTOR_TABLES[0], 6)]
    assert helpers({2: WLAN}, [theirs, own(6)], ways) == []
    assert helpers({}, [own(5)], ways) == []
    # An address is no helper before its route is there.
    assert helpers({2: WLAN}, [own(5)], []) == []


async def test_the_monitor_keeps_them_apart_from_this_hosts_own_networks():
    tables = PlayedTables(Tables(()))
    tables.now.links[2] = WLAN
    tables.now.addresses[2] = [LinkAddress(2, ip_interface("192.168.77.100/24"))]
    async with LinkMonitor(tables=tables, hardware=Genuine()) as monitor:
        tables.now.shared, tables.now.shared_routes = [own(5)], [route(HELPER_TABLES[0], 5)]
        tables.changed.set()
        events = monitor.events()
        async with asyncio.timeout(5):
            came = await anext(events)
        assert (came.change, came.network.name) == (Change.APPEARED, "helper-1")
        assert [each.name for each in monitor.networks()] == ["wlan0"]
        assert [each.name for each in monitor.helpers()] == ["helper-1"]
        # Its connections are this host's.
        assert monitor.is_local(ip_address("169.254.1.5"))
        tables.now.shared = []
        tables.changed.set()
        async with asyncio.timeout(5):
            went = await anext(events)
        assert (went.change, monitor.helpers()) == (Change.LOST, [])
