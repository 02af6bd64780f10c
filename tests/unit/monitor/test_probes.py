"""The prober and its schedule, with pings that a test answers."""

import asyncio
import time
from ipaddress import ip_address

import pytest

from cedos.errors import PrivilegeError
from cedos.model import Network, NetworkKind
from cedos.monitor.doubles import played_pinger
from cedos.monitor.ping import PING_BYTES
from cedos.monitor.probes import Prober
from cedos.monitor.schedule import ProbeSchedule

pytestmark = pytest.mark.anyio

TARGET = ip_address("198.51.100.1")
WIFI = Network("home", "wlan0", 1, NetworkKind.WIFI, False)
LTE = Network("phone", "lte0", 2, NetworkKind.CELLULAR, True)
DOWN = Network("phone", "lte0", 2, NetworkKind.CELLULAR, True, up=False)


def test_a_network_in_use_is_pinged_more_often() -> None:
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


def test_a_silent_network_is_pinged_in_a_hurry() -> None:
    schedule = ProbeSchedule(in_use_s=1.0, idle_s=5.0, hurry_s=0.2)
    schedule.networks_changed([WIFI, LTE])
    assert schedule.take_due(100.0) == ["home", "phone"]
    schedule.silent(["phone"])
    assert schedule.take_due(100.21) == ["phone"]
    assert schedule.take_due(100.42) == ["phone"]
    schedule.silent([])
    assert schedule.take_due(101.0) == []


def test_a_network_that_is_down_pauses_and_is_due_when_it_comes_up() -> None:
    schedule = ProbeSchedule()
    schedule.networks_changed([WIFI, DOWN])
    assert schedule.take_due(1.0) == ["home"]
    schedule.networks_changed([WIFI, LTE])
    assert schedule.take_due(1.1) == ["phone"]
    schedule.networks_changed([WIFI, DOWN])
    assert schedule.take_due(50.0) == ["home"]
    schedule.networks_changed([])
    assert schedule.next_s() is None


async def test_a_ping_without_an_answer_is_known_while_it_waits() -> None:
    rtts: dict[str, float | None] = {"wlan0": 0.02, "lte0": None}
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


async def test_pings_are_matched_lost_and_paid_for() -> None:
    rtts: dict[str, float | None] = {"wlan0": 0.02, "lte0": None}
    prober = Prober(lambda n: TARGET, ping_timeout_s=0.1, open_pinger=played_pinger(rtts))
    async with prober:
        answered, lost = await asyncio.gather(prober.ping(WIFI), prober.ping(LTE))
        assert answered is not None
        assert lost is not None
        assert (answered.rtt_s, answered.bytes) == (0.02, 2 * PING_BYTES[4])
        assert (lost.rtt_s, lost.bytes) == (None, PING_BYTES[4])
        del rtts["lte0"]
        refused = await prober.ping(LTE)
        assert refused is not None
        assert (refused.rtt_s, refused.bytes) == (None, 0)
        assert prober.spent == {"home": 2 * PING_BYTES[4], "phone": PING_BYTES[4]}


async def test_the_schedule_drives_the_pings_of_what_is_up() -> None:
    rtts: dict[str, float | None] = {"wlan0": 0.001, "lte0": 0.002}
    prober = Prober(
        lambda n: TARGET,
        schedule=ProbeSchedule(in_use_s=0.01, idle_s=0.05),
        open_pinger=played_pinger(rtts),
    )
    async with prober:
        prober.networks_changed([WIFI, DOWN])
        prober.in_use(["home"])
        results = prober.results()
        first = [await asyncio.wait_for(anext(results), 5) for _ in range(5)]
        assert {result.network for result in first} == {"home"}
        prober.networks_changed([WIFI, LTE])
        names = [(await asyncio.wait_for(anext(results), 5)).network for _ in range(20)]
        assert names.count("home") > names.count("phone") > 0


async def test_a_network_that_goes_takes_its_pings_along() -> None:
    prober = Prober(lambda n: TARGET, open_pinger=played_pinger({"wlan0": None}))
    async with prober:
        prober.networks_changed([WIFI])
        waiting = asyncio.create_task(prober.ping(WIFI))
        await asyncio.sleep(0.01)
        prober.networks_changed([])
        result = await asyncio.wait_for(waiting, 1)
        assert result is not None
        assert result.rtt_s is None


async def test_without_target_or_privilege_nothing_is_pinged() -> None:
    async with Prober(lambda n: None) as prober:
        assert await prober.ping(WIFI) is None
        assert await prober.dns_time(WIFI, "example.org") is None

    def refuse(*arguments: object) -> object:
        raise PrivilegeError("pings need CAP_NET_RAW")

    async with Prober(lambda n: TARGET, open_pinger=refuse) as prober:  # type: ignore[arg-type]
        assert await prober.ping(WIFI) is None
        assert prober.problem == "pings need CAP_NET_RAW"
