"""Networks coming, changing and going, as the kernel tells it.

The tests run with their whole thread in the namespace, as the daemon runs on a host.
"""

from ipaddress import IPv4Interface, IPv6Interface, ip_address

from kit.waiting import first_of, wait_until

from cedos.host.monitor.events import Change
from cedos.host.monitor.links import InterfaceCounters, LinkMonitor
from cedos.host.monitor.resolvers import HostResolvers
from cedos.kernel import rtnetlink
from cedos.kernel.netlink import AsyncRequester
from cedos.model import NetworkKind


def pair(make_namespace, name="wlan0"):
    near, far = make_namespace("near"), make_namespace("far")
    near.ip("link", "add", name, "type", "veth", "peer", "far0", "netns", far.name)
    far.ip("address", "add", "10.9.1.1/24", "dev", "far0")
    far.ip("link", "set", "far0", "up")
    return near, far


async def test_a_network_through_its_life(make_namespace):
    near, far = pair(make_namespace)

    with near.entered():
        async with LinkMonitor() as monitor:
            events = monitor.events()
            (found,) = monitor.networks()
            assert (found.name, found.kind, found.up) == ("wlan0", NetworkKind.WIFI, False)

            near.ip("address", "add", "10.9.1.2/24", "dev", "wlan0")
            near.ip("link", "set", "wlan0", "up")
            addressed = await first_of(events, lambda e: bool(e.network.addresses))
            assert IPv4Interface("10.9.1.2/24") in addressed.network.addresses
            assert not addressed.network.up

            near.ip("route", "add", "default", "via", "10.9.1.1", "metric", "600")
            up = await first_of(events, lambda e: e.network.up)
            assert up.change is Change.CHANGED
            assert not up.before.up
            assert up.network.gateways == (ip_address("10.9.1.1"),)
            assert monitor.metrics() == {"wlan0": 600}
            assert monitor.is_local(ip_address("10.9.1.2"))

            near.ip("route", "replace", "default", "via", "10.9.1.9", "metric", "600")
            moved = await first_of(events, lambda e: e.network.gateways != up.network.gateways)
            assert moved.network.gateways == (ip_address("10.9.1.9"),)

            # The far end goes: the carrier is lost, the routes stay.
            far.ip("link", "set", "far0", "down")
            await first_of(events, lambda e: not e.network.up)
            far.ip("link", "set", "far0", "up")
            await first_of(events, lambda e: e.network.up)

            # The kernel drops the IPv4 routes of a link that goes down without a word.
            near.ip("link", "set", "wlan0", "down")
            down = await first_of(events, lambda e: not e.network.gateways)
            assert not down.network.up

            near.ip("link", "delete", "wlan0")
            lost = await first_of(events, lambda e: e.change is Change.LOST)
            assert lost.network.name == "wlan0"
            assert monitor.networks() == []
            assert not monitor.is_local(ip_address("10.9.1.2"))


async def test_ipv6_and_a_gateway_less_link(make_namespace):
    near, _ = pair(make_namespace, "wwan0")
    near.sysctl("net.ipv6.conf.wwan0.accept_dad", 0)

    with near.entered():
        async with LinkMonitor() as monitor:
            events = monitor.events()
            near.ip("link", "set", "wwan0", "up")
            near.ip("address", "add", "fd09::2/64", "dev", "wwan0", "nodad")
            near.ip("-6", "route", "add", "default", "dev", "wwan0", "metric", "700")
            up = (await first_of(events, lambda e: e.network.up)).network
            assert (up.kind, up.metered, up.gateways) == (NetworkKind.CELLULAR, True, ())
            assert up.addresses == (IPv6Interface("fd09::2/64"),)
            near.ip("-6", "route", "add", "default", "via", "fd09::1", "metric", "600")
            routed = await first_of(events, lambda e: bool(e.network.gateways))
            assert routed.network.gateways == (ip_address("fd09::1"),)
            assert monitor.metrics() == {"wwan0": 600}


async def test_default_routes_among_thousands_of_others(make_namespace, tmp_path):
    near, _ = pair(make_namespace)
    near.ip("address", "add", "10.9.1.2/24", "dev", "wlan0")
    near.ip("address", "add", "fd09::2/64", "dev", "wlan0", "nodad")
    near.ip("link", "set", "wlan0", "up")
    near.ip("-6", "route", "add", "default", "via", "fd09::1", "metric", "300")
    others = [f"10.{100 + n // 250}.{n % 250}.0/24" for n in range(2_000)]
    (tmp_path / "routes").write_text(
        "".join(f"route add {prefix} via 10.9.1.1\n" for prefix in others)
    )
    near.ip("-batch", str(tmp_path / "routes"))

    with near.entered():
        async with LinkMonitor() as monitor:
            (network,) = monitor.networks()
            assert network.gateways == (ip_address("fd09::1"),)
            near.ip("route", "add", "default", "via", "10.9.1.1", "metric", "600")
            changed = await first_of(monitor.events(), lambda e: len(e.network.gateways) == 2)
            assert changed.network.gateways == (ip_address("10.9.1.1"), ip_address("fd09::1"))
            assert monitor.metrics() == {"wlan0": 300}


async def test_a_network_is_followed_while_routes_come_faster_than_they_can_be_read(
    make_namespace, monkeypatch
):
    """Router Advertisements with 34,000 prefixes a second kept the daemon from seeing any change."""
    near, _ = pair(make_namespace)
    near.ip("address", "add", "10.9.1.2/24", "dev", "wlan0")
    near.ip("link", "set", "wlan0", "up")
    near.ip("route", "add", "default", "via", "10.9.1.1")
    with near.entered():
        async with LinkMonitor() as monitor:
            events = monitor.events()
            if not monitor.networks()[0].up:
                await first_of(events, lambda e: e.network.up)
            dump = AsyncRequester.dump

            async def dump_no_routes(self, kind, *given, **more):
                if kind == rtnetlink.RTM_GETROUTE:
                    raise TimeoutError
                return await dump(self, kind, *given, **more)

            monkeypatch.setattr(AsyncRequester, "dump", dump_no_routes)
            near.ip("address", "add", "10.9.1.3/24", "dev", "wlan0")
            found = await first_of(events, lambda e: len(e.network.addresses) == 2)
            assert found.network.up
            near.ip("link", "set", "wlan0", "down")
            await first_of(events, lambda e: not e.network.up)


async def test_several_next_hops_and_a_gateway_of_the_other_ip_version(make_namespace):
    near, far = pair(make_namespace)
    near.ip("link", "add", "wlan1", "type", "veth", "peer", "far1", "netns", far.name)
    far.ip("link", "set", "far1", "up")
    for number, name in ((1, "wlan0"), (2, "wlan1")):
        near.ip("address", "add", f"10.9.{number}.2/24", "dev", name)
        near.ip("address", "add", f"fd09:{number}::2/64", "dev", name, "nodad")
        near.ip("link", "set", name, "up")

    with near.entered():
        async with LinkMonitor() as monitor:
            assert [network.gateways for network in monitor.networks()] == [(), ()]
            events = monitor.events()
            hops = [word for n in (1, 2) for word in ("nexthop", "via", f"10.9.{n}.1")]
            near.ip("route", "add", "default", "metric", "600", *hops)
            for _ in range(2):
                await first_of(events, lambda e: e.network.up)
            found = {network.name: network.gateways for network in monitor.networks()}
            wanted = {"wlan0": (ip_address("10.9.1.1"),), "wlan1": (ip_address("10.9.2.1"),)}
            assert found == wanted
            assert monitor.metrics() == {"wlan0": 600, "wlan1": 600}

            near.ip("route", "delete", "default")
            await first_of(events, lambda e: not e.network.up)
            near.ip("route", "add", "default", "via", "inet6", "fd09:1::1", "dev", "wlan0")
            via = await first_of(events, lambda e: e.network.up)
            assert via.network.gateways == (ip_address("fd09:1::1"),)


async def test_other_tables_routes_and_containers_links_are_no_news(make_namespace):
    near, _ = pair(make_namespace)
    near.ip("address", "add", "10.9.1.2/24", "dev", "wlan0")
    near.ip("link", "set", "wlan0", "up")
    # The kernel may notice a carrier as late as a second after the link was set up.
    wait_until(lambda: "state UP" in near.ip("link", "show", "wlan0"))

    with near.entered():
        async with LinkMonitor({"br0": {"ignore": True}}) as monitor:
            events = monitor.events()
            table = ("table", "1234")
            near.ip("route", "add", "default", "via", "10.9.1.1", "dev", "wlan0", *table)
            near.ip("rule", "add", "to", "10.1.1.1", *table)
            near.ip("link", "add", "br0", "type", "bridge")
            near.ip("link", "add", "veth1", "type", "veth", "peer", "veth2")
            near.ip("link", "add", "ifb9", "type", "ifb")
            near.ip("route", "add", "default", "via", "10.9.1.1", "dev", "wlan0")
            event = await first_of(events, lambda e: True)
            assert event.network.up
            assert [network.name for network in monitor.networks()] == ["wlan0"]


async def test_byte_counters(make_namespace):
    near, _ = pair(make_namespace)
    near.ip("address", "add", "10.9.1.2/24", "dev", "wlan0")
    near.ip("link", "set", "wlan0", "up")

    with near.entered():
        counters = InterfaceCounters()
        try:
            async with LinkMonitor() as monitor:
                (network,) = monitor.networks()
                before = await counters.read(network.index)
                ping = near.run("ping", "-c", "2", "-i", "0.2", "-s", "1000", "10.9.1.1")
                assert " 0% packet loss" in ping.stdout
                after = await counters.read(network.index)
            assert 2_000 <= after.received_bytes - before.received_bytes <= 5_000
            assert 2_000 <= after.sent_bytes - before.sent_bytes <= 5_000
            assert await counters.read(999_999) is None
            assert await counters.read(network.index) is not None
        finally:
            counters.close()


async def test_the_users_word_on_an_interface(make_namespace):
    near, _ = pair(make_namespace, "veth-work")

    with near.entered():
        given = {"veth-work": {"kind": "cellular", "metered": False, "name": "phone"}}
        async with LinkMonitor(given) as monitor:
            (phone,) = monitor.networks()
            assert (phone.name, phone.interface) == ("phone", "veth-work")
            assert (phone.kind, phone.metered) == (NetworkKind.CELLULAR, False)


async def test_a_phones_hotspot_over_wifi_is_metered(make_namespace):
    near, _ = pair(make_namespace)

    with near.entered():
        async with LinkMonitor() as monitor:
            events = monitor.events()
            near.ip("address", "add", "192.168.1.7/24", "dev", "wlan0")
            home = await first_of(events, lambda e: bool(e.network.addresses))
            assert not home.network.metered
            near.ip("address", "del", "192.168.1.7/24", "dev", "wlan0")
            near.ip("address", "add", "172.20.10.3/28", "dev", "wlan0")
            hotspot = await first_of(events, lambda e: e.network.metered)
            assert hotspot.network.kind is NetworkKind.WIFI


async def test_a_new_resolv_conf_is_noticed(make_namespace, tmp_path):
    near, _ = pair(make_namespace)
    near.ip("address", "add", "10.9.1.2/24", "dev", "wlan0")
    file = tmp_path / "resolv.conf"
    file.write_text("nameserver 127.0.0.53\n")

    with near.entered():
        async with LinkMonitor(resolvers=HostResolvers(None, file)) as monitor:
            events = monitor.events()
            assert monitor.networks()[0].resolvers == ()
            (tmp_path / "new").write_text("nameserver 8.8.8.8\nnameserver 10.9.1.1\n")
            (tmp_path / "new").rename(file)
            event = await first_of(events, lambda e: bool(e.network.resolvers))
            assert event.network.resolvers == (ip_address("10.9.1.1"),)
