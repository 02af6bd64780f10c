"""The prober and its schedule, with pings that a test answers."""

import asyncio
from dataclasses import replace
from ipaddress import ip_address, ip_interface

import pytest
from kit.monitor import played_pinger

from cedos.errors import PrivilegeError
from cedos.host.monitor.probing import dns_probe
from cedos.host.monitor.probing.prober import Prober
from cedos.host.monitor.probing.probes import ProbeSchedule
from cedos.model import Network, NetworkKind, NextHop

TARGET = ip_address("198.51.100.1")
WIFI = Network("home", "wlan0", 1, NetworkKind.WIFI, False)
LTE = Network("phone", "lte0", 2, NetworkKind.CELLULAR, True)


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
    assert pings.count("phone") == 0
    schedule.in_use(["phone"])
    assert schedule.take_due(111.0) == ["phone"]


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
        return problem

    monkeypatch.setattr(dns_probe, "run", run)
    router, resolver = ip_address("10.0.0.1"), ip_address("10.0.0.53")
    async with Prober(lambda n: TARGET, dns_name="example.com") as prober:
        own = (ip_interface("10.0.0.2/24"),)
        routed = replace(WIFI, addresses=own, next_hops=(NextHop(4, router),))
        both = (routed, replace(routed, resolvers=(resolver,)))
        assert [await prober.knows_names(each) for each in both] == knows
        assert ("home" in prober.heard_at_s) is (not problem)
    names = {name for name, _ in asked}
    assert len(names) == 2
    assert all(name.endswith(".example.com") for name in names)
    assert [whom for _, whom in asked] == [router, resolver]


def test_an_idle_cellular_radio_is_left_asleep_unless_it_does_not_answer():
    schedule = ProbeSchedule(in_use_s=1.0, idle_s=30.0)
    schedule.networks_changed([WIFI, LTE])
    assert schedule.take_due(100.0) == ["home", "phone"]
    assert schedule.take_due(399.0) == ["home"]
    assert schedule.take_due(400.0) == ["phone"]
    schedule.in_use(["phone"])
    assert "phone" in schedule.take_due(401.0)
    schedule.in_use([])
    schedule.on_answer("phone", False)
    assert "phone" in schedule.take_due(431.0)


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
    assert schedule.next_s() == pytest.approx(312.0), "what was heard is as good as an answer"


def test_a_silent_network_is_pinged_in_a_hurry():
    schedule = ProbeSchedule(in_use_s=1.0, idle_s=5.0, hurry_s=0.2)
    schedule.networks_changed([WIFI, LTE])
    assert schedule.take_due(100.0) == ["home", "phone"]
    schedule.silent(["phone"])
    assert schedule.take_due(100.21) == ["phone"]
    assert schedule.take_due(100.42) == ["phone"]
    schedule.silent([])
    assert schedule.take_due(101.0) == []


async def test_what_was_lost_before_an_answer_is_told_before_it():
    """A network that was silent and is back was called gone by the pings that were given up late."""
    rtts = {"wlan0": None}
    schedule = ProbeSchedule(in_use_s=0.01)
    prober = Prober(
        lambda n: TARGET, schedule=schedule, timeout_s=0.3, open_pinger=played_pinger(rtts)
    )
    async with prober:
        told = prober.results()
        prober.networks_changed([WIFI])
        prober.in_use(["home"])
        await asyncio.sleep(0.1)
        rtts["wlan0"] = 0.02
        found = []
        async with asyncio.timeout(5):
            async for ended in told:
                found.append(ended)
                if ended.rtt_s is not None:
                    break
        assert len(found) > 2
        assert found[-1].at_s - found[0].at_s < 0.05
        assert found[0].at_s - found[0].asked_s < 0.3


async def test_a_network_that_goes_takes_its_pings_along():
    prober = Prober(lambda n: TARGET, open_pinger=played_pinger({"wlan0": None}))
    async with prober:
        prober.networks_changed([WIFI])
        prober.ask(WIFI)
        await asyncio.sleep(0.01)
        prober.networks_changed([])
        assert prober.asked_at_s() == {}


async def test_without_target_or_privilege_nothing_is_pinged():
    async with Prober(lambda n: None) as prober:
        prober.ask(WIFI)
        assert prober.asked_at_s() == {}

    def refuse(*arguments):
        raise PrivilegeError("pings need CAP_NET_RAW")

    async with Prober(lambda n: TARGET, open_pinger=refuse) as prober:
        prober.ask(WIFI)
        assert prober.problem == "pings need CAP_NET_RAW"
