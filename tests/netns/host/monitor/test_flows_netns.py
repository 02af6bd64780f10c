"""Flows opening, living and closing, as the kernel tells it."""

import asyncio
import os
import socket
import sys
from contextlib import ExitStack
from dataclasses import dataclass, replace
from ipaddress import ip_address

import pytest
from kit.waiting import first_of

from cedos.controller.events import FlowClosed, FlowOpened
from cedos.host.monitor.flow_monitor import FlowMonitor
from cedos.host.monitor.flow_source import KernelFlows
from cedos.host.monitor.links import LinkMonitor
from cedos.host.steer.kernel.linux import LinuxKernel
from cedos.kernel import conntrack, process_limits
from cedos.kernel.netlink import NETLINK_NETFILTER, AsyncRequester
from cedos.kernel.sock_diag import MOST_OF_USER
from cedos.model import FlowKey
from emu.testbed.netns import Namespace

HOSTS = {socket.AF_INET: "10.9.1.1", socket.AF_INET6: "fd09::1"}
MPTCP = 262


@dataclass
class Bench:
    near: Namespace
    far: Namespace


@pytest.fixture
def bench(make_namespace):
    near, far = make_namespace("near"), make_namespace("far")
    near.ip("link", "add", "wlan0", "type", "veth", "peer", "far0", "netns", far.name)
    for side, name, host in ((near, "wlan0", 2), (far, "far0", 1)):
        side.ip("address", "add", f"10.9.1.{host}/24", "dev", name)
        side.ip("address", "add", f"fd09::{host}/64", "dev", name, "nodad")
        side.ip("link", "set", name, "up")
    return Bench(near, far)


def track(namespace):
    """Set up rules like steering's, which make connection tracking run and count."""
    namespace.sysctl("net.netfilter.nf_conntrack_acct", 1)
    for program in ("iptables", "ip6tables"):
        namespace.run(program, "-A", "OUTPUT", "-m", "conntrack", "--ctstate", "INVALID")


async def serve(bench, family, kind, protocol=0):
    with bench.far.entered():
        listener = socket.socket(family, kind, protocol)
    listener.setblocking(False)
    listener.bind((HOSTS[socket.AddressFamily(family)], 7000))
    return listener


async def download(bench, family, down, up, protocol=0):
    """Send `up` bytes and receive `down` over one connection; return its local port."""
    loop = asyncio.get_running_loop()
    with (
        await serve(bench, family, socket.SOCK_STREAM, protocol) as listener,
        socket.socket(family, socket.SOCK_STREAM, protocol) as own,
    ):
        listener.listen()
        own.setblocking(False)
        await loop.sock_connect(own, (HOSTS[socket.AddressFamily(family)], 7000))
        peer, _ = await loop.sock_accept(listener)
        with peer:
            await loop.sock_sendall(own, bytes(up))
            await received(peer, up)
            await asyncio.gather(loop.sock_sendall(peer, bytes(down)), received(own, down))
        return int(own.getsockname()[1])


async def received(own, count):
    while count > 0:
        count -= len(await asyncio.get_running_loop().sock_recv(own, 1 << 16))


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
async def test_a_tcp_flow_opens_and_closes_with_its_bytes(bench, family):
    track(bench.near)

    with bench.near.entered():
        async with LinkMonitor() as links, FlowMonitor(links.is_local) as flows:
            assert flows.problem == ""
            events = flows.events()
            port = await download(bench, family, 200_000, 5_000)
            opened = await first_of(events, lambda e: e.key.local_port == port)
            assert isinstance(opened, FlowOpened)
            assert not opened.incoming
            assert opened.key.remote == ip_address(HOSTS[socket.AddressFamily(family)])
            assert opened.key.remote_port == 7000
            closed = await first_of(events, lambda e: e.key.local_port == port)
            assert isinstance(closed, FlowClosed)
            assert closed.key == opened.key
            assert closed.exact
            # A handshake and an end count as a byte each.
            assert 200_000 <= closed.bytes_down <= 200_002
            assert 5_000 <= closed.bytes_up <= 5_002
            assert 0 < closed.rtt_s < 1
            assert closed.started_unix_s == opened.at_unix_s
            assert closed.ended_unix_s >= opened.at_unix_s


async def test_an_incoming_flow_has_this_hosts_side_as_local(bench):
    track(bench.far)

    with bench.near.entered():

        def is_local(address):
            return address == ip_address("10.9.1.1")

        with bench.far.entered():
            flows = FlowMonitor(is_local)
            await flows.__aenter__()
        try:
            events = flows.events()
            port = await download(bench, socket.AF_INET, 1_000, 2_000)
            opened = await first_of(events, lambda e: e.key.remote_port == port)
            assert isinstance(opened, FlowOpened)
            assert opened.incoming
            assert (opened.key.local, opened.key.local_port) == (ip_address("10.9.1.1"), 7000)
            closed = await first_of(events, lambda e: isinstance(e, FlowClosed))
            assert isinstance(closed, FlowClosed)
            assert closed.key == opened.key
            assert 2_000 <= closed.bytes_down <= 2_002
        finally:
            await flows.__aexit__(None, None, None)


async def test_a_snapshot_knows_mptcp_tokens(bench):
    bench.near.sysctl("net.mptcp.enabled", 1)

    with bench.near.entered():
        loop = asyncio.get_running_loop()
        async with LinkMonitor() as links, FlowMonitor(links.is_local) as flows:
            with (
                await serve(bench, socket.AF_INET, socket.SOCK_STREAM, MPTCP) as listener,
                socket.socket(socket.AF_INET, socket.SOCK_STREAM, MPTCP) as mptcp,
                socket.socket(socket.AF_INET, socket.SOCK_STREAM) as plain,
            ):
                listener.listen()
                tokens = {}
                for own in (mptcp, plain):
                    own.connect((HOSTS[socket.AF_INET], 7000))
                    own.setblocking(False)
                    peer, _ = await loop.sock_accept(listener)
                    with peer:
                        await loop.sock_sendall(own, bytes(3_000))
                        await received(peer, 3_000)
                        port = own.getsockname()[1]
                        (sample,) = [s for s in await flows.snapshot() if s.key.local_port == port]
                        assert sample.bytes_up >= 3_000
                        assert sample.rtt_s is not None
                        assert sample.state == 1
                        tokens[own] = sample.token
                assert tokens[plain] is None
                assert tokens[mptcp]


async def test_of_a_user_with_many_sockets_some_are_read_and_of_others_all(bench):
    """36,000 connections to the host's own address, opened within a second, took the daemon 380 MB."""
    process_limits.allow(4_000)
    with bench.near.entered(), ExitStack() as held:
        listener = held.enter_context(socket.create_server(("10.9.1.2", 0), backlog=2_000))
        on_loopback = held.enter_context(socket.create_server(("127.0.0.1", 0)))
        for where in (*1_200 * [listener], on_loopback):
            held.enter_context(socket.create_connection(where.getsockname()))
        other = held.enter_context(socket.socket())
        os.fchown(other.fileno(), 70_001, 70_001)  # another user's from now on
        other.connect(listener.getsockname())
        source = KernelFlows()
        held.callback(source.close)
        found = [facts.key for facts in await source.sockets()]
        assert len(found) == MOST_OF_USER + 1
        assert other.getsockname()[1] in {key.local_port for key in found}
        kernel = LinuxKernel()
        held.callback(kernel.close)
        assert len(kernel.sockets()) == MOST_OF_USER + 1


async def test_a_udp_flow_closes_with_its_bytes(bench):
    track(bench.near)
    bench.near.sysctl("net.netfilter.nf_conntrack_udp_timeout", 1)
    bench.near.sysctl("net.netfilter.nf_conntrack_udp_timeout_stream", 1)

    with bench.near.entered():
        loop = asyncio.get_running_loop()
        async with LinkMonitor() as links, FlowMonitor(links.is_local) as flows:
            events = flows.events()
            with (
                await serve(bench, socket.AF_INET, socket.SOCK_DGRAM) as answerer,
                socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker,
            ):
                asker.setblocking(False)
                await loop.sock_sendto(asker, bytes(100), (HOSTS[socket.AF_INET], 7000))
                _, peer = await loop.sock_recvfrom(answerer, 2_000)
                await loop.sock_sendto(answerer, bytes(1_000), peer)
                await loop.sock_recv(asker, 2_000)
                port = asker.getsockname()[1]
            opened = await first_of(events, lambda e: e.key.local_port == port)
            assert opened.key.protocol == "udp"
            await asyncio.sleep(1.2)
            # The kernel looks for what timed out every minute or so, or when somebody asks.
            asking = AsyncRequester(NETLINK_NETFILTER)
            await asking.dump(conntrack.GET, conntrack.dump_request())
            asking.close()
            closed = await first_of(events, lambda e: e.key.local_port == port)
            assert isinstance(closed, FlowClosed)
            assert (closed.bytes_up, closed.bytes_down) == (128, 1_028)
            assert closed.exact


async def test_without_connection_tracking_ends_still_show(bench):
    with bench.near.entered():
        async with LinkMonitor() as links, FlowMonitor(links.is_local) as flows:
            assert "connection tracking is not active for IPv4 and IPv6" in flows.problem
            events = flows.events()
            port = await download(bench, socket.AF_INET, 10_000, 10)
            first = await first_of(events, lambda e: e.key.local_port == port)
            assert isinstance(first, FlowClosed)
            assert first.bytes_down >= 10_000
            assert first.started_unix_s is None
            track(bench.near)
            assert await flows.check_tracking() == ""
            port = await download(bench, socket.AF_INET6, 10_000, 10)
            first = await first_of(events, lambda e: e.key.local_port == port)
            assert isinstance(first, FlowOpened)


def test_an_overflow_is_counted_and_made_good(bench):
    track(bench.near)

    async def scenario():
        loop = asyncio.get_running_loop()
        async with LinkMonitor() as links, FlowMonitor(links.is_local) as flows:
            events = flows.events()
            with await serve(bench, socket.AF_INET, socket.SOCK_STREAM) as listener:
                listener.listen()
                living = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
                living.setblocking(False)
                await loop.sock_connect(living, (HOSTS[socket.AF_INET], 7000))
                opened = await first_of(events, lambda e: True)
                # More datagram flows, at once and without giving the monitor a turn, than fit.
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as flood:
                    for port in range(1, 40_000):
                        flood.sendto(b"", (HOSTS[socket.AF_INET], port))
                    living.close()  # its end comes through the other socket, or by comparison
                async with asyncio.timeout(30):
                    while not flows.overflows:
                        await asyncio.sleep(0.05)
                closed = await first_of(
                    events, lambda e: e.key == opened.key and isinstance(e, FlowClosed)
                )
                assert isinstance(closed, FlowClosed)
                port = await download_more(listener)
                await first_of(events, lambda e: e.key.local_port == port)

    async def download_more(listener):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as own:
            own.setblocking(False)
            await asyncio.get_running_loop().sock_connect(own, (HOSTS[socket.AF_INET], 7000))
            return int(own.getsockname()[1])

    with bench.near.entered():
        asyncio.run(scenario())


@pytest.mark.parametrize("protocol", [0, MPTCP], ids=["tcp", "mptcp"])
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
async def test_the_mark_of_a_living_socket(bench, family, protocol):
    with bench.near.entered():
        async with LinkMonitor() as links, FlowMonitor(links.is_local) as flows:
            for mark in (0, 0xCE00_0007):
                with (
                    await serve(bench, family, socket.SOCK_STREAM, protocol) as listener,
                    socket.socket(family, socket.SOCK_STREAM, protocol) as own,
                ):
                    listener.listen()
                    own.setsockopt(
                        socket.SOL_SOCKET, socket.SO_MARK, mark.to_bytes(4, sys.byteorder)
                    )
                    own.connect((HOSTS[socket.AddressFamily(family)], 7000))
                    near, far = own.getsockname(), own.getpeername()
                    key = FlowKey(ip_address(near[0]), near[1], ip_address(far[0]), far[1])
                    assert await flows.mark(key) == (mark or None)
                    assert await flows.mark(replace(key, local_port=1)) is None
