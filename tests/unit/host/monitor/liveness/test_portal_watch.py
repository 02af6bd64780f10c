"""When which network is checked for a portal, and what the network's state is told."""

import asyncio
import time
from dataclasses import replace
from ipaddress import ip_address
from typing import Any

import pytest
from kit.waiting import until

from cedos.controller.events import Witness
from cedos.host.monitor.liveness.portal_verdict import PortalFinding, PortalVerdict
from cedos.host.monitor.liveness.portal_watch import PortalWatch, usual_rtt_s
from cedos.host.monitor.liveness.tls_check import TlsAnswer
from cedos.model import Indicator, Network, NetworkLife, NextHop

pytestmark = [pytest.mark.anyio, pytest.mark.jumping]

FREE = PortalFinding(PortalVerdict.FREE, "well")
SILENT = PortalFinding(PortalVerdict.SILENT, "the test page does not answer")
ADDRESS = ip_address("203.0.113.9")
PORTAL = PortalFinding(
    PortalVerdict.CAPTIVE, "redirected", "http://gw/", "302", hosts={"gw": (ADDRESS,)}
)
NO_NAMES = PortalFinding(PortalVerdict.SILENT, "names are not answered", witness=Witness.NAME)
FILTERED = PortalFinding(PortalVerdict.FILTERED, "page.test leads to 0.0.0.0 there")


async def test_each_new_network_is_checked_once(desk: Any) -> None:
    told = desk.listen({"home": FREE, "phone": FREE})
    watch = PortalWatch(told, check=told.check)
    desk.run(watch)
    watch.networks_changed([desk.wifi, desk.lte, replace(desk.lte, name="off", up=False)])
    await until(lambda: len(told.checks) == 2)
    watch.networks_changed([desk.wifi, desk.lte])
    await asyncio.sleep(0.05)
    assert len(told.checks) == 2
    assert told.life() is NetworkLife.ALIVE
    # Another attachment is another network; so is another access point.
    watch.networks_changed(
        [replace(desk.wifi, next_hops=(NextHop(4, ip_address("10.0.1.254")),)), desk.lte]
    )
    await until(lambda: len(told.checks) == 3)
    watch.recheck("phone")
    await until(lambda: len(told.checks) == 4)
    watch.recheck()
    await until(lambda: len(told.checks) == 6)
    assert watch.problems == []
    assert told.shaken == []


async def test_a_portal_needs_a_second_witness_and_its_hosts_are_known(desk: Any) -> None:
    told = desk.listen({"home": PORTAL, "phone": FREE})
    told.tls = {"home": TlsAnswer.SILENT, "phone": TlsAnswer.PROVEN}
    watch = PortalWatch(told, check=told.check, shake_hands=told.shake_hands)
    desk.run(watch)
    watch.networks_changed([desk.wifi, desk.lte])
    await until(lambda: told.life() is NetworkLife.CAPTIVE)
    assert told.life("phone") is NetworkLife.ALIVE
    assert watch.problems == [
        "home wants a log-in: redirected. Open http://gw/ to log in: it opens over home."
        " Until then it is not used"
    ]
    assert list(watch.on_the_way()) == [("home", (ADDRESS,))]
    # It is asked again, until it is free, and then no more.
    await until(lambda: len(told.checks) >= 4, 100.0)
    told.answers["home"] = FREE
    await until(lambda: told.life() is NetworkLife.ALIVE, 60.0)
    assert list(watch.on_the_way()) == []
    checks = len(told.checks)
    await asyncio.sleep(100.0)
    assert len(told.checks) == checks


@pytest.mark.parametrize(
    ("here", "elsewhere", "life"),
    [
        (TlsAnswer.SILENT, TlsAnswer.PROVEN, NetworkLife.CAPTIVE),
        (TlsAnswer.SILENT, TlsAnswer.REFUSED, NetworkLife.CAPTIVE),
        (TlsAnswer.SILENT, TlsAnswer.SILENT, NetworkLife.UNKNOWN),  # the host's firewall, perhaps
        (TlsAnswer.REFUSED, TlsAnswer.PROVEN, NetworkLife.CAPTIVE),
        (TlsAnswer.REFUSED, TlsAnswer.REFUSED, NetworkLife.UNKNOWN),
        (TlsAnswer.ANSWERED, TlsAnswer.PROVEN, NetworkLife.CAPTIVE),
        (TlsAnswer.ANSWERED, TlsAnswer.REFUSED, NetworkLife.CAPTIVE),
        (TlsAnswer.ANSWERED, TlsAnswer.ANSWERED, NetworkLife.UNKNOWN),  # a host of one's own
        (TlsAnswer.PROVEN, TlsAnswer.PROVEN, NetworkLife.ALIVE),
        (None, TlsAnswer.PROVEN, NetworkLife.UNKNOWN),
    ],
)
async def test_a_second_opinion_is_compared_with_the_other_network(
    desk: Any, here: TlsAnswer | None, elsewhere: TlsAnswer, life: NetworkLife
) -> None:
    told = desk.listen({"home": PORTAL, "phone": FREE})
    told.tls = {"home": here, "phone": elsewhere}
    watch = PortalWatch(told, check=told.check, shake_hands=told.shake_hands)
    desk.run(watch)
    watch.networks_changed([desk.wifi, desk.lte])
    await until(lambda: sorted(told.shaken) == ["home", "phone"])
    await asyncio.sleep(0.05)
    assert told.life() is life
    if life is NetworkLife.UNKNOWN:
        assert watch.problems == [
            "home may want a log-in: redirected. Open http://gw/ to log in: it opens over home."
            " Nothing else tells of it, so home is used"
        ]
    # Its page opens over its network in any case.
    proven = here is TlsAnswer.PROVEN
    assert list(watch.on_the_way()) == ([] if proven else [("home", (ADDRESS,))])


async def test_a_filtered_page_is_told_and_asked_for_once(desk: Any) -> None:
    told = desk.listen({"home": FILTERED, "phone": FREE})
    watch = PortalWatch(told, check=told.check, shake_hands=told.shake_hands)
    desk.run(watch)
    watch.networks_changed([desk.wifi, desk.lte])
    await until(lambda: len(told.checks) == 2)
    for server in (1, 2):
        watch.on_rescue(desk.flow(desk.wifi, server).key)
    await asyncio.sleep(200.0)
    assert len(told.checks) == 2
    (problem,) = watch.problems
    assert problem.startswith("the portal check is filtered on home: page.test leads to 0.0.0.0")
    assert told.life() is NetworkLife.UNKNOWN
    watch.recheck("home")
    await until(lambda: len(told.checks) == 3)


async def test_what_may_be_a_filter_is_not_asked_for_for_ever(desk: Any) -> None:
    told = desk.listen({"home": PORTAL, "phone": FREE})
    watch = PortalWatch(told, check=told.check, shake_hands=told.shake_hands)
    desk.run(watch)
    watch.networks_changed([desk.wifi, desk.lte])
    await asyncio.sleep(4000.0)
    assert len(told.checks) == 2 + 5
    assert told.life() is NetworkLife.UNKNOWN


async def test_the_user_who_logs_in_is_let_back_soon(desk: Any) -> None:
    told = desk.listen({"home": PORTAL})
    told.tls = {"home": TlsAnswer.SILENT}
    watch = PortalWatch(told, check=told.check, shake_hands=told.shake_hands)
    desk.run(watch)
    watch.networks_changed([desk.wifi])
    await until(lambda: told.life() is NetworkLife.CAPTIVE)
    watch.on_bytes("home", 1000)
    await asyncio.sleep(10.0)
    assert len(told.checks) == 1
    told.answers["home"] = FREE
    watch.on_bytes("home", 30_000)
    await until(lambda: told.life() is NetworkLife.ALIVE)


async def test_what_a_log_in_page_loads_refutes_nothing(desk: Any) -> None:
    told = desk.listen({"home": replace(PORTAL, hosts={"gw": (ip_address("198.51.100.3"),)})})
    told.tls = {"home": TlsAnswer.SILENT}
    watch = PortalWatch(told, check=told.check, shake_hands=told.shake_hands)
    desk.run(watch)
    watch.networks_changed([desk.wifi])
    await until(lambda: told.life() is NetworkLife.CAPTIVE)
    for server, port in ((5, 80), (3, 443)):
        watch.observe_flows([desk.flow(desk.wifi, server, down=90_000, port=port)])
        assert told.life() is NetworkLife.CAPTIVE
    watch.observe_flows([desk.flow(desk.wifi, 6, down=90_000)])
    assert told.life() is NetworkLife.ALIVE


async def test_the_same_wrong_answer_on_two_networks_is_the_pages_fault(desk: Any) -> None:
    told = desk.listen({"home": PORTAL, "phone": PORTAL})
    told.tls = {"home": TlsAnswer.SILENT, "phone": TlsAnswer.REFUSED}
    watch = PortalWatch(told, check=told.check, shake_hands=told.shake_hands)
    desk.run(watch)
    watch.networks_changed([desk.wifi])
    await until(lambda: told.life() is NetworkLife.CAPTIVE)
    watch.networks_changed([desk.wifi, desk.lte])
    await until(lambda: len(told.checks) == 2)
    await until(lambda: told.life() is NetworkLife.UNKNOWN)
    assert watch.problems == []


async def test_a_slow_network_is_given_time(desk: Any) -> None:
    told = desk.listen({"home": FREE})
    watch = PortalWatch(told, check=told.check, rtt_s=lambda name: 0.9)
    desk.run(watch)
    watch.networks_changed([desk.wifi])
    await until(lambda: told.checks)
    assert told.checks == [("home", pytest.approx(5.4))]


async def test_networkmanager_is_one_witness_where_the_page_says_nothing(desk: Any) -> None:
    verdicts: dict[str, bool | None] = {"home": True, "phone": None}

    async def manager(network: Network) -> bool | None:
        return verdicts[network.name]

    told = desk.listen()
    told.tls = {"home": TlsAnswer.SILENT, "phone": TlsAnswer.PROVEN}
    watch = PortalWatch(told, manager=manager, shake_hands=told.shake_hands)
    desk.run(watch)
    watch.networks_changed([desk.wifi, desk.lte])
    await until(lambda: told.life() is NetworkLife.CAPTIVE)
    verdicts["home"] = False
    watch.recheck()
    await until(lambda: told.life() is NetworkLife.ALIVE)


async def test_a_check_that_raises_ends_nothing(desk: Any) -> None:
    told = desk.listen()
    watch = PortalWatch(told, check=told.check)  # it raises KeyError
    desk.run(watch)
    watch.networks_changed([desk.wifi])
    await until(lambda: told.checks)
    told.answers["home"] = FREE
    watch.recheck()
    await until(lambda: told.life() is NetworkLife.ALIVE)


async def test_names_that_are_not_answered_need_a_second_witness_too(desk: Any) -> None:
    told = desk.listen({"home": NO_NAMES, "phone": FREE})
    watch = PortalWatch(told, check=told.check, shake_hands=told.shake_hands)
    desk.run(watch)
    watch.networks_changed([desk.lte, desk.wifi])
    await until(lambda: len(told.checks) >= 2)
    assert told.life() is NetworkLife.UNKNOWN
    assert watch.problems == ["home: its DNS does not answer, another network's does"]
    told.tls = {"home": TlsAnswer.SILENT, "phone": TlsAnswer.PROVEN}
    watch.recheck("home")
    await until(lambda: told.life() is NetworkLife.DEAD)
    assert watch.problems == ["home: its DNS does not answer, another network's does. Not used"]
    # Its pings are answered: nothing else would tell that it carries again.
    told.answers["home"] = FREE
    await until(lambda: told.life() is NetworkLife.ALIVE, 60.0)


@pytest.mark.parametrize("answered_before", [True, False])
async def test_a_router_that_may_be_no_resolver_counts_once_it_was_one(
    desk: Any, answered_before: bool
) -> None:
    """Without a known resolver of a network its router is asked, and may be none."""
    guess = replace(NO_NAMES, guessed=True)
    told = desk.listen({"home": FREE if answered_before else guess, "phone": FREE})
    watch = PortalWatch(told, check=told.check)
    desk.run(watch)
    watch.networks_changed([desk.lte, desk.wifi])
    await until(lambda: len(told.checks) == 2)
    watch.networks_changed([desk.lte])
    told.states["home"].forget()
    told.answers["home"] = guess
    watch.networks_changed([desk.lte, desk.wifi])
    await until(lambda: len(told.checks) == 3)
    await asyncio.sleep(0.02)
    assert told.states["home"].misses(Witness.NAME) is answered_before


async def test_connections_in_vain_are_one_witness_and_other_networks_the_second(
    desk: Any,
) -> None:
    told = desk.listen()
    watch = PortalWatch(told)
    desk.run(watch)
    watch.networks_changed([desk.wifi, desk.lte])
    await asyncio.sleep(0.02)
    for server in (1, 2):
        watch.on_rescue(desk.flow(desk.wifi, server).key)
    await asyncio.sleep(0.7)
    watch.observe_flows([])
    assert told.states["home"].misses(Witness.CONNECTION)
    assert told.life() is NetworkLife.UNKNOWN, "these servers may be down"
    for server in (1, 2):
        watch.answered_elsewhere(desk.flow(desk.wifi, server).key)
    watch.observe_flows([])
    assert told.life() is NetworkLife.DEAD
    # It was a pause: a server answers there.
    watch.observe_flows([desk.flow(desk.wifi, 3, down=500)])
    assert told.life() is NetworkLife.ALIVE


async def test_connections_that_wait_have_the_page_asked_for(desk: Any) -> None:
    told = desk.listen({"home": FREE, "phone": FREE})
    watch = PortalWatch(told, check=told.check)
    desk.run(watch)
    watch.networks_changed([desk.wifi, desk.lte])
    await until(lambda: len(told.checks) == 2)
    await asyncio.sleep(40.0)
    told.answers["home"] = SILENT
    stuck = [desk.flow(desk.wifi, n, state=2) for n in (1, 2, 3)]
    watch.observe_flows(stuck)
    await asyncio.sleep(0.95)
    watch.observe_flows(stuck)
    await until(lambda: told.life() is NetworkLife.DEAD)
    assert told.checks[2:] == [("home", 0.8)]
    # It is asked for again, and less often each time.
    began_s = time.monotonic()
    told.answers["home"] = FREE
    await until(lambda: told.life() is NetworkLife.ALIVE, 60.0)
    assert round(time.monotonic() - began_s) == 5


def test_the_usual_round_trip() -> None:
    rtt, now_s = Indicator(0.04, 1.0), time.monotonic()
    assert usual_rtt_s({"home": {"rtt_s": rtt}}, "home") == 0.04
    assert usual_rtt_s({"home": {"rtt_s": rtt, "ping_loss": Indicator(1.0, now_s)}}, "home") is None
    assert usual_rtt_s({}, "home") is None
