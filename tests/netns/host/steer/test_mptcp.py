"""Living MPTCP connections: a spare path over the other network, moved at a word."""

import asyncio
import json
from ipaddress import ip_address
from pathlib import Path

import pytest
from kit.steered import steered, steering_of

from cedos.errors import SteeringError
from cedos.host.steer.steering import Steering
from cedos.model import Strategy, StrategyKind

MPTCP = 262
both = pytest.mark.parametrize("version", [4, 6])


def single(name):
    return Strategy(StrategyKind.SINGLE, (name,))


def path_manager(host):
    """Return the path manager by the kernel's name for it (a number before Linux 6.15)."""
    number = host.client.sysctl("net.mptcp.pm_type")
    said = {"0": "kernel", "1": "userspace"}[number]
    if Path("/proc/sys/net/mptcp/path_manager").exists():
        assert host.client.sysctl("net.mptcp.path_manager") == said
    return said


def received_bytes(host):
    """Return the bytes that the server has received on each of its interfaces."""
    links = json.loads(host.server.ip("-j", "-s", "link"))
    return {link["ifname"]: link["stats64"]["rx"]["bytes"] for link in links[1:]}


async def exchange(connection, size=200_000):
    """Sends so many bytes and reads them back."""

    def run():
        sent = 0
        while sent < size:
            connection.sendall(b"x" * 10_000)
            due = 10_000
            while due:
                got = len(connection.recv(due))
                assert got, "the connection broke"
                due -= got
            sent += 10_000

    await asyncio.to_thread(run)


async def carrier(host, connection):
    """Over which network the connection's data goes."""
    before = received_bytes(host)
    await exchange(connection)
    gained = {name: n - before[name] for name, n in received_bytes(host).items()}
    most = max(gained, key=lambda name: gained[name])
    assert gained[most] > 150_000
    assert sum(gained.values()) - gained[most] < 50_000
    return most


@both
@steered(default="wlan0")
async def test_a_spare_path_is_there_and_takes_over_at_a_word(host, steering, version):
    living = await asyncio.to_thread(host.connect, version, MPTCP)
    await exchange(living, 10_000)
    await host.until(lambda: any(len(c.subflows) == 2 for c in steering.connections.values()))
    (connection,) = steering.connections.values()
    spare = connection.subflow("lte0")
    assert spare.backup
    assert spare.key.local == ip_address(host.address("lte0", version))
    assert await carrier(host, living) == "wlan0"
    for name in ("lte0", "wlan0", "lte0"):
        steering.steer_connection(connection.token, single(name))
        await asyncio.sleep(0.1)
        assert await carrier(host, living) == name
    assert not steering.connections[connection.token].subflow("lte0").backup
    living.close()
    await host.until(lambda: not steering.connections)


@steered()
async def test_both_networks_at_once(host, steering):
    living = await asyncio.to_thread(host.connect, 4, MPTCP)
    await exchange(living, 10_000)
    await host.until(lambda: any(len(c.subflows) == 2 for c in steering.connections.values()))
    (token,) = steering.connections
    steering.steer_connection(token, Strategy(StrategyKind.MPTCP, ("wlan0", "lte0")))
    assert not any(path.backup for path in steering.connections[token].subflows)
    await exchange(living)


@both
@steered()
async def test_a_network_that_vanishes_in_mid_flow_is_left_and_joined_again(
    host, steering, version
):
    living = await asyncio.to_thread(host.connect, version, MPTCP)
    await exchange(living, 10_000)
    await host.until(lambda: any(len(c.subflows) == 2 for c in steering.connections.values()))
    (token,) = steering.connections
    host.client.ip("link", "set", "wlan0", "down")
    await steering.networks_changed(host.networks("wlan0"))
    assert await carrier(host, living) == "lte0"
    assert [path.network for path in steering.connections[token].subflows] == ["lte0"]
    host.client.ip("link", "set", "wlan0", "up")
    if version == 6:  # IPv6 forgets an address with its interface
        host.client.ip("addr", "replace", f"{host.address('wlan0', 6)}/64", "dev", "wlan0", "nodad")
    await steering.networks_changed(host.networks())
    await host.until(lambda: steering.connections[token].subflow("wlan0"))
    steering.steer_connection(token, single("wlan0"))
    await asyncio.sleep(0.1)
    assert await carrier(host, living) == "wlan0"


@pytest.mark.parametrize("home", ["wlan0", "lte0"])
@steered()
async def test_what_creeps_on_a_path_is_sent_again_on_the_other_when_it_is_given_up(
    host, steering, home
):
    """It does not matter whether the fading path was the connection's first one (address number 0)."""
    steering.set_default(home)
    living = await asyncio.to_thread(host.connect, 4, MPTCP)
    await exchange(living, 10_000)
    await host.until(lambda: any(len(c.subflows) == 2 for c in steering.connections.values()))
    (token,) = steering.connections
    steering.steer_connection(token, single("wlan0"))
    # What is sent there now takes seconds; what is sent again takes a millisecond.
    creeping = ("tbf", "rate", "20kbit", "burst", "3k", "limit", "1m")
    host.server.run("tc", "qdisc", "add", "dev", "wlan0", "root", *creeping)
    sending = asyncio.to_thread(living.sendall, b"x" * 400_000)
    reading = asyncio.create_task(asyncio.to_thread(read, living, 400_000))
    await sending
    await asyncio.sleep(0.5)
    assert not reading.done()
    steering.steer_connection(token, single("lte0"))
    steering.release(token, "wlan0")
    async with asyncio.timeout(0.4):
        await reading
    assert steering.connections[token].subflow("wlan0") is None
    # It is joined again, as a spare one.
    host.server.run("tc", "qdisc", "del", "dev", "wlan0", "root")
    await host.until(lambda: steering.connections[token].subflow("wlan0"))
    assert steering.connections[token].subflow("wlan0").backup
    steering.steer_connection(token, single("wlan0"))
    await asyncio.sleep(0.1)
    assert await carrier(host, living) == "wlan0"


def read(connection, size):
    """Reads so many bytes."""
    while size:
        got = len(connection.recv(size))
        assert got, "the connection broke"
        size -= got


def test_events_tell_the_life_of_a_connection(host):
    async def body():
        async with steering_of(host) as steering:
            seen = []

            async def listen():
                async for event in steering.events():
                    seen.extend([(type(event).__name__, event.spare)])

            listening = asyncio.create_task(listen())
            await asyncio.sleep(0)
            living = await asyncio.to_thread(host.connect, 4, MPTCP)
            await exchange(living, 10_000)
            await host.until(lambda: ("SubflowUp", True) in seen)
            living.close()
            await host.until(lambda: seen[-1][0] == "ConnectionClosed")
            assert seen[0] == ("ConnectionOpened", False)
        await asyncio.wait_for(listening, 5)

    host.run(body)


def test_connections_under_the_kernels_own_path_manager_are_left_alone(host):
    async def body():
        older = await asyncio.to_thread(host.connect, 4, MPTCP)
        await exchange(older, 10_000)
        async with steering_of(host) as steering:
            (connection,) = steering.connections.values()
            assert "kernel's own" in connection.unsteerable
            with pytest.raises(SteeringError, match="left alone"):
                steering.steer_connection(connection.token, single("lte0"))
            await exchange(older, 10_000)
            assert len(steering.connections[connection.token].subflows) == 1

    host.run(body)


@steered()
async def test_connections_to_this_host_and_local_networks_are_left_alone(host, steering):
    living = await asyncio.to_thread(host.connect, 4, MPTCP, to="192.168.43.1")
    await exchange(living, 10_000)
    await host.until(lambda: steering.connections)
    (connection,) = steering.connections.values()
    assert "route of its own" in connection.unsteerable


def test_a_connection_outlives_a_steering_that_is_killed_and_the_next_one_steers_it(host):
    async def body():
        first = Steering(host.directory)
        await first.__aenter__()
        await first.networks_changed(host.networks())
        living = await asyncio.to_thread(host.connect, 4, MPTCP)
        await exchange(living, 10_000)
        await host.until(lambda: any(len(c.subflows) == 2 for c in first.connections.values()))
        (token,) = first.connections
        # As kill -9 leaves it: nothing undone, the sockets and the lock gone.
        first._repairing.cancel()
        first._kernel.close()
        first._connections.close()
        first._journal.close()
        async with Steering(host.directory) as second:
            await second.networks_changed(host.networks())
            assert second.connections[token].unsteerable is None
            second.steer_connection(token, single("lte0"))
            await asyncio.sleep(0.1)
            assert await carrier(host, living) == "lte0"

    host.run(body)


def test_the_kernels_path_manager_is_in_charge_again_behind_the_block(host):
    async def body():
        assert path_manager(host) == "kernel"
        async with Steering(host.directory):
            assert path_manager(host) == "userspace"
        assert path_manager(host) == "kernel"

    host.run(body)


def test_a_living_connection_is_moved_to_the_hosts_own_default_at_the_end(host):
    async def body():
        async with steering_of(host, default="lte0") as steering:
            living = await asyncio.to_thread(host.connect, 4, MPTCP)
            await exchange(living, 10_000)
            await host.until(
                lambda: any(len(c.subflows) == 2 for c in steering.connections.values())
            )
            assert await carrier(host, living) == "lte0"
        await asyncio.sleep(0.1)
        assert await carrier(host, living) == "wlan0"

    host.run(body)


def test_another_path_manager_is_reported_and_who_writes_endpoints_is_not(host):
    async def body():
        host.client.ip("mptcp", "endpoint", "add", "192.168.44.2", "dev", "lte0", "subflow")
        async with steering_of(host) as steering:
            assert steering.problems == (), "they are not used meanwhile"
        assert "192.168.44.2" in host.client.ip("mptcp", "endpoint")
        host.client.ip("mptcp", "endpoint", "flush")
        host.client.sysctl("net.mptcp.pm_type", 1)
        async with steering_of(host) as steering:
            assert any("another program (mptcpd?)" in text for text in steering.problems)
            # Everything else works.
            steering.set_default("lte0")
            assert host.seen_tcp(4) == host.address("lte0", 4)
        assert path_manager(host) == "userspace"

    host.run(body)


def test_without_mptcp_everything_else_works(host):
    async def body():
        host.client.sysctl("net.mptcp.enabled", 0)
        async with steering_of(host) as steering:
            assert any("MPTCP is disabled" in text for text in steering.problems)
            steering.set_default("lte0")
            assert host.seen_tcp(4) == host.address("lte0", 4)

    host.run(body)
