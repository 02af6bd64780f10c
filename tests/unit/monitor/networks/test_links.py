"""Networks from tables, and their changes, without a kernel."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from ipaddress import ip_address, ip_interface

import pytest

from cedos.errors import HostError
from cedos.kernel.interface_kind import Hardware
from cedos.kernel.policy_routing import DefaultRoute
from cedos.kernel.rtnetlink import Link, LinkAddress
from cedos.model import NetworkKind
from cedos.monitor.dns.resolvers import Resolvers
from cedos.monitor.events import Change
from cedos.monitor.networks.links import LinkMonitor, Tables, assemble, compare

pytestmark = pytest.mark.anyio


class Genuine:
    def look_up(self, link: Link) -> Hardware:
        return Hardware(genuine=True)


def tables(*names: str, running: bool = True, base: int = 1) -> Tables:
    """Interfaces with an address, a router and a metric each, the first with the best metric."""
    made = Tables(())
    for index, name in enumerate(names, base):
        made.links[index] = Link(index, name, "", 1, 0x10041 if running else 0)
        made.addresses[index] = [LinkAddress(index, ip_interface(f"10.0.{index}.2/24"))]
        gateway = ip_address(f"10.0.{index}.1")
        made.routes[index] = [DefaultRoute(index, 4, gateway, 100 * index)]
    return made


class PlayedTables:
    def __init__(self, first: Tables) -> None:
        self.now: Tables | Exception = first
        self.closed = False

    def start(self, changed: asyncio.Event) -> None:
        self.changed = changed

    async def read(self) -> Tables:
        if isinstance(self.now, Exception):
            raise self.now
        return self.now

    def play(self, tables: Tables | Exception) -> None:
        self.now = tables
        self.changed.set()

    def close(self) -> None:
        self.closed = True


class NoResolvers:
    async def start(self, changed: Callable[[], None]) -> None:
        pass

    async def read(self) -> Resolvers:
        return Resolvers()

    async def close(self) -> None:
        pass


def test_the_better_metric_comes_first_and_none_comes_last() -> None:
    made = tables("eth0", "wlan0", "lte0")
    made.routes[1] = []
    made.routes[3] = [replace(made.routes[3][0], metric=50)]
    found = assemble(made, Resolvers(), Genuine(), {})
    assert [(n.name, metric, n.up) for n, metric in found] == [
        ("lte0", 50, True),
        ("wlan0", 200, True),
        ("eth0", None, False),
    ]


def test_up_needs_carrier_address_and_route() -> None:
    assert all(n.up for n, _ in assemble(tables("wlan0"), Resolvers(), Genuine(), {}))
    without_carrier = tables("wlan0", running=False)
    without_address = tables("wlan0")
    without_address.addresses = {}
    for made in (without_carrier, without_address):
        assert not any(n.up for n, _ in assemble(made, Resolvers(), Genuine(), {}))


def test_of_several_routers_the_one_with_the_lowest_metric() -> None:
    made = tables("wlan0")
    made.routes[1] = [
        DefaultRoute(1, 4, ip_address("10.0.1.9"), 700),
        DefaultRoute(1, 6, ip_address("fe80::1"), 1024),
        DefaultRoute(1, 4, ip_address("10.0.1.1"), 600),
    ]
    ((network, metric),) = assemble(made, Resolvers(), Genuine(), {})
    assert network.gateways == (ip_address("10.0.1.1"), ip_address("fe80::1"))
    assert metric == 600


def test_resolvers_belong_to_their_interface() -> None:
    known = Resolvers({2: (ip_address("9.9.9.9"),)}, (ip_address("10.0.1.53"),))
    made = assemble(tables("wlan0", "lte0"), known, Genuine(), {})
    found = {network.name: network.resolvers for network, _ in made}
    assert found == {"wlan0": (ip_address("10.0.1.53"),), "lte0": (ip_address("9.9.9.9"),)}


def test_a_remade_interface_is_lost_and_appears() -> None:
    old = {n.name: n for n, _ in assemble(tables("wlan0"), Resolvers(), Genuine(), {})}
    new = {n.name: n for n, _ in assemble(tables("wlan0", base=7), Resolvers(), Genuine(), {})}
    events = compare(old, new, 1.0)
    assert [(e.change, e.network.index) for e in events] == [(Change.LOST, 1), (Change.APPEARED, 7)]
    assert compare(new, new, 1.0) == []


async def test_the_monitor_tells_changes_in_order() -> None:
    source = PlayedTables(tables("wlan0"))
    monitor = LinkMonitor(tables=source, hardware=Genuine(), resolvers=NoResolvers())
    async with monitor:
        events = monitor.events()
        assert [n.name for n in monitor.networks()] == ["wlan0"]
        source.play(tables("wlan0", "lte0"))
        appeared = await anext(events)
        assert (appeared.change, appeared.network.name) == (Change.APPEARED, "lte0")
        assert appeared.network.kind is NetworkKind.CELLULAR
        assert monitor.is_local(ip_address("10.0.2.2"))
        source.play(tables("wlan0", "lte0", running=False))
        for name in ("wlan0", "lte0"):
            event = await anext(events)
            assert (event.change, event.network.name) == (Change.CHANGED, name)
            assert event.before is not None
            assert (event.before.up, event.network.up) == (True, False)
        source.play(Tables(()))
        assert {(await anext(events)).change for _ in range(2)} == {Change.LOST}
    assert source.closed
    assert [event async for event in events] == []


async def test_a_read_that_failed_is_repeated() -> None:
    source = PlayedTables(tables("wlan0"))
    async with LinkMonitor(tables=source, hardware=Genuine(), resolvers=NoResolvers()) as monitor:
        source.play(OSError(105, "No buffer space available"))
        await asyncio.sleep(0.03)
        assert [n.name for n in monitor.networks()] == ["wlan0"]
        source.now = tables("wlan0", "lte0")
        event = await asyncio.wait_for(anext(monitor.events()), 5)
        assert event.network.name == "lte0"


async def test_a_kernel_that_tells_nothing_is_an_error_and_nothing_stays_open() -> None:
    source = PlayedTables(tables())
    source.now = OSError(1, "Operation not permitted")
    with pytest.raises(HostError, match="rtnetlink"):
        async with LinkMonitor(tables=source, hardware=Genuine(), resolvers=NoResolvers()):
            pass
    assert source.closed
