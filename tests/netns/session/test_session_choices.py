"""A daemon's choices for a session, and probes of paths that rest."""

import asyncio
import statistics
import time
from collections import defaultdict

import pytest

from cedos.api.asking import DaemonChooser
from cedos.budget_kinds import Resource
from cedos.commands.console.user_rules import RuledNetworks
from cedos.controller.rule import RuleRequest
from cedos.model import Budget, Bulk, Every, Label, Urgency
from cedos.session.io import links
from cedos.session.protocol.life import SessionLimits
from tests.netns.session.conftest import PORT, SERVER

pytestmark = pytest.mark.netns

BULK = Label(Urgency.BACKGROUND, Bulk.LARGE)
WEIGHTED = """
[decision]
objective = "balanced"
phone = "only without Wi-Fi"
"""


def carried(connection):
    """Bytes that each path's connection has carried."""
    return {path.facts.network: path.sent_bytes for path in connection.flow.core.paths}


def labels(connection):
    """Return the labels that may use each path."""
    return {path.facts.network: path.allowed for path in connection.flow.core.paths}


async def send(connection, wanted):
    """Background data until something is so."""
    async with asyncio.timeout(60):
        while not wanted():
            await connection.send(bytes(50_000), BULK, after=())


async def discard(listener, found):
    connection = await listener.accept()
    found.append(connection)
    while await connection.receive() is not None:
        pass


WIFI_ONLY = {"wlan0": 0b1111, "lte0": 0b0111}
BOTH = {"wlan0": 0b1111, "lte0": 0b1111}


def test_a_session_keeps_to_what_the_daemon_chooses(world, install):
    cedos = install(world.near, WEIGHTED)
    world.shape("20mbit")
    listener = world.listen()
    far = []
    world.server.start(discard(listener, far))

    async def scenario(process):
        near = await world.connect(chooser=DaemonChooser(cedos.socket))
        await send(near, lambda: labels(near) == WIFI_ONLY)
        await asyncio.sleep(1.0)
        before = carried(near)
        await send(near, lambda: carried(near)["wlan0"] > before["wlan0"] + 1_000_000)
        # (What is left there are acknowledgements and words about paths.)
        assert carried(near)["lte0"] < before["lte0"] + 20_000
        assert labels(far[0]) == {"10.9.1.2": 0b1111, "10.9.2.2": 0b0111}
        # The chosen network dies without a word: the flow goes on over the other one.
        silent = "tc qdisc replace dev wlan0 root tbf rate 8bit burst 1b limit 1b"
        world.near.run(*silent.split())
        before = carried(near)
        await send(near, lambda: carried(near).get("lte0", 0) > before["lte0"] + 500_000)
        world.shape("20mbit")
        await send(near, lambda: labels(near) == WIFI_ONLY)
        process.kill()
        await send(near, lambda: labels(near) == BOTH)
        near.abort()
        await near.wait_drained()

    with cedos.up("--dry-run") as process:
        world.client.do(scenario(process), 250)
    world.server.do(listener.close())


def test_a_session_hears_of_rules_and_walls_at_once(world, install):
    """They asked every two seconds, and used what was forbidden until then."""
    cedos = install(world.near, WEIGHTED.replace("only without Wi-Fi", "freely"))
    world.shape("20mbit")
    listener = world.listen()
    world.server.start(discard(listener, []))
    rule = RuleRequest(host=SERVER, never=("lte0",))
    wall = Budget("wall", Resource.DATA, 1.0, "2099-12-01T00:00:00", every=Every.MONTH, hard=True)
    waited_s = defaultdict(list)

    async def scenario():
        ruled = RuledNetworks(cedos.socket)
        await ruled.follow()
        near = await world.connect(
            chooser=DaemonChooser(cedos.socket),
            networks=lambda egress, address: not ruled.refusal(egress, (SERVER, PORT), address),
        )

        async def hears(what, change, *arguments, both):
            for _ in range(9):  # no multiple of the seconds that it once waited for
                await send(near, lambda: True)
                await asyncio.sleep(0.05)
            began_s = time.monotonic()
            changing = asyncio.ensure_future(asyncio.to_thread(change, *arguments))
            await send(near, lambda: ("lte0" in labels(near)) is both)
            waited_s[what].append(time.monotonic() - began_s)
            await changing

        await send(near, lambda: len(labels(near)) == 2)
        for _ in range(3):
            await hears("a rule", cedos.client.add_rule, rule, both=False)
            await hears("no rule", cedos.client.remove_rule, 1, both=True)
            await hears("a wall", cedos.client.set_budget, wall, both=False)
            await hears("no wall", cedos.client.remove_budget, "wall", both=True)
        near.abort()
        await near.wait_drained()
        await ruled.close()

    with cedos.up():
        world.client.do(scenario(), 250)
    world.server.do(listener.close())
    print(dict(waited_s))
    assert max(map(statistics.median, waited_s.values())) < 0.5, waited_s


def test_without_a_daemon_nothing_is_missed(world, tmp_path):
    listener = world.listen()
    world.server.start(discard(listener, []))

    async def scenario():
        near = await world.connect(chooser=DaemonChooser(tmp_path / "control.sock"))
        await send(near, lambda: len(carried(near)) == 2 and min(carried(near).values()) > 100_000)
        assert labels(near) == BOTH
        near.abort()
        await near.wait_drained()

    world.client.do(scenario(), 90)
    world.server.do(listener.close())


pytestmark = pytest.mark.netns

RATES = {"wlan0": 20e6, "lte0": 4e6}
TRIES = 3


def shape(world):
    """A bucket of two packets: a short burst is no quicker than the link."""
    for where in (world.near, world.far):
        for name, rate_bps in RATES.items():
            qdisc = (
                f"tc qdisc replace dev {name} root tbf rate {rate_bps:.0f}bit burst 3100 latency 1s"
            )
            where.run(*qdisc.split())


async def measured(connection):
    """Return the indicators of both networks once both were probed."""
    async with asyncio.timeout(20):
        while True:
            facts = [path.facts for path in connection.flow.core.paths]
            if len(facts) == 2 and all(each.rate_at_s is not None for each in facts):
                return {each.network: each.rate_bps or 0.0 for each in facts}
            await asyncio.sleep(0.05)


def probed(connection):
    core = connection.flow.core
    return {path.facts.network: path.path_id in core.prober.probes for path in core.paths}


def test_two_unused_networks_are_told_apart(world, monkeypatch):
    monkeypatch.setattr(links, "user_overrides", lambda: {"lte0": {"metered": False}})
    shape(world)
    listener = world.listen()
    names = {"10.9.1.2": "wlan0", "10.9.2.2": "lte0"}
    found = {}
    for _ in range(TRIES):
        accepted = world.server.start(listener.accept())
        near, far = world.client.do(world.connect()), accepted.result(20)
        there, here = world.server.do(measured(far)), world.client.do(measured(near))
        for name, rate_bps in here.items():
            found.setdefault((name, "up"), []).append(rate_bps)
        for address, rate_bps in there.items():
            found.setdefault((names[address], "down"), []).append(rate_bps)
        for connection in (near, far):
            assert all(path.sent_bytes == 0 for path in connection.flow.core.paths)
        world.client.do(near_end(near))
    rates = {what: statistics.median(each) for what, each in found.items()}
    for way in ("up", "down"):
        assert rates["wlan0", way] > rates["lte0", way]
        for name, rate_bps in RATES.items():
            assert rate_bps / 2 < rates[name, way] < rate_bps * 2


async def near_end(connection):
    connection.abort()


def test_what_costs_money_is_not_probed_for_nothing_and_nothing_is_where_it_is_off(world):
    """`lte0` is metered by its name, and the session has sent nothing."""
    shape(world)
    listener = world.listen(limits=SessionLimits(probes=False))
    accepted = world.server.start(listener.accept())

    async def scenario():
        near = await world.connect()
        async with asyncio.timeout(20):
            while not any(path.facts.rate_at_s is not None for path in near.flow.core.paths):
                await asyncio.sleep(0.05)
        await asyncio.sleep(1.0)
        assert probed(near) == {"wlan0": True, "lte0": False}
        assert probed(accepted.result(0)) == {"10.9.1.2": False, "10.9.2.2": False}
        near.abort()

    world.client.do(scenario())
