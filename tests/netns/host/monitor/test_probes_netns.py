"""Probes through the interface they belong to."""

import asyncio
import socket
from dataclasses import dataclass
from ipaddress import ip_address

import pytest

from cedos.host.monitor.links import LinkMonitor
from cedos.host.monitor.probing import dns_probe
from cedos.host.monitor.probing.prober import Prober
from cedos.host.monitor.probing.probes import ProbeSchedule
from emu.testbed.netns import Namespace

TARGETS = {4: ip_address("198.51.100.1"), 6: ip_address("2001:db8::1")}


@dataclass
class Bench:
    near: Namespace
    far: Namespace


@pytest.fixture
def bench(make_namespace):
    """Two networks to one far host, whose own addresses are reached through either."""
    near, far = make_namespace("near"), make_namespace("far")
    for net, name in ((1, "wlan0"), (2, "lte0")):
        near.ip("link", "add", name, "type", "veth", "peer", name, "netns", far.name)
        for side, host in ((near, 2), (far, 1)):
            side.ip("address", "add", f"10.9.{net}.{host}/24", "dev", name)
            side.ip("address", "add", f"fd09:{net}::{host}/64", "dev", name, "nodad")
            side.ip("link", "set", name, "up")
        metric = ("metric", str(600 + net))
        near.ip("route", "add", "default", "via", f"10.9.{net}.1", "dev", name, *metric)
        near.ip("-6", "route", "add", "default", "via", f"fd09:{net}::1", "dev", name, *metric)
    far.ip("address", "add", f"{TARGETS[4]}/32", "dev", "lo")
    far.ip("address", "add", f"{TARGETS[6]}/128", "dev", "lo")
    for name in ("wlan0", "lte0"):  # past the first neighbour discovery, which may take a second
        near.run("ping", "-6", "-c", "1", "-w", "5", "-I", name, str(TARGETS[6]))
    return Bench(near, far)


COUNTED = {
    4: ("iptables", "-p", "icmp", "--icmp-type", "echo-request"),
    6: ("ip6tables", "-p", "icmpv6", "--icmpv6-type", "echo-request"),
}


def echoes(namespace, version, interface):
    """Return how many echo requests have come in over the interface, from the first call on."""
    program, *match = COUNTED[version]
    rule = ("INPUT", "-i", interface, *match)
    if namespace.run(program, "-C", *rule, check=False).returncode != 0:
        namespace.run(program, "-A", *rule)
    shown = namespace.run(program, "-nvxL", "INPUT").stdout.splitlines()
    return next(int(line.split()[0]) for line in shown if interface in line.split())


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("unprivileged", [False, True])
async def test_ping_goes_through_the_networks_interface(bench, version, unprivileged):
    bench.near.sysctl("net.ipv4.ping_group_range", "0 0" if unprivileged else "1 0")

    with bench.near.entered():
        async with (
            LinkMonitor() as links,
            Prober(lambda n: TARGETS[version], timeout_s=5.0) as prober,
        ):
            results = prober.results()
            for network in links.networks():
                before = {n: echoes(bench.far, version, n) for n in ("wlan0", "lte0")}
                for _ in range(3):
                    prober.ask(network)
                    assert 0 < (await anext(results)).rtt_s < 5
                for name, count in before.items():
                    gained = echoes(bench.far, version, name) - count
                    assert gained == (3 if name == network.interface else 0), name


@pytest.mark.parametrize("version", [4, 6])
async def test_a_look_up_goes_through_the_right_interface(bench, version):
    with bench.near.entered():
        loop = asyncio.get_running_loop()
        family = socket.AF_INET if version == 4 else socket.AF_INET6
        with bench.far.entered():
            server = socket.socket(family, socket.SOCK_DGRAM)
        with server:
            server.setblocking(False)
            server.bind((str(TARGETS[version]), 53))
            askers = []

            async def answer():
                while True:
                    question, peer = await loop.sock_recvfrom(server, 512)
                    askers.append(peer[0])
                    # First somebody else's answer, which must not count; then the real one.
                    for number in (bytes(2), question[:2]):
                        reply = number + b"\x81\x83" + question[4:]
                        await loop.sock_sendto(server, reply, peer)

            task = asyncio.create_task(answer())
            async with LinkMonitor() as links:
                for network in links.networks():
                    found = await dns_probe.run(network, "example.org")
                    assert found == f"{network.name} has no resolver to ask"
                    found = await dns_probe.run(network, "example.org", resolver=TARGETS[version])
                    assert found == ""
                    own = [a.ip for a in network.addresses]
                    assert ip_address(askers[-1]) in own
                task.cancel()
                silent = await dns_probe.run(
                    links.networks()[0], "example.org", resolver=TARGETS[version], timeout_s=0.2
                )
                assert silent == "no answer in time"


async def test_the_schedule_pings_and_sees_the_far_end_drop(bench):
    with bench.near.entered():
        schedule = ProbeSchedule(in_use_s=0.1, idle_s=0.2)
        async with (
            LinkMonitor() as links,
            Prober(lambda n: TARGETS[4], schedule=schedule, timeout_s=0.3) as prober,
        ):
            prober.networks_changed(links.networks())
            prober.in_use(["lte0"])
            seen = {"wlan0": [], "lte0": []}
            dropping = False
            async with asyncio.timeout(20):
                async for result in prober.results():
                    seen[result.network].append(result.rtt_s)
                    if not dropping and min(map(len, seen.values())) >= 3:
                        assert None not in seen["wlan0"] + seen["lte0"]
                        drop = ("-A", "INPUT", "-i", "lte0", "-p", "icmp", "-j", "DROP")
                        bench.far.run("iptables", *drop)
                        dropping = True
                    if dropping and seen["lte0"][-3:] == [None] * 3:
                        break
            assert None not in seen["wlan0"]
            assert len(seen["lte0"]) > len(seen["wlan0"])


async def test_a_network_without_route_is_a_loss_at_once(bench):
    with bench.near.entered():
        async with LinkMonitor() as links, Prober(lambda n: TARGETS[6], timeout_s=5.0) as prober:
            bench.near.ip("-6", "route", "del", "default", "dev", "lte0")
            lte = next(n for n in links.networks() if n.interface == "lte0")
            prober.ask(lte)
            result = await asyncio.wait_for(anext(prober.results()), 0.9)
            assert result.rtt_s is None
