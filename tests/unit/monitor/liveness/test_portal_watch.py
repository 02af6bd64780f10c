"""When which network is checked for a portal, and what follows from what its answer says."""

import asyncio
import time
from dataclasses import replace
from ipaddress import ip_address
from typing import Any

import pytest
from kit.waiting import until

from cedos.model import Indicator, Network, NextHop
from cedos.monitor.liveness.portal_verdict import PortalFinding, PortalVerdict
from cedos.monitor.liveness.portal_watch import PortalWatch, usual_rtt_s

pytestmark = [pytest.mark.anyio, pytest.mark.jumping]

FREE = PortalFinding(PortalVerdict.FREE, "well")


async def test_each_new_network_is_checked_once(desk: Any) -> None:
    portal = PortalFinding(PortalVerdict.CAPTIVE, "redirected", "http://gw/", "302")
    told = desk.listen({"home": portal, "phone": FREE})
    watch = PortalWatch(told, check=told.check)
    desk.run(watch)
    watch.networks_changed([desk.wifi, desk.lte, replace(desk.lte, name="off", up=False)])
    await until(lambda: len(told.values) == 2)
    assert sorted(told.values) == [("home", 1.0), ("phone", 0.0)]
    assert watch.problems == ["home lets nothing through: redirected. Open http://gw/ to log in"]
    watch.networks_changed([desk.wifi, desk.lte])
    await asyncio.sleep(0.05)
    assert len(told.checks) == 2
    # Another attachment is another network; so is another access point.
    told.answers["home"] = FREE
    watch.networks_changed(
        [replace(desk.wifi, next_hops=(NextHop(4, ip_address("10.0.1.254")),)), desk.lte]
    )
    await until(lambda: told.values[-1] == ("home", 0.0))
    assert watch.problems == []
    watch.recheck("phone")
    await until(lambda: len(told.checks) == 4)
    watch.recheck()
    await until(lambda: len(told.checks) == 6)


async def test_a_captive_one_is_tried_again(desk: Any) -> None:
    told = desk.listen({"home": PortalFinding(PortalVerdict.CAPTIVE, "x")})
    watch = PortalWatch(told, check=told.check)
    desk.run(watch)
    watch.networks_changed([desk.wifi])
    await until(lambda: len(told.checks) >= 3, 100.0)
    told.answers["home"] = FREE
    await until(lambda: told.values[-1] == ("home", 0.0), 60.0)
    checks = len(told.checks)
    await asyncio.sleep(100.0)
    assert len(told.checks) == checks


async def test_whoever_logs_in_is_let_back_soon(desk: Any) -> None:
    told = desk.listen({"home": PortalFinding(PortalVerdict.CAPTIVE, "x")})
    watch = PortalWatch(told, check=told.check)
    desk.run(watch)
    watch.networks_changed([desk.wifi])
    await until(lambda: told.values)
    watch.carried("home", 1000)
    await asyncio.sleep(10.0)
    assert len(told.checks) == 1
    told.answers["home"] = FREE
    watch.carried("home", 30_000)
    await until(lambda: told.values[-1] == ("home", 0.0))


async def test_the_same_wrong_answer_on_two_networks_is_the_pages_fault(desk: Any) -> None:
    wrong = PortalFinding(PortalVerdict.CAPTIVE, "another page", likeness="200 abc")
    told = desk.listen({"home": wrong, "phone": wrong})
    watch = PortalWatch(told, check=told.check)
    desk.run(watch)
    watch.networks_changed([desk.wifi, desk.lte])
    await until(lambda: len(told.checks) == 2)
    await until(lambda: told.values[-1:] == [("home", 0.0)])
    assert ("phone", 1.0) not in told.values
    assert watch.problems == []


async def test_a_slow_network_is_given_time(desk: Any) -> None:
    told = desk.listen({"home": FREE})
    watch = PortalWatch(told, check=told.check, rtt_s=lambda name: 0.9)
    desk.run(watch)
    watch.networks_changed([desk.wifi])
    await until(lambda: told.checks)
    assert told.checks == [("home", pytest.approx(5.4))]


async def test_what_the_test_page_says_is_not_refuted_by_a_log_in_page(desk: Any) -> None:
    told = desk.listen({"home": PortalFinding(PortalVerdict.CAPTIVE, "another page")})
    watch = PortalWatch(told, check=told.check)
    desk.run(watch)
    watch.networks_changed([desk.wifi])
    await until(lambda: told.values == [("home", 1.0)])
    watch.observe_flows([desk.flow(desk.wifi, 3, down=500)])
    assert told.values == [("home", 1.0)]


async def test_networkmanager_is_asked_where_the_page_says_nothing(desk: Any) -> None:
    verdicts: dict[str, bool | None] = {"home": True, "phone": None}

    async def manager(network: Network) -> bool | None:
        return verdicts[network.name]

    told = desk.listen()
    watch = PortalWatch(told, manager=manager)
    desk.run(watch)
    watch.networks_changed([desk.wifi, desk.lte])
    await until(lambda: told.values == [("home", 1.0)])
    verdicts["home"] = False
    watch.recheck()
    await until(lambda: told.values[-1] == ("home", 0.0))


async def test_a_check_that_raises_ends_nothing(desk: Any) -> None:
    told = desk.listen()
    watch = PortalWatch(told, check=told.check)  # it raises KeyError
    desk.run(watch)
    watch.networks_changed([desk.wifi])
    await until(lambda: told.checks)
    told.answers["home"] = FREE
    watch.recheck()
    await until(lambda: told.values == [("home", 0.0)])


def test_the_usual_round_trip() -> None:
    rtt, now_s = Indicator(0.04, 1.0), time.monotonic()
    assert usual_rtt_s({"home": {"rtt_s": rtt}}, "home") == 0.04
    assert usual_rtt_s({"home": {"rtt_s": rtt, "ping_loss": Indicator(1.0, now_s)}}, "home") is None
    assert usual_rtt_s({}, "home") is None
