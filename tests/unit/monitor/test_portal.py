"""Captive portals: what answers say, and when which network is looked at."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from ipaddress import ip_address, ip_interface

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.model import FlowKey, Indicator, Network, NetworkKind
from cedos.monitor import portal_watch
from cedos.monitor.events import FlowSample
from cedos.monitor.portal import Finding, TestPage, Verdict, judge, same_private_address
from cedos.monitor.portal_watch import PortalWatch, usual_rtt_s
from cedos.monitor.unanswered import Unanswered

pytestmark = pytest.mark.anyio

PAGE = TestPage.of("http://portal.test:8080/nm?x=1", "all is well")
WIFI = Network("home", "wlan0", 1, NetworkKind.WIFI, False, (ip_interface("10.0.1.2/24"),))
LTE = Network("phone", "lte0", 2, NetworkKind.CELLULAR, True, (ip_interface("10.0.2.2/24"),))
FREE = Finding(Verdict.FREE, "well")
SILENT = Finding(Verdict.SILENT, "the test page does not answer")


def test_the_page_of_a_url() -> None:
    assert (PAGE.host, PAGE.port, PAGE.path) == ("portal.test", 8080, "/nm?x=1")
    assert b"GET /nm?x=1 HTTP/1.1\r\nHost: portal.test\r\n" in PAGE.request()
    assert b"Host: [2001:db8::1]\r\n" in TestPage.of("http://[2001:db8::1]", "").request()
    for url in ("https://portal.test/", "portal.test", "http:///x", "http://a:b@c/", "http://a:x/"):
        with pytest.raises(ValueError, match=r"."):
            TestPage.of(url, "")


@pytest.mark.parametrize(
    ("answer", "verdict", "page"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", Verdict.FREE, ""),
        (b"HTTP/1.1 200 OK\r\nServer: x\r\n\r\nall is well\n", Verdict.FREE, ""),
        (b"HTTP/1.1 200 OK\r\n\r\nb\r\nall is well\r\n0\r\n\r\n", Verdict.FREE, ""),
        (b"HTTP/1.1 200 OK\r\n\r\n<html>Welcome", Verdict.CAPTIVE, ""),
        (b"HTTP/1.1 302 Found\r\nLOCATION: http://gw/l\r\n\r\n", Verdict.CAPTIVE, "http://gw/l"),
        (b"HTTP/1.0 511 Log in\r\n\r\n", Verdict.CAPTIVE, ""),
        (b"HTTP/1.1 407 Proxy\r\n\r\n", Verdict.CAPTIVE, ""),
        (b"HTTP/1.1 200 OK\r\n\r\n", Verdict.UNCLEAR, ""),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", Verdict.UNCLEAR, ""),
        (b"HTTP/1.1 503 Busy\r\n\r\nall is well", Verdict.UNCLEAR, ""),
        (b"SSH-2.0-x\r\n", Verdict.CAPTIVE, ""),
        (b"", Verdict.SILENT, ""),
    ],
)
def test_what_an_answer_says(answer: bytes, verdict: Verdict, page: str) -> None:
    finding = judge(PAGE, answer)
    assert (finding.verdict, finding.page) == (verdict, page)


@given(st.binary(max_size=200))
def test_no_answer_breaks_the_judge(noise: bytes) -> None:
    for answer in (
        noise,
        b"HTTP/1.1 302 x\r\nLocation:" + noise,
        b"HTTP/1.1 200 OK\r\n\r\n" + noise,
    ):
        assert judge(PAGE, answer).verdict in Verdict


def test_one_private_address_for_every_name() -> None:
    gateway, public = (ip_address("192.168.0.1"),), (ip_address("198.51.100.7"),)
    assert same_private_address({"a": gateway, "b.invalid": gateway}) == gateway[0]
    assert same_private_address({"a": gateway}) is None
    assert same_private_address({"a": public, "b.invalid": public}) is None
    assert same_private_address({"a": public, "b.invalid": gateway}) is None
    assert same_private_address({"a": (), "b": ()}) is None


def flow(network: Network, server: int, *, state: int = 1, down: int = 0) -> FlowSample:
    local = network.addresses[0].ip
    key = FlowKey(local, 5000 + server, ip_address(f"198.51.100.{server}"), 443)
    return FlowSample(key, 1.0, state, None, None, None, None, down, 0, 0, 9.0, 0)


def test_who_waits_in_vain() -> None:
    watch, nets, now_s = Unanswered(), [WIFI, LTE], 5.0
    stuck = [flow(WIFI, 1, state=2), flow(WIFI, 2, state=2)]
    assert watch.observe(stuck, nets, 1.0) == frozenset()
    assert watch.observe(stuck[:1], nets, 2.0) == {"home"}
    assert watch.in_vain("home", now_s) == 0  # one server may be down
    assert watch.observe(stuck, nets, 2.5) == {"home"}
    assert watch.observe(stuck, nets, 3.5) == {"home"}
    assert watch.in_vain("home", now_s) == 2
    # Something else came through: it is the servers.
    alive = flow(WIFI, 3, down=500)
    assert watch.observe([*stuck, alive], nets, 4.5) == frozenset()
    assert watch.in_vain("home", now_s) == 0
    assert watch.observe([*stuck, alive], nets, 5.5) == {"home"}
    # Connections that do come up, and those of no network, say nothing.
    assert watch.observe([replace(one, state=1) for one in stuck], nets, 6.5) == frozenset()
    assert watch.observe([flow(LTE, 1, state=2)], [WIFI], 9.0) == frozenset()


def test_rescued_connections_speak_against_the_network_they_were_on() -> None:
    watch = Unanswered()
    for server, enough in ((1, False), (1, False), (2, True), (2, False), (3, False)):
        if server < 3:
            assert watch.in_vain("home", 5.0) == 0
        assert watch.rescued("home", flow(WIFI, server).key.remote, 5.0) is enough
    # Whoever asks the same server again does not make it wait anew.
    assert not watch.rescued("home", flow(WIFI, 1).key.remote, 5.6)
    assert watch.in_vain("home", 5.6) == 0, "it may be a pause"
    assert watch.in_vain("home", 5.7) == 3
    assert watch.in_vain("phone", 5.7) == 0
    assert watch.in_vain("home", 15.1) == 0
    watch.observe([flow(WIFI, 3, down=1)], [WIFI], 6.0)
    assert watch.in_vain("home", 6.0) == 0


class Told:
    """Keeps what a watch told; `answers` is what a look at each network finds."""

    def __init__(self, answers: dict[str, Finding]) -> None:
        self.answers = answers
        self.values: list[tuple[str, float]] = []
        self.looks: list[tuple[str, float]] = []

    def __call__(self, name: str, captive: Indicator) -> None:
        self.values.append((name, captive.value))

    async def check(self, network: Network, timeout_s: float) -> Finding:
        self.looks.append((network.name, timeout_s))
        return self.answers[network.name]


async def until(condition: Callable[[], object], limit_s: float = 5.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.fixture
async def run() -> object:
    """Runs watches; they end with the test."""
    tasks = []

    def start(watch: PortalWatch) -> None:
        tasks.append(asyncio.create_task(watch.run()))

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_each_new_network_is_looked_at_once(run: Callable[[PortalWatch], None]) -> None:
    portal = Finding(Verdict.CAPTIVE, "redirected", "http://gw/", "302")
    told = Told({"home": portal, "phone": FREE})
    watch = PortalWatch(told, check=told.check)
    run(watch)
    watch.networks_changed([WIFI, LTE, replace(LTE, name="off", up=False)])
    await until(lambda: len(told.values) == 2)
    assert sorted(told.values) == [("home", 1.0), ("phone", 0.0)]
    assert watch.problems == ["home lets nothing through: redirected; open http://gw/ to log in"]
    watch.networks_changed([WIFI, LTE])
    await asyncio.sleep(0.05)
    assert len(told.looks) == 2
    # Another attachment is another network; so is another access point.
    told.answers["home"] = FREE
    watch.networks_changed([replace(WIFI, gateways=(ip_address("10.0.1.254"),)), LTE])
    await until(lambda: told.values[-1] == ("home", 0.0))
    assert watch.problems == []
    watch.look("phone")
    await until(lambda: len(told.looks) == 4)
    watch.look()
    await until(lambda: len(told.looks) == 6)


async def test_a_captive_one_is_tried_again(
    run: Callable[[PortalWatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portal_watch, "CAPTIVE_EVERY_S", 0.05)
    told = Told({"home": Finding(Verdict.CAPTIVE, "x")})
    watch = PortalWatch(told, check=told.check)
    run(watch)
    watch.networks_changed([WIFI])
    await until(lambda: len(told.looks) >= 3)
    told.answers["home"] = FREE
    await until(lambda: told.values[-1] == ("home", 0.0))
    looks = len(told.looks)
    await asyncio.sleep(0.15)
    assert len(told.looks) == looks


async def test_whoever_logs_in_is_let_back_soon(
    run: Callable[[PortalWatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portal_watch, "LOGGING_IN_EVERY_S", 0.02)
    told = Told({"home": Finding(Verdict.CAPTIVE, "x")})
    watch = PortalWatch(told, check=told.check)
    run(watch)
    watch.networks_changed([WIFI])
    await until(lambda: told.values)
    watch.carried("home", 1000)
    await asyncio.sleep(0.1)
    assert len(told.looks) == 1
    told.answers["home"] = FREE
    watch.carried("home", 30_000)
    await until(lambda: told.values[-1] == ("home", 0.0))


async def test_the_same_wrong_answer_on_two_networks_is_the_pages_fault(
    run: Callable[[PortalWatch], None],
) -> None:
    wrong = Finding(Verdict.CAPTIVE, "another page", likeness="200 abc")
    told = Told({"home": wrong, "phone": wrong})
    watch = PortalWatch(told, check=told.check)
    run(watch)
    watch.networks_changed([WIFI, LTE])
    await until(lambda: len(told.looks) == 2)
    await until(lambda: told.values[-1:] == [("home", 0.0)])
    assert ("phone", 1.0) not in told.values
    assert watch.problems == []


async def test_silence_counts_where_the_page_answers_another_network(
    run: Callable[[PortalWatch], None],
) -> None:
    rtts: dict[str, float] = {"home": 0.03}
    told = Told({"home": SILENT, "phone": FREE})
    watch = PortalWatch(told, check=told.check, rtt_s=rtts.get)
    run(watch)
    watch.networks_changed([LTE])
    await until(lambda: told.values == [("phone", 0.0)])
    watch.networks_changed([LTE, WIFI])
    await until(lambda: ("home", 1.0) in told.values)
    # One that answers no ping is dead anyway; nobody calls it captive.
    rtts.clear()
    told.values.clear()
    watch.look("home")
    await until(lambda: len(told.looks) == 3)
    assert told.values == []


async def test_a_slow_network_is_given_time(run: Callable[[PortalWatch], None]) -> None:
    told = Told({"home": FREE})
    watch = PortalWatch(told, check=told.check, rtt_s=lambda name: 0.9)
    run(watch)
    watch.networks_changed([WIFI])
    await until(lambda: told.looks)
    assert told.looks == [("home", pytest.approx(5.4))]


async def test_unanswered_connections_are_looked_into(run: Callable[[PortalWatch], None]) -> None:
    told = Told({"home": Finding(Verdict.CAPTIVE, "x")})
    asked: list[str] = []

    async def gateway(network: Network) -> bool:
        asked.append(network.name)
        return True

    watch = PortalWatch(told, gateway_answers=gateway)
    run(watch)
    watch.networks_changed([WIFI])
    await asyncio.sleep(0.02)
    assert told.values == []
    stuck = [flow(WIFI, n, state=2) for n in (1, 2, 3)]
    watch.observe_flows(stuck)
    await asyncio.sleep(0.95)
    watch.observe_flows(stuck)
    await until(lambda: told.values == [("home", 1.0)])
    assert asked == ["home"]
    (problem,) = watch.problems
    assert "none of 3 servers" in problem


async def test_an_outage_is_no_portal_once_a_ping_is_answered(
    run: Callable[[PortalWatch], None],
) -> None:
    waiting = True
    told: list[float] = []

    async def answers(network: Network) -> bool:
        return True

    watch = PortalWatch(
        lambda name, said: told.append(said.value),
        gateway_answers=answers,
        pings_wait=lambda network: waiting,
    )
    run(watch)
    watch.networks_changed([WIFI])
    await asyncio.sleep(0.01)

    async def none_answers() -> None:
        for server in ("198.51.100.1", "198.51.100.2"):
            watch._unanswered.rescued(WIFI.name, ip_address(server), time.monotonic() - 1.0)
        watch.unanswered(WIFI.name)
        await asyncio.sleep(0.05)

    watch.pinged(WIFI.name)
    await none_answers()
    assert told == [1.0]
    watch.pinged(WIFI.name)
    assert told == [1.0, 0.0]
    # A portal that lets pings through is one all the same.
    waiting = False
    await none_answers()
    watch.pinged(WIFI.name)
    assert told == [1.0, 0.0, 1.0]


async def test_that_nobody_answers_is_believed_for_longer_each_time(
    run: Callable[[PortalWatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portal_watch, "SILENT_AGAIN_S", 0.05)
    told: list[float] = []

    async def answers(network: Network) -> bool:
        return True

    watch = PortalWatch(lambda name, said: told.append(said.value), gateway_answers=answers)
    run(watch)
    watch.networks_changed([WIFI])
    await asyncio.sleep(0.01)

    async def believed_s() -> float:
        for server in ("198.51.100.1", "198.51.100.2"):
            watch._unanswered.rescued(WIFI.name, ip_address(server), time.monotonic() - 1.0)
        watch.unanswered(WIFI.name)
        await until(lambda: told[-1:] == [1.0])
        began_s = time.monotonic()
        await until(lambda: told[-1] == 0.0)
        return time.monotonic() - began_s

    assert 0.04 <= await believed_s() < 0.09
    # Nobody was answered meanwhile: it is the same silence.
    assert 0.09 <= await believed_s() < 0.18
    assert 0.19 <= await believed_s() < 0.38
    watch.observe_flows([flow(WIFI, 3, down=500)])
    assert 0.04 <= await believed_s() < 0.09, "it has carried something since"


async def test_a_silent_page_stays_one_until_it_answers(
    run: Callable[[PortalWatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where another network vouches for the page; and what waits for an answer may get it."""
    monkeypatch.setattr(portal_watch, "SILENT_AGAIN_S", 0.02)
    monkeypatch.setattr(portal_watch, "CAPTIVE_EVERY_S", 0.1)
    told = Told({"home": SILENT, "phone": FREE})
    watch = PortalWatch(
        told, check=told.check, rtt_s=lambda name: 0.03, pings_wait=lambda network: True
    )
    run(watch)
    watch.networks_changed([LTE])
    await until(lambda: told.values == [("phone", 0.0)])
    watch.networks_changed([LTE, WIFI])
    await until(lambda: told.values.count(("home", 1.0)) == 3)
    assert ("home", 0.0) not in told.values
    watch.pinged("home")
    assert told.values[-1] == ("home", 0.0), "it was an outage"
    # However often nobody has answered, it is looked at again.
    watch._watched["home"].silences = 10_000
    watch.look("home")
    await until(lambda: told.values[-1] == ("home", 1.0))
    told.answers["home"] = FREE
    await until(lambda: told.values[-1] == ("home", 0.0))


async def test_a_ping_does_not_free_a_network_whose_portal_was_seen(
    run: Callable[[PortalWatch], None],
) -> None:
    told = Told({"home": Finding(Verdict.CAPTIVE, "a log-in page")})
    watch = PortalWatch(told, check=told.check, pings_wait=lambda network: True)
    run(watch)
    watch.networks_changed([WIFI])
    await until(lambda: told.values == [("home", 1.0)])
    watch.pinged("home")
    assert told.values == [("home", 1.0)]


async def test_so_are_rescued_ones(run: Callable[[PortalWatch], None]) -> None:
    async def gateway(network: Network) -> bool:
        return True

    told = Told({})
    watch = PortalWatch(told, gateway_answers=gateway)
    run(watch)
    watch.networks_changed([WIFI, LTE])
    await asyncio.sleep(0.02)
    began_s = time.monotonic()
    for server in (1, 2):
        assert told.values == []
        watch.rescued(flow(WIFI, server).key)
        await asyncio.sleep(0.05)
    await until(lambda: told.values == [("home", 1.0)])
    assert time.monotonic() - began_s < 1.5, (
        "the look waits for the second, and not for the next one"
    )
    # It was a pause: somebody is answered there.
    watch.observe_flows([flow(WIFI, 3, down=500)])
    assert told.values == [("home", 1.0), ("home", 0.0)]


async def test_what_the_test_page_says_is_not_refuted_by_a_log_in_page(
    run: Callable[[PortalWatch], None],
) -> None:
    told = Told({"home": Finding(Verdict.CAPTIVE, "another page")})
    watch = PortalWatch(told, check=told.check)
    run(watch)
    watch.networks_changed([WIFI])
    await until(lambda: told.values == [("home", 1.0)])
    watch.observe_flows([flow(WIFI, 3, down=500)])
    assert told.values == [("home", 1.0)]


async def test_networkmanager_is_asked_where_the_page_says_nothing(
    run: Callable[[PortalWatch], None],
) -> None:
    said: dict[str, bool | None] = {"home": True, "phone": None}

    async def manager(network: Network) -> bool | None:
        return said[network.name]

    told = Told({})
    watch = PortalWatch(told, manager=manager)
    run(watch)
    watch.networks_changed([WIFI, LTE])
    await until(lambda: told.values == [("home", 1.0)])
    said["home"] = False
    watch.look()
    await until(lambda: told.values[-1] == ("home", 0.0))


async def test_a_look_that_raises_ends_nothing(run: Callable[[PortalWatch], None]) -> None:
    told = Told({})
    watch = PortalWatch(told, check=told.check)  # it raises KeyError
    run(watch)
    watch.networks_changed([WIFI])
    await until(lambda: told.looks)
    told.answers["home"] = FREE
    watch.look()
    await until(lambda: told.values == [("home", 0.0)])


def test_the_usual_round_trip() -> None:
    rtt, now_s = Indicator(0.04, 1.0), time.monotonic()
    assert usual_rtt_s({"home": {"rtt_s": rtt}}, "home") == 0.04
    assert usual_rtt_s({"home": {"rtt_s": rtt, "ping_loss": Indicator(1.0, now_s)}}, "home") is None
    assert usual_rtt_s({}, "home") is None
