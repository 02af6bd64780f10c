"""Steering as the daemon uses it, on a kernel in memory."""

import asyncio
import errno
import time
from dataclasses import replace
from ipaddress import ip_address

import pytest
from kit.waiting import until

from cedos.errors import HostError, PrivilegeError, SteeringError
from cedos.host.steer.mptcp.connection import ConnectionLeft, ConnectionOpened, SubflowUp
from cedos.host.steer.steering import Steering
from cedos.kernel.mptcp import DestroySubflow, MptcpEvent, MptcpEventKind, SetBackup
from cedos.kernel.sock_diag import TcpSocket
from cedos.model import Strategy, StrategyKind


def single(name):
    return Strategy(StrategyKind.SINGLE, (name,))


async def spare(world, token=7):
    """A connection with a spare path."""
    event = world.established(token)
    world.kernel.tell_mptcp(event)
    await until(world.kernel.created)
    up = world.came_up(world.kernel.created()[-1])
    world.kernel.tell_mptcp(up)
    return event.key, up.key


async def test_networks_are_followed_while_routes_come_faster_than_they_can_be_read(
    world, steering, monkeypatch
):
    steering.set_default("wlan0")
    reads = []

    def routes(protocol=0):
        reads.append(protocol)
        raise TimeoutError

    with monkeypatch.context() as flooded:
        flooded.setattr(world.kernel, "routes", routes)
        before = list(world.kernel.own)
        await steering.networks_changed([replace(world.wlan0, addresses=()), world.lte0])
        assert world.kernel.own != before
        assert reads
    # Once a second it is tried again, and then nothing is stale.
    await until(lambda: not steering._routing.stale)


async def test_a_living_connection_is_moved(world, steering):
    first, second = await spare(world)
    world.kernel.steered.clear()
    steering.steer_connection(7, single("lte0"))
    moved = [SetBackup(7, second, False), SetBackup(7, first, True)]
    assert world.kernel.steered == moved
    # Once more, in case the packet with the flag was lost.
    await until(lambda: world.kernel.steered == [*moved, *moved])


async def test_flags_that_the_kernel_refuses_at_first_are_set_again(world, steering):
    _, second = await spare(world)
    refusals = iter([OSError(errno.EINVAL, "subflow not found")] * 3)
    world.kernel.steered.clear()
    accept = world.kernel.steer

    def steer(commands):
        results = accept(commands)
        both = zip(commands, results, strict=True)
        return [next(refusals, None) if c.key == second else result for c, result in both]

    world.kernel.steer = steer
    steering.steer_connection(7, single("lte0"))
    await until(lambda: world.kernel.steered.count(SetBackup(7, second, False)) == 4)


async def test_a_refusal_for_another_reason_is_an_error(world, steering):
    await spare(world)
    world.kernel.steer = lambda commands: [OSError(errno.EPERM, "no")] * len(commands)
    with pytest.raises(SteeringError, match="refuses to move"):
        steering.steer_connection(7, single("lte0"))


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"server_side": True}, "other end opened it"),
        ({"joinable": False}, "forbids"),
        ({"local": "10.8.0.2"}, "no access network"),
        ({"remote": "192.168.43.7"}, "route of its own"),
    ],
)
async def test_what_is_left_alone_and_why(world, steering, how, why):
    event = world.established(7)
    key = replace(event.key, **{k: ip_address(how.pop(k)) for k in ("local", "remote") if k in how})
    world.kernel.tell_mptcp(replace(event, key=key, **how))
    assert why in steering.connections[7].unsteerable
    with pytest.raises(SteeringError, match="left alone"):
        steering.steer_connection(7, single("lte0"))
    assert world.kernel.steered == []


async def test_the_kernel_is_asked_before_the_first_command_whether_we_may_steer(world, steering):
    asked, told, ours_to_steer = [], [], world.kernel.ours_to_steer
    world.kernel.ours_to_steer = lambda token: asked.append(token) or ours_to_steer(token)
    world.kernel.kernels_own.add(7)

    async def listen() -> None:
        told.extend([(type(event), event.token) async for event in steering.events()])

    listening = asyncio.create_task(listen())
    await asyncio.sleep(0)
    for token in (6, 7, 8):
        world.kernel.tell_mptcp(world.established(token))
    world.kernel.tell_mptcp(MptcpEvent(MptcpEventKind.CLOSED, 6))
    assert asked == []
    with pytest.raises(SteeringError, match="left alone: it was made under the kernel's own"):
        steering.steer_connection(7, single("lte0"))
    # It gets no spare, as the other one does.
    await until(world.kernel.created)
    await asyncio.sleep(0)
    assert {command.token for command in world.kernel.steered} == {8}
    steering.steer_connection(8, single("lte0"))
    assert asked == [7, 8]
    steering._connections.close()
    await asyncio.wait_for(listening, 5)
    assert (ConnectionLeft, 7) in told


async def test_events_begin_with_what_lives_and_end_with_steering(world, tmp_path):
    seen = []

    async def listen(steering):
        async for event in steering.events():
            seen.extend([event])

    async with Steering(tmp_path, kernel=world.kernel) as steering:
        await steering.networks_changed([world.wlan0, world.lte0])
        world.kernel.tell_mptcp(world.established(7))
        listening = asyncio.create_task(listen(steering))
        await until(lambda: len(seen) == 1)
        assert isinstance(seen[0], ConnectionOpened)
        await until(world.kernel.created)
        world.kernel.tell_mptcp(world.came_up(world.kernel.created()[0]))
        await until(lambda: len(seen) == 2)
        assert isinstance(seen[1], SubflowUp)
        assert (seen[1].token, seen[1].spare) == (7, True)
    await asyncio.wait_for(listening, 5)
    assert [event async for event in steering.events()] == []


async def test_connections_from_before_are_found_and_lost_events_are_made_up_for(world, tmp_path):
    old, mine = world.established(5), world.established(6)
    world.kernel.kernels_own.add(5)
    world.kernel.all_sockets = [
        TcpSocket(old.key, False, 5),
        TcpSocket(mine.key, False, 6),
        TcpSocket(world.established(9).key, False, None),
    ]
    async with Steering(tmp_path, kernel=world.kernel) as steering:
        assert steering.connections == {}
        await steering.networks_changed([world.wlan0, world.lte0])
        assert "kernel's own" in steering.connections[5].unsteerable
        assert steering.connections[6].unsteerable is None
        world.kernel.all_sockets = world.kernel.all_sockets[1:]
        world.kernel.tell_loss()
        assert set(steering.connections) == {6}


async def test_a_network_that_vanishes_is_left_by_living_connections(world, steering):
    first, second = await spare(world)
    await steering.networks_changed([world.down(world.wlan0), world.lte0])
    assert world.kernel.steered[-2:] == [SetBackup(7, second, False), DestroySubflow(7, first)]
    world.kernel.tell_mptcp(MptcpEvent(MptcpEventKind.CLOSED, 7))
    assert steering.connections == {}


async def test_at_the_end_living_connections_go_to_the_hosts_own_default(world, tmp_path):
    async with Steering(tmp_path, kernel=world.kernel) as steering:
        await steering.networks_changed([world.wlan0, world.lte0])
        first, second = await spare(world)
        steering.steer_connection(7, single("lte0"))
        plain = world.established(8, world.lte0).key
        world.kernel.all_sockets = [
            TcpSocket(first, False, 7, backup=True),
            TcpSocket(second, False, 7, local_id=1),
            TcpSocket(plain, False),
        ]
        world.kernel.steered.clear()
    assert world.kernel.steered == [SetBackup(7, first, False), SetBackup(7, second, True)]


@pytest.mark.parametrize(
    ("sysctls", "words"),
    [
        ({"net.mptcp.enabled": None}, "has no MPTCP"),
        ({"net.mptcp.enabled": "0"}, "MPTCP is disabled"),
        ({"net.mptcp.path_manager": "userspace"}, "another program"),
        ({"net.mptcp.path_manager": None}, "cannot be managed by a program"),
    ],
)
async def test_without_mptcp_the_rest_works_and_problems_tell_why(world, tmp_path, sysctls, words):
    for key, value in sysctls.items():
        world.kernel.sysctls.pop(key)
        if value is not None:
            world.kernel.sysctls[key] = value
    before = dict(world.kernel.sysctls)
    async with Steering(tmp_path, kernel=world.kernel, filter_flows=False) as steering:
        await steering.networks_changed([world.wlan0, world.lte0])
        steering.set_default("lte0")
        steering.paths_measured({"wlan0": (20e6, 0.02), "lte0": (10e6, 0.06)})
        assert world.carrier() == "lte0"
        assert any(words in problem for problem in steering.problems)
        world.kernel.tell_mptcp(world.established(7))
        assert steering.connections[7].unsteerable is not None
        changed = {key for key in before if world.kernel.sysctls[key] != before[key]}
        assert all("use_oif_addrs_only" in key for key in changed)


async def test_a_kernel_without_events_or_packet_filter_is_reported(world, tmp_path):
    def no_events(*_):
        raise HostError("no events here")

    def no_filter(*_):
        raise OSError(errno.EOPNOTSUPP, "not supported")

    world.kernel.watch = no_events
    world.kernel.track_flows = no_filter
    async with Steering(tmp_path, kernel=world.kernel) as steering:
        assert any("no events here" in problem for problem in steering.problems)
        assert any("iptables" in problem for problem in steering.problems)
        await steering.networks_changed([world.wlan0, world.lte0])
        steering.set_default("lte0")
        assert world.carrier() == "lte0"


async def test_a_refusal_at_the_start_leaves_nothing(world, tmp_path):
    before = world.picture()
    world.kernel.track_flows = lambda *_: (_ for _ in ()).throw(OSError(errno.EPERM, "no"))
    write = world.kernel.write_sysctl

    def refuse(key, value):
        if value == "userspace":
            raise OSError(errno.EACCES, "no")
        write(key, value)

    world.kernel.write_sysctl = refuse
    with pytest.raises(PrivilegeError):
        async with Steering(tmp_path, kernel=world.kernel):
            pass
    assert world.picture() == before
    assert [path.name for path in tmp_path.iterdir()] == ["journal.lock"]


async def test_somebody_changes_the_routing_and_it_is_followed(world, steering):
    steering.set_default("lte0")
    world.kernel.own.clear()
    world.kernel.tell_routing()
    world.kernel.tell_routing()
    await until(lambda: world.carrier() == "lte0")


async def test_the_window_grows_while_a_connection_uses_both(world, steering):
    paths = {"wlan0": (20e6, 0.02), "lte0": (10e6, 0.06)}
    await spare(world)
    steering.paths_measured(paths)
    alone = most(world)
    steering.steer_connection(7, Strategy(StrategyKind.MPTCP, ("wlan0", "lte0")))
    assert most(world) > alone
    steering.steer_connection(7, single("wlan0"))
    assert most(world) == alone
    # More raises it; less does not lower it at once.
    steering.paths_measured({name: (rate * 4, rtt) for name, (rate, rtt) in paths.items()})
    more = most(world)
    assert more > alone
    steering.paths_measured(paths)
    assert most(world) == more


def most(world):
    return int(world.kernel.sysctls["net.ipv4.tcp_rmem"].split()[-1])


async def test_closing_twice_and_using_it_afterwards(world, tmp_path):
    steering = Steering(tmp_path, kernel=world.kernel)
    async with steering:
        pass
    await steering.close()
    with pytest.raises(SteeringError, match="closed"):
        await steering.networks_changed([])


async def test_costly_looks_at_the_routes_are_far_apart(world, steering):
    """A neighbour that announces 100,000 prefixes had them read again without a pause."""
    looks = 0

    def routes(protocol=0):
        nonlocal looks
        looks += 1
        until_s = time.thread_time() + 0.03
        while time.thread_time() < until_s:
            pass
        return read(protocol)

    read, world.kernel.routes = world.kernel.routes, routes
    began_s = time.monotonic()
    for _ in range(60):
        world.kernel.tell_routing()
        await asyncio.sleep(0.01)
    # Between two looks is a pause of nine times 0.03 s at least.
    assert 1 <= looks <= 2 + (time.monotonic() - began_s) / 0.27
