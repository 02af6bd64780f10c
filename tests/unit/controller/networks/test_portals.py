"""Checks for captive portals: when, of which network, and what the network's state learns."""

from dataclasses import replace
from ipaddress import ip_address

import pytest

from cedos.controller.events import PortalFinding, PortalVerdict, TlsAnswer, Witness
from cedos.model import Indicator, NetworkLife, NextHop

FREE = PortalFinding(PortalVerdict.FREE, "well")
SILENT = PortalFinding(PortalVerdict.SILENT, "the test page does not answer")
ADDRESS = ip_address("203.0.113.9")
PORTAL = PortalFinding(
    PortalVerdict.CAPTIVE, "redirected", "http://gw/", "302", hosts={"gw": (ADDRESS,)}
)
NO_NAMES = PortalFinding(PortalVerdict.SILENT, "names are not answered", witness=Witness.NAME)
FILTERED = PortalFinding(PortalVerdict.FILTERED, "page.test leads to 0.0.0.0 there")


def test_a_network_whose_router_is_another_one_each_moment_is_not_checked_each_time(desk):
    """A neighbour that announces itself by turns had 65 checks made a second, also of a metered one."""
    told = desk.listen({"home": FREE, "phone": FREE})
    for number in range(600):
        gateway = NextHop(4, ip_address(f"10.0.1.{number % 2 + 1}"))
        told.networks(replace(desk.wifi, next_hops=(gateway,), up=number % 5 > 0), desk.lte)
        told.wait(0.05)
    checked = [network for network, _ in told.checks]
    assert 15 <= checked.count("home") <= 18
    assert checked.count("phone") == 1
    told.wait(60.0)
    assert len(told.checks) <= len(checked) + 1


def test_a_portal_needs_a_second_witness_and_its_hosts_are_known(desk):
    told = desk.listen({"home": PORTAL, "phone": FREE})
    told.tls = {"home": TlsAnswer.SILENT, "phone": TlsAnswer.PROVEN}
    watch = told.watch
    told.networks(desk.wifi, desk.lte)
    told.until(lambda: told.life() is NetworkLife.CAPTIVE)
    assert told.life("phone") is NetworkLife.ALIVE
    assert told.problems == [
        "home wants a log-in: redirected. Open http://gw/ to log in: it opens over home."
        " Until then it is not used"
    ]
    assert list(watch.on_the_way()) == [("home", (ADDRESS,))]
    # It is asked again, until it is free, and then no more.
    told.until(lambda: len(told.checks) >= 4, 100.0)
    told.answers["home"] = FREE
    told.until(lambda: told.life() is NetworkLife.ALIVE, 60.0)
    assert list(watch.on_the_way()) == []
    checks = len(told.checks)
    told.wait(100.0)
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
def test_a_second_opinion_is_compared_with_the_other_network(desk, here, elsewhere, life):
    told = desk.listen({"home": PORTAL, "phone": FREE})
    told.tls = {"home": here, "phone": elsewhere}
    watch = told.watch
    told.networks(desk.wifi, desk.lte)
    told.until(lambda: sorted(told.shaken) == ["home", "phone"])
    told.wait(0.05)
    assert told.life() is life
    if life is NetworkLife.UNKNOWN:
        assert told.problems == [
            "home may want a log-in: redirected. Open http://gw/ to log in: it opens over home."
            " Nothing else tells of it, so home is used"
        ]
    # Its page opens over its network in any case.
    proven = here is TlsAnswer.PROVEN
    assert list(watch.on_the_way()) == ([] if proven else [("home", (ADDRESS,))])


def test_a_filtered_page_is_told_and_asked_for_once(desk):
    told = desk.listen({"home": FILTERED, "phone": FREE})
    watch = told.watch
    told.networks(desk.wifi, desk.lte)
    told.until(lambda: len(told.checks) == 2)
    for server in (1, 2):
        watch.on_rescue(desk.flow(desk.wifi, server).key, told.now_s)
    told.wait(200.0)
    assert len(told.checks) == 2
    (problem,) = told.problems
    assert problem.startswith("the portal check is filtered on home: page.test leads to 0.0.0.0")
    assert told.life() is NetworkLife.UNKNOWN
    watch.recheck(told.now_s, "home")
    told.until(lambda: len(told.checks) == 3)


def test_what_may_be_a_filter_is_not_asked_for_for_ever(desk):
    told = desk.listen({"home": PORTAL, "phone": FREE})
    told.networks(desk.wifi, desk.lte)
    told.wait(4000.0)
    assert len(told.checks) == 2 + 5
    assert told.life() is NetworkLife.UNKNOWN


def test_the_user_who_logs_in_is_let_back_soon(desk):
    told = desk.listen({"home": PORTAL})
    told.tls = {"home": TlsAnswer.SILENT}
    watch = told.watch
    told.networks(desk.wifi)
    told.until(lambda: told.life() is NetworkLife.CAPTIVE)
    watch.on_bytes("home", 1000, told.now_s)
    told.wait(10.0)
    assert len(told.checks) == 1
    told.answers["home"] = FREE
    watch.on_bytes("home", 30_000, told.now_s)
    told.until(lambda: told.life() is NetworkLife.ALIVE)


def test_what_a_log_in_page_loads_refutes_nothing(desk):
    told = desk.listen({"home": replace(PORTAL, hosts={"gw": (ip_address("198.51.100.3"),)})})
    told.tls = {"home": TlsAnswer.SILENT}
    watch = told.watch
    told.networks(desk.wifi)
    told.until(lambda: told.life() is NetworkLife.CAPTIVE)
    for server, port in ((5, 80), (3, 443)):
        watch.observe_flows([desk.flow(desk.wifi, server, down=90_000, port=port)], [], told.now_s)
        assert told.life() is NetworkLife.CAPTIVE
    watch.observe_flows([desk.flow(desk.wifi, 6, down=90_000)], [], told.now_s)
    assert told.life() is NetworkLife.ALIVE


def test_the_same_wrong_answer_on_two_networks_is_the_pages_fault(desk):
    told = desk.listen({"home": PORTAL, "phone": PORTAL})
    told.tls = {"home": TlsAnswer.SILENT, "phone": TlsAnswer.REFUSED}
    told.networks(desk.wifi)
    told.until(lambda: told.life() is NetworkLife.CAPTIVE)
    told.networks(desk.wifi, desk.lte)
    told.until(lambda: len(told.checks) == 2)
    told.until(lambda: told.life() is NetworkLife.UNKNOWN)
    assert told.problems == []


@pytest.mark.parametrize(
    ("known", "patience_s"),
    [
        ({"rtt_s": 0.9}, 5.4),
        ({"rtt_s": 0.04}, 2.5),
        ({"rtt_s": 9.0}, 10.0),
        ({"rtt_s": 0.9, "ping_loss": 1.0}, 2.5),
        ({}, 2.5),
    ],
)
def test_a_slow_network_is_given_time(desk, known, patience_s):
    told = desk.listen({"home": FREE})
    told.keeper.update("home", {name: Indicator(each, told.now_s) for name, each in known.items()})
    told.networks(desk.wifi)
    told.until(lambda: told.checks)
    assert told.checks == [("home", pytest.approx(patience_s))]


def test_names_that_are_not_answered_need_a_second_witness_too(desk):
    told = desk.listen({"home": NO_NAMES, "phone": FREE})
    watch = told.watch
    told.networks(desk.lte, desk.wifi)
    told.until(lambda: len(told.checks) >= 2)
    assert told.life() is NetworkLife.UNKNOWN
    assert told.problems == ["home: its DNS does not answer, another network's does"]
    told.tls = {"home": TlsAnswer.SILENT, "phone": TlsAnswer.PROVEN}
    watch.recheck(told.now_s, "home")
    told.until(lambda: told.life() is NetworkLife.DEAD)
    assert told.problems == ["home: its DNS does not answer, another network's does. Not used"]
    # Its pings are answered: nothing else would tell that it carries again.
    told.answers["home"] = FREE
    told.until(lambda: told.life() is NetworkLife.ALIVE, 60.0)


@pytest.mark.parametrize("answered_before", [True, False])
def test_a_router_that_may_be_no_resolver_counts_once_it_was_one(desk, answered_before):
    """Without a known resolver of a network its router is asked, and may be none."""
    guess = replace(NO_NAMES, guessed=True)
    told = desk.listen({"home": FREE if answered_before else guess, "phone": FREE})
    told.networks(desk.lte, desk.wifi)
    told.until(lambda: len(told.checks) == 2)
    told.networks(desk.lte)
    told.state("home").forget()
    told.answers["home"] = guess
    told.networks(desk.lte, desk.wifi)
    told.until(lambda: len(told.checks) == 3)
    told.wait(0.02)
    assert told.state("home").misses(Witness.NAME) is answered_before


def test_connections_in_vain_are_one_witness_and_other_networks_the_second(desk):
    told = desk.listen()
    watch = told.watch
    told.networks(desk.wifi, desk.lte)
    told.wait(0.02)
    for server in (1, 2):
        watch.on_rescue(desk.flow(desk.wifi, server).key, told.now_s)
    told.wait(0.7)
    watch.observe_flows([], [], told.now_s)
    assert told.state("home").misses(Witness.CONNECTION)
    assert told.life() is NetworkLife.UNKNOWN, "these servers may be down"
    for server in (1, 2):
        watch.answered_elsewhere(desk.flow(desk.wifi, server).key)
    watch.observe_flows([], [], told.now_s)
    assert told.life() is NetworkLife.DEAD
    # It was a pause: a server answers there.
    watch.observe_flows([desk.flow(desk.wifi, 3, down=500)], [], told.now_s)
    assert told.life() is NetworkLife.ALIVE


def test_an_address_that_two_networks_have_is_the_first_one_s(desk):
    """A network that gives this host another one's address had that one condemned in its place."""
    told = desk.listen()
    told.networks(desk.wifi, replace(desk.lte, addresses=desk.wifi.addresses))
    for server in (1, 2):
        key = desk.flow(desk.wifi, server).key
        told.watch.on_rescue(key, told.now_s)
        told.watch.answered_elsewhere(key)
    told.wait(0.7)
    told.watch.observe_flows([], [], told.now_s)
    assert told.life() is NetworkLife.DEAD
    assert told.life("phone") is NetworkLife.UNKNOWN


def test_connections_that_wait_have_the_page_asked_for(desk):
    told = desk.listen({"home": FREE, "phone": FREE})
    watch = told.watch
    told.networks(desk.wifi, desk.lte)
    told.until(lambda: len(told.checks) == 2)
    told.wait(40.0)
    told.answers["home"] = SILENT
    stuck = [desk.flow(desk.wifi, n, state=2) for n in (1, 2, 3)]
    watch.observe_flows(stuck, [], told.now_s)
    told.wait(0.95)
    watch.observe_flows(stuck, [], told.now_s)
    told.until(lambda: told.life() is NetworkLife.DEAD)
    assert told.checks[2:] == [("home", 0.8)]
    # It is asked for again, and less often each time.
    began_s = told.now_s
    told.answers["home"] = FREE
    told.until(lambda: told.life() is NetworkLife.ALIVE, 60.0)
    assert round(told.now_s - began_s) == 5
