"""What is believed of a network on which nobody answers, and for how long."""

import asyncio
import time
from typing import Any

import pytest
from kit.waiting import until

from cedos.monitor.liveness.portal_verdict import PortalFinding, PortalVerdict
from cedos.monitor.liveness.portal_watch import PortalWatch

pytestmark = [pytest.mark.anyio, pytest.mark.jumping]

FREE = PortalFinding(PortalVerdict.FREE, "well")
SILENT = PortalFinding(PortalVerdict.SILENT, "the test page does not answer")


async def test_silence_counts_where_the_page_answers_another_network(desk: Any) -> None:
    rtts: dict[str, float] = {"home": 0.03}
    told = desk.listen({"home": SILENT, "phone": FREE})
    watch = PortalWatch(told, check=told.check, rtt_s=rtts.get)
    desk.run(watch)
    watch.networks_changed([desk.lte])
    await until(lambda: told.values == [("phone", 0.0)])
    watch.networks_changed([desk.lte, desk.wifi])
    await until(lambda: ("home", 1.0) in told.values)
    # One that answers no ping is dead anyway; nobody calls it captive.
    rtts.clear()
    told.values.clear()
    watch.recheck("home")
    await until(lambda: len(told.checks) == 3)
    assert told.values == []


@pytest.mark.parametrize("answered_before", [True, False])
async def test_a_router_that_may_be_no_resolver_counts_once_it_was_one(
    desk: Any, answered_before: bool
) -> None:
    """Where nobody said which resolver belongs to a network its router is asked, and may be none."""
    guess = PortalFinding(PortalVerdict.SILENT, "names are not answered", guessed=True)
    told = desk.listen({"home": FREE if answered_before else guess, "phone": FREE})
    watch = PortalWatch(told, check=told.check, rtt_s=lambda _name: 0.03)
    desk.run(watch)
    watch.networks_changed([desk.lte, desk.wifi])
    await until(lambda: len(told.checks) == 2)
    watch.networks_changed([desk.lte])
    told.answers["home"] = guess
    watch.networks_changed([desk.lte, desk.wifi])
    await until(lambda: len(told.checks) == 3)
    await asyncio.sleep(0.02)
    assert (("home", 1.0) in told.values) == answered_before


async def test_unanswered_connections_are_checked(desk: Any) -> None:
    told = desk.listen()
    watch = PortalWatch(told, gateway_answers=told.gateway)
    desk.run(watch)
    watch.networks_changed([desk.wifi])
    await asyncio.sleep(0.02)
    assert told.values == []
    stuck = [desk.flow(desk.wifi, n, state=2) for n in (1, 2, 3)]
    watch.observe_flows(stuck)
    await asyncio.sleep(0.95)
    watch.observe_flows(stuck)
    await until(lambda: told.values == [("home", 1.0)])
    assert told.asked == ["home"]
    (problem,) = watch.problems
    assert "none of 3 servers" in problem


async def test_so_are_rescued_ones(desk: Any) -> None:
    told = desk.listen()
    watch = PortalWatch(told, gateway_answers=told.gateway)
    desk.run(watch)
    watch.networks_changed([desk.wifi, desk.lte])
    await asyncio.sleep(0.02)
    began_s = time.monotonic()
    for server in (1, 2):
        assert told.values == []
        watch.rescued(desk.flow(desk.wifi, server).key)
        await asyncio.sleep(0.05)
    await until(lambda: told.values == [("home", 1.0)])
    assert time.monotonic() - began_s < 1.5, (
        "the check waits for the second, and not for the next one"
    )
    # It was a pause: somebody is answered there.
    watch.observe_flows([desk.flow(desk.wifi, 3, down=500)])
    assert told.values == [("home", 1.0), ("home", 0.0)]


async def test_an_outage_is_no_portal_once_a_ping_is_answered(desk: Any) -> None:
    waiting = True
    told = desk.listen()
    watch = PortalWatch(told, gateway_answers=told.gateway, pings_wait=lambda network: waiting)
    desk.run(watch)
    watch.networks_changed([desk.wifi])
    watch.pinged("home")
    await asyncio.sleep(0.01)
    desk.nobody_answers(watch)
    await until(lambda: told.values == [("home", 1.0)])
    watch.pinged("home")
    assert told.values[1:] == [("home", 0.0)]
    # A portal that lets pings through is one all the same.
    waiting = False
    desk.nobody_answers(watch)
    await until(lambda: len(told.values) == 3)
    watch.pinged("home")
    assert told.values[2:] == [("home", 1.0)]


async def test_pings_that_are_lost_only_later_show_an_outage_too(desk: Any) -> None:
    """The verdict came within a second, and a Wi-Fi that was back was left alone for 20 s more."""
    waiting = False
    told = desk.listen()
    watch = PortalWatch(told, gateway_answers=told.gateway, pings_wait=lambda network: waiting)
    desk.run(watch)
    watch.networks_changed([desk.wifi])
    await asyncio.sleep(0.01)
    desk.nobody_answers(watch)
    await until(lambda: told.values == [("home", 1.0)])
    watch.carried("home", 1000)
    watch.pinged("home")
    assert told.values == [("home", 1.0)]
    waiting = True
    watch.carried("home", 1000)
    watch.pinged("home")
    assert told.values == [("home", 1.0), ("home", 0.0)]


async def test_that_nobody_answers_is_believed_for_longer_each_time(desk: Any) -> None:
    told = desk.listen()
    watch = PortalWatch(told, gateway_answers=told.gateway)
    desk.run(watch)
    watch.networks_changed([desk.wifi])
    await asyncio.sleep(0.01)

    async def believed_s() -> float:
        desk.nobody_answers(watch)
        await until(lambda: told.values[-1:] == [("home", 1.0)])
        began_s = time.monotonic()
        await until(lambda: told.values[-1] == ("home", 0.0), 60.0)
        return time.monotonic() - began_s

    # No server answers meanwhile: it is the same silence.
    assert [round(await believed_s()) for _ in range(5)] == [5, 10, 20, 30, 30]
    watch.observe_flows([desk.flow(desk.wifi, 3, down=500)])
    assert [round(await believed_s()) for _ in range(2)] == [5, 10], "it has carried something"


async def test_an_answered_ping_makes_the_next_silence_a_new_one(desk: Any) -> None:
    told = desk.listen()
    watch = PortalWatch(told, gateway_answers=told.gateway, pings_wait=lambda network: True)
    desk.run(watch)
    watch.networks_changed([desk.wifi])
    await asyncio.sleep(0.01)
    for _ in range(2):
        desk.nobody_answers(watch)
        await until(lambda: told.values[-1:] == [("home", 1.0)])
        watch.pinged("home")
        assert told.values[-1] == ("home", 0.0)
    desk.nobody_answers(watch)
    await until(lambda: told.values[-1] == ("home", 1.0))
    began_s = time.monotonic()
    await until(lambda: told.values[-1] == ("home", 0.0))
    assert round(time.monotonic() - began_s) == 5


async def test_a_silent_page_stays_one_until_it_answers(desk: Any) -> None:
    """Where another network vouches for the page; and what waits for an answer may get it."""
    told = desk.listen({"home": SILENT, "phone": FREE})
    watch = PortalWatch(
        told, check=told.check, rtt_s=lambda name: 0.03, pings_wait=lambda network: True
    )
    desk.run(watch)
    watch.networks_changed([desk.lte])
    await until(lambda: told.values == [("phone", 0.0)])
    watch.networks_changed([desk.lte, desk.wifi])
    await until(lambda: told.values.count(("home", 1.0)) == 3, 60.0)
    assert ("home", 0.0) not in told.values
    watch.pinged("home")
    assert told.values[-1] == ("home", 0.0), "it was an outage"
    watch.recheck("home")
    await until(lambda: told.values[-1] == ("home", 1.0))
    told.answers["home"] = FREE
    await until(lambda: told.values[-1] == ("home", 0.0), 60.0)


async def test_a_ping_does_not_free_a_network_whose_portal_was_seen(desk: Any) -> None:
    told = desk.listen({"home": PortalFinding(PortalVerdict.CAPTIVE, "a log-in page")})
    watch = PortalWatch(told, check=told.check, pings_wait=lambda network: True)
    desk.run(watch)
    watch.networks_changed([desk.wifi])
    await until(lambda: told.values == [("home", 1.0)])
    watch.pinged("home")
    assert told.values == [("home", 1.0)]
