"""The prober and its schedule, with pings that a test answers."""

import asyncio
import time
from dataclasses import replace
from ipaddress import ip_address, ip_interface

import pytest
from kit.monitor import played_pinger

from cedos.errors import PrivilegeError
from cedos.host.monitor.probing import dns_probe
from cedos.host.monitor.probing.ping import PING_BYTES
from cedos.host.monitor.probing.prober import Prober
from cedos.host.monitor.probing.probes import (
    ProbeKind,
    ProbeOutcome,
    ProbeSchedule,
    Spent,
)
from cedos.model import Network, NetworkKind, NextHop

TARGET = ip_address("198.51.100.1")
WIFI = Network("home", "wlan0", 1, NetworkKind.WIFI, False)
LTE = Network("phone", "lte0", 2, NetworkKind.CELLULAR, True)
DOWN = Network("phone", "lte0", 2, NetworkKind.CELLULAR, True, up=False)


def test_a_network_in_use_is_pinged_more_often():
    schedule = ProbeSchedule(in_use_s=1.0, idle_s=5.0)
    assert schedule.next_s() is None
    schedule.networks_changed([WIFI, LTE])
    schedule.in_use(["home"])
    assert schedule.take_due(100.0) == ["home", "phone"]
    assert schedule.take_due(100.9) == []
    assert schedule.next_s() == 101.0
    pings = [name for tenth in range(1, 101) for name in schedule.take_due(100.0 + tenth / 10)]
    assert pings.count("home") == 10
    assert pings.count("phone") == 2
    schedule.in_use(["phone"])
    assert schedule.take_due(111.0) == ["phone"]


def test_nobody_at_the_screen_lets_idle_networks_rest():
    schedule = ProbeSchedule(in_use_s=1.0, idle_s=5.0, away=10.0)
    schedule.networks_changed([WIFI, LTE])
    schedule.user_present(False)
    assert schedule.take_due(100.0) == ["home", "phone"]
    assert schedule.take_due(149.0) == []
    assert schedule.take_due(150.0) == ["home", "phone"]
    # What carries something is watched as ever, and so is what did not answer.
    schedule.in_use(["home"])
    schedule.on_answer("phone", False)
    assert schedule.take_due(152.0) == ["home"]
    assert schedule.take_due(155.0) == ["home", "phone"]
    schedule.on_answer("phone", True)
    schedule.in_use([])
    assert schedule.take_due(170.0) == []
    schedule.user_present(True)
    assert schedule.take_due(170.0) == ["home", "phone"], "who comes back wants to know"


async def test_who_comes_back_has_all_networks_pinged_at_once():
    played = played_pinger({"wlan0": 0.005, "lte0": 0.005})
    schedule = ProbeSchedule(0.05, 0.05, away=1e6)
    async with Prober(lambda n: TARGET, schedule=schedule, open_pinger=played) as prober:

        def pinged():
            return {network: total.probes for network, _, total in prober.costs}

        prober.user_present(False)
        prober.networks_changed([WIFI, LTE])
        await asyncio.sleep(0.3)
        assert pinged() == {"home": 1, "phone": 1}
        prober.user_present(True)
        await asyncio.sleep(0.3)
        assert min(pinged().values()) > 1


@pytest.mark.parametrize(
    ("problem", "knows"),
    [
        ("", [True, True]),
        # One that refuses or lies is there, and tells nothing; a router need not be a resolver.
        ("the resolver failed or refused", [None, None]),
        (dns_probe.NO_ANSWER, [None, False]),
    ],
)
async def test_a_resolver_is_asked_each_time_for_a_name_that_it_cannot_remember(
    monkeypatch, problem, knows
):
    asked = []

    async def run(network, name, *, resolver, timeout_s):
        asked.append((name, resolver))
        return ProbeOutcome({}, Spent(70, 90, 0.2), problem)

    monkeypatch.setattr(dns_probe, "run", run)
    router, resolver = ip_address("10.0.0.1"), ip_address("10.0.0.53")
    async with Prober(lambda n: TARGET, dns_name="example.com") as prober:
        own = (ip_interface("10.0.0.2/24"),)
        routed = replace(WIFI, addresses=own, next_hops=(NextHop(4, router),))
        both = (routed, replace(routed, resolvers=(resolver,)))
        assert [await prober.knows_names(each) for each in both] == knows
        assert ("home" in prober.heard_at_s) is (not problem)
        results = prober.results()
        result = await anext(results)
    assert (result.kind, dict(result.indicators)) == (ProbeKind.DNS, {})
    names = {name for name, _ in asked}
    assert len(names) == 2
    assert all(name.endswith(".example.com") for name in names)
    assert [whom for _, whom in asked] == [router, resolver]


def test_an_idle_cellular_radio_is_left_asleep_unless_it_does_not_answer():
    schedule = ProbeSchedule(in_use_s=1.0, idle_s=5.0, away=10.0, asleep_s=300.0)
    schedule.networks_changed([WIFI, LTE])
    assert schedule.take_due(100.0) == ["home", "phone"]
    assert schedule.take_due(399.0) == ["home"]
    assert schedule.take_due(400.0) == ["phone"]
    schedule.in_use(["phone"])
    assert "phone" in schedule.take_due(401.0)
    schedule.in_use([])
    schedule.on_answer("phone", False)
    assert "phone" in schedule.take_due(406.0)
    schedule.on_answer("phone", True)
    schedule.user_present(False)
    assert "phone" not in schedule.take_due(406.0 + 2999.0)
    assert "phone" in schedule.take_due(406.0 + 3000.0)


def test_in_use_it_is_pinged_when_programs_hear_nothing():
    """Half a second after the last word, and not while they hear something."""
    schedule = ProbeSchedule(in_use_s=2.0, idle_s=30.0)
    schedule.networks_changed([LTE])
    schedule.in_use(["phone"])
    assert schedule.take_due(0.0) == ["phone"]
    schedule.on_heard("phone", 9.8)
    assert schedule.take_due(10.2) == []
    assert schedule.next_s() == pytest.approx(10.3)
    assert schedule.take_due(10.3) == ["phone"], "a network that dies in use is asked soon"
    assert schedule.next_s() == pytest.approx(12.3)
    schedule.in_use([])
    schedule.on_heard("phone", 12.0)
    assert schedule.next_s() == pytest.approx(42.0), "what was heard is as good as an answer"


def test_a_silent_network_is_pinged_in_a_hurry():
    schedule = ProbeSchedule(in_use_s=1.0, idle_s=5.0, hurry_s=0.2)
    schedule.networks_changed([WIFI, LTE])
    assert schedule.take_due(100.0) == ["home", "phone"]
    schedule.silent(["phone"])
    assert schedule.take_due(100.21) == ["phone"]
    assert schedule.take_due(100.42) == ["phone"]
    schedule.silent([])
    assert schedule.take_due(101.0) == []


def test_a_network_that_is_down_pauses_and_is_due_when_it_comes_up():
    schedule = ProbeSchedule()
    schedule.networks_changed([WIFI, DOWN])
    assert schedule.take_due(1.0) == ["home"]
    schedule.networks_changed([WIFI, LTE])
    assert schedule.take_due(1.1) == ["phone"]
    schedule.networks_changed([WIFI, DOWN])
    assert schedule.take_due(50.0) == ["home"]
    schedule.networks_changed([])
    assert schedule.next_s() is None


async def test_a_ping_without_an_answer_is_known_while_it_waits():
    rtts = {"wlan0": 0.02, "lte0": None}
    prober = Prober(lambda n: TARGET, ping_timeout_s=0.1, open_pinger=played_pinger(rtts))
    async with prober:
        before_s = time.monotonic()
        waiting = asyncio.create_task(prober.ping(LTE))
        await prober.ping(WIFI)
        asked = prober.asked_at_s()
        assert list(asked) == ["phone"]
        assert before_s <= asked["phone"] <= time.monotonic()
        await waiting
        assert prober.asked_at_s() == {}


async def test_what_was_lost_before_an_answer_is_told_before_it():
    """A network that was silent and is back was called gone by the pings that were given up late."""
    rtts = {"wlan0": None}
    prober = Prober(lambda n: TARGET, ping_timeout_s=0.3, open_pinger=played_pinger(rtts))
    async with prober:
        told = prober.results()
        waiting = [asyncio.create_task(prober.ping(WIFI)) for _ in range(5)]
        await asyncio.sleep(0.05)
        rtts["wlan0"] = 0.02
        waiting.append(asyncio.create_task(prober.ping(WIFI)))
        found = [await anext(told) for _ in waiting]
        assert [bool(each.indicators) for each in found] == [False] * 5 + [True]
        assert found[-1].at_s - found[0].at_s < 0.05
        assert [(await each).problem for each in waiting] == ["no answer in time"] * 5 + [""]
        assert prober.asked_at_s() == {}


async def test_pings_are_matched_lost_and_paid_for():
    rtts = {"wlan0": 0.02, "lte0": None}
    prober = Prober(lambda n: TARGET, ping_timeout_s=0.1, open_pinger=played_pinger(rtts))
    async with prober:
        answered, lost = await asyncio.gather(prober.ping(WIFI), prober.ping(LTE))
        assert answered.indicators == {"rtt_s": 0.02}
        assert answered.spent == Spent(PING_BYTES[4], PING_BYTES[4], 0.02)
        assert lost.problem == "no answer in time"
        assert lost.indicators == {}
        assert lost.spent == Spent(PING_BYTES[4], 0, pytest.approx(0.1, abs=0.1))
        del rtts["lte0"]
        refused = await prober.ping(LTE)
        assert (refused.problem, refused.spent) == ("the network takes nothing", Spent())
        assert prober.costs.bytes("home") == 2 * PING_BYTES[4]
        assert prober.costs.bytes("phone") == PING_BYTES[4]
        totals = {(name, kind): (t.probes, t.failed) for name, kind, t in prober.costs}
        assert totals == {("home", ProbeKind.PING): (1, 0), ("phone", ProbeKind.PING): (2, 2)}


async def test_joules_know_how_long_the_radio_has_rested():
    """The radio's tail is the paper's, of 6.5 J where it was asleep (Delphi, Table 4)."""
    prober = Prober(lambda n: TARGET, open_pinger=played_pinger({"lte0": 0.01}))
    async with prober:
        asleep = (await prober.ping(LTE)).energy_j
        await asyncio.sleep(0.05)
        awake = (await prober.ping(LTE)).energy_j
        prober.in_use(["phone"])
        in_use = (await prober.ping(LTE)).energy_j
        assert asleep > 5.0 > awake > in_use > 0.0
        ((_, _, total),) = prober.costs
        assert (total.probes, total.energy_j) == (3, asleep + awake + in_use)


async def test_a_network_that_goes_takes_its_pings_along():
    prober = Prober(lambda n: TARGET, open_pinger=played_pinger({"wlan0": None}))
    async with prober:
        prober.networks_changed([WIFI])
        waiting = asyncio.create_task(prober.ping(WIFI))
        await asyncio.sleep(0.01)
        prober.networks_changed([])
        result = await asyncio.wait_for(waiting, 1)
        assert result.problem == "the network went away"


async def test_without_target_or_privilege_nothing_is_pinged():
    async with Prober(lambda n: None) as prober:
        assert (await prober.ping(WIFI)).problem == "there is no host to ping"

    def refuse(*arguments):
        raise PrivilegeError("pings need CAP_NET_RAW")

    async with Prober(lambda n: TARGET, open_pinger=refuse) as prober:
        assert (await prober.ping(WIFI)).problem == "pings need CAP_NET_RAW"
        assert prober.problem == "pings need CAP_NET_RAW"
