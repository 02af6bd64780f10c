"""Networks from tables, and their changes, without a kernel."""

import asyncio
import time
from dataclasses import replace
from ipaddress import ip_address, ip_interface, ip_network

import pytest
from kit.waiting import until

from cedos.errors import HostError
from cedos.host.monitor import links
from cedos.host.monitor.events import Change
from cedos.host.monitor.links import LinkMonitor, Tables, assemble, helpers
from cedos.host.monitor.resolvers import Resolvers
from cedos.kernel.interface_kind import Hardware, MeteredWord
from cedos.kernel.policy_routing import (
    HELPER_TABLES,
    REQUESTOR_TABLES,
    SHARING_PROTOCOL,
    DefaultRoute,
    SeenRoute,
)
from cedos.kernel.rtnetlink import Counters, Link, LinkAddress
from cedos.model import NetworkKind


class Genuine:
    def look_up(self, link):
        return Hardware(genuine=True)


def tables(*names, running=True, base=1):
    """Interfaces with an address, a router and a metric each, the first with the best metric."""
    made = Tables(())
    for index, name in enumerate(names, base):
        made.links[index] = Link(index, name, "", 1, 0x10041 if running else 0)
        made.addresses[index] = [LinkAddress(index, ip_interface(f"10.0.{index}.2/24"))]
        gateway = ip_address(f"10.0.{index}.1")
        made.routes[index] = [DefaultRoute(index, 4, gateway, 100 * index)]
    return made


class PlayedTables:
    def __init__(self, first):
        self.now = first
        self.closed = False

    def start(self, changed):
        self.changed = changed

    async def read(self):
        if isinstance(self.now, Exception):
            raise self.now
        return self.now

    def play(self, tables):
        self.now = tables
        self.changed.set()

    def close(self):
        self.closed = True


class NoResolvers:
    async def start(self, changed):
        pass

    async def read(self):
        return Resolvers()

    async def close(self):
        pass


def test_up_needs_carrier_address_and_route():
    assert all(n.up for n, _ in assemble(tables("wlan0"), Resolvers(), Genuine(), {}))
    without_carrier = tables("wlan0", running=False)
    without_address = tables("wlan0")
    without_address.addresses = {}
    for made in (without_carrier, without_address):
        assert not any(n.up for n, _ in assemble(made, Resolvers(), Genuine(), {}))


async def test_hardware_that_could_not_be_read_is_read_again(monkeypatch):
    """Without descriptors a new interface kept the daemon from noticing that others were lost."""
    monkeypatch.setattr(links, "_AGAIN_S", 0.01)

    class OutOfFiles(Genuine):
        known = False

        def look_up(self, link):
            return replace(super().look_up(link), known=self.known or link.name == "wlan0")

    hardware, source = OutOfFiles(), PlayedTables(tables("wlan0"))
    monitor = LinkMonitor(tables=source, hardware=hardware, resolvers=NoResolvers())
    async with monitor:
        events = monitor.events()
        source.play(tables("eth0"))
        lost, appeared = await anext(events), await anext(events)
        assert (lost.change, appeared.change) == (Change.LOST, Change.APPEARED)
        assert (appeared.network.kind, appeared.network.metered) == (NetworkKind.CELLULAR, True)
        hardware.known = True
        changed = await asyncio.wait_for(anext(events), 2)
        assert (changed.network.kind, changed.network.metered) == (NetworkKind.ETHERNET, False)


class SlowWords:
    """NetworkManager, which answers when a test lets it."""

    def __init__(self):
        self.answers = asyncio.Event()
        self.answers.set()

    async def start(self, changed):
        pass

    async def read(self, interfaces):
        await self.answers.wait()
        return {"lte0": MeteredWord.NO}


class SlowResolvers(NoResolvers, SlowWords):
    async def read(self):
        await self.answers.wait()
        return Resolvers()


@pytest.mark.parametrize("slow", ["metered", "resolvers"])
async def test_no_service_keeps_a_change_of_networks_waiting(slow):
    """Keep NetworkManager busy: a new metered network had no wall for up to 2 s."""
    source, services = PlayedTables(tables("wlan0")), {
        "metered": SlowWords(), "resolvers": SlowResolvers(),
    }  # fmt: skip
    async with LinkMonitor(tables=source, hardware=Genuine(), **services) as monitor:
        events = monitor.events()
        services[slow].answers.clear()
        for name in ("eth0", "lte0"):
            source.play(tables("wlan0", name))
            async with asyncio.timeout(1):
                while (event := await anext(events)).change is not Change.APPEARED:
                    pass
            if slow == "metered":
                assert event.network.metered, "no service has said otherwise yet"
        services[slow].answers.set()
        if slow == "metered":
            changed = await asyncio.wait_for(anext(events), 1)
            assert (changed.change, changed.network.metered) == (Change.CHANGED, False)
            source.play(tables("wlan0"))
            assert (await anext(events)).change is Change.LOST
            source.play(tables("wlan0", "lte0"))
            assert not (await anext(events)).network.metered, "it is the same interface"


async def test_the_last_counters_of_what_is_gone_are_told_even_late():
    source = PlayedTables(tables("wlan0", "lte0"))
    async with LinkMonitor(tables=source, hardware=Genuine(), resolvers=NoResolvers()) as monitor:
        events = monitor.events()
        source.play(tables("wlan0"))
        assert (await anext(events)).change is Change.LOST
        again = tables("wlan0", "lte0", base=1)
        again.gone = {2: Counters(7, 8), 99: Counters(1, 1)}
        source.play(again)
        counted = await anext(events)
        assert (counted.change, counted.counters) == (Change.COUNTED, Counters(7, 8))
        assert (counted.network.name, counted.network.index) == ("lte0", 2)
        assert (await anext(events)).change is Change.APPEARED


async def test_costly_reads_are_far_apart():
    """A neighbour that announces 100,000 prefixes had them read again without a pause."""

    class Announced(PlayedTables):
        reads = 0

        async def read(self):
            self.reads += 1
            until_s = time.thread_time() + 0.03
            while time.thread_time() < until_s:
                pass
            self.changed.set()
            return await super().read()

    source = Announced(tables("wlan0"))
    async with LinkMonitor(tables=source, hardware=Genuine(), resolvers=NoResolvers()):
        began_s = time.monotonic()
        await until(lambda: source.reads >= 3)
        await asyncio.sleep(0.1)
        # Between two reads is a pause of nine times 0.03 s at least.
        assert source.reads <= 2 + (time.monotonic() - began_s) / 0.27


async def test_changes_without_end_are_followed_a_few_times_a_second():
    """A neighbour's router that came and went 65 times a second took half a core."""

    class Flapping(PlayedTables):
        reads = 0

        async def read(self):
            self.reads += 1
            self.changed.set()
            return tables("wlan0") if self.reads % 2 else tables("wlan0", "lte0")

    source = Flapping(tables("wlan0"))
    async with LinkMonitor(tables=source, hardware=Genuine(), resolvers=NoResolvers()):
        await asyncio.sleep(1.0)
        assert 15 <= source.reads <= 30


@pytest.mark.parametrize("error", [OSError("busy"), ValueError("odd")])
async def test_a_read_that_failed_is_repeated(error):
    """An odd path that NetworkManager told ended the monitor: no network was followed any more."""
    source = PlayedTables(tables("wlan0"))
    async with LinkMonitor(tables=source, hardware=Genuine(), resolvers=NoResolvers()) as monitor:
        source.play(error)
        await asyncio.sleep(0.03)
        assert [n.name for n in monitor.networks()] == ["wlan0"]
        source.now = tables("wlan0", "lte0")
        event = await asyncio.wait_for(anext(monitor.events()), 5)
        assert event.network.name == "lte0"


async def test_a_kernel_that_tells_nothing_is_an_error_and_nothing_stays_open():
    source = PlayedTables(tables())
    source.now = OSError(1, "Operation not permitted")
    with pytest.raises(HostError, match="rtnetlink"):
        async with LinkMonitor(tables=source, hardware=Genuine(), resolvers=NoResolvers()):
            pass
    assert source.closed


FE80 = ip_address("fe80::1")


def _six_alone(made, index, metric=600):
    made.addresses[index] = [LinkAddress(index, ip_interface(f"2001:db8:{index}::2/64"))]
    made.routes[index] = [DefaultRoute(index, 6, FE80, metric)]


def _translator(made, name, address, metric, kind="tun"):
    made.links[9] = Link(9, name, kind, 65534, 0x10041)
    made.addresses[9] = [LinkAddress(9, ip_interface(address))]
    made.routes[9] = [DefaultRoute(9, 4, None, metric)]


@pytest.mark.parametrize("metric", [1, 2048])
@pytest.mark.parametrize(
    ("name", "address"), [("clat", "192.168.255.1/32"), ("nat46", "192.0.0.1/32")]
)
def test_a_translator_is_the_ipv4_of_the_network_that_carries_ipv6(name, address, metric):
    made = tables("wlan0", "lte0")
    _six_alone(made, 1)
    _translator(made, name, address, metric)
    (wlan0, _), (lte0, _) = sorted(
        assemble(made, Resolvers(), Genuine(), {}), key=lambda pair: pair[0].index
    )
    assert (wlan0.translator.interface, wlan0.translator.index) == (name, 9)
    assert lte0.translator is None
    assert (wlan0.leads_out(4), wlan0.carries(4), wlan0.carries(6)) == (False, True, True)


def test_a_translator_beside_the_network_s_own_ipv4_is_its_too():
    """Its route came first, it counted as a VPN, and a rule against its network did not hold there."""
    made = tables("wlan0", "lte0")
    index = next(each.index for each in made.links.values() if each.name == "wlan0")
    made.addresses[index].append(LinkAddress(index, ip_interface("2001:db8::2/64")))
    made.routes[index].append(DefaultRoute(index, 6, FE80, 600))
    _translator(made, "clat", "192.0.0.1/32", 10)
    found = {each.name: each for each, _ in assemble(made, Resolvers(), Genuine(), {})}
    assert found["wlan0"].leads_out(4)
    assert found["wlan0"].translator.interface == "clat"


@pytest.mark.parametrize(
    ("name", "address", "kind"),
    [("tun0", "10.8.0.2/24", "tun"), ("wg0", "192.0.2.1/32", "wireguard")],
)
def test_a_vpn_is_no_translator(name, address, kind):
    made = tables("wlan0")
    _six_alone(made, 1)
    _translator(made, name, address, 50, kind)
    ((wlan0, _),) = assemble(made, Resolvers(), Genuine(), {})
    assert wlan0.translator is None


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


async def test_the_monitor_tells_what_stays_within_the_host():
    source = PlayedTables(tables("wlan0", "docker0"))
    del source.now.routes[2]
    source.now.links[2] = Link(2, "docker0", "bridge", 1, 0x10041)
    source.now.own = [
        LinkAddress(1, ip_interface("127.0.0.1/8"), wide=False),
        *source.now.addresses[1],
        *source.now.addresses[2],
        LinkAddress(3, ip_interface("fd00::7/128")),
        own(5),
    ]
    source.now.local = [ip_network("fd63::/64")]
    async with LinkMonitor(tables=source, hardware=Genuine(), resolvers=NoResolvers()) as monitor:
        within = (
            "127.0.0.1",
            "10.0.1.2",
            "10.0.2.2",
            "10.0.2.9",
            "fd00::7",
            "fd63::1",
            "169.254.1.5",
        )
        for each in within:
            assert monitor.is_here(ip_address(each)), each
        for each in ("10.0.1.1", "10.0.1.9", "198.51.100.1", "fd00::8"):
            assert not monitor.is_here(ip_address(each)), each


@pytest.mark.parametrize("kind", ["", "tun"])
async def test_no_interface_beside_takes_in_a_networks_hosts_or_a_helpers_gateway(kind):
    """Count flows to such hosts, or a hard budget of helpers is off."""
    source = PlayedTables(tables("wlan0", "vpn0"))
    del source.now.routes[2]
    source.now.links[2] = Link(2, "vpn0", kind, 1, 0x10041)
    for prefix in ("10.0.1.1/16", "198.51.100.7/24", "203.0.113.7/24"):
        source.now.own.append(LinkAddress(2, ip_interface(prefix)))
    source.now.shared = [replace(own(5), index=1)]
    source.now.shared_routes = [replace(route(HELPER_TABLES[0], 5), index=1)]
    overrides = {"vpn0": {"ignore": True}}
    async with LinkMonitor(
        overrides, tables=source, hardware=Genuine(), resolvers=NoResolvers()
    ) as monitor:
        for each in ("10.0.1.9", "198.51.100.1"):
            assert not monitor.is_here(ip_address(each)), each
        assert monitor.is_here(ip_address("203.0.113.9")) is bool(kind)
