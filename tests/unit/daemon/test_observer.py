"""The observer: it questions networks and hands events on, and keeps nothing itself."""

import asyncio
from dataclasses import dataclass, field, replace
from ipaddress import ip_address, ip_interface

import pytest
from kit.controller import Script

from cedos.config import Config, ProbesConfig, ProvidersConfig
from cedos.controller import events as on
from cedos.controller.commands import AskName, CheckPage, ShakeHands
from cedos.controller.flows.living_flows import LivingFlows
from cedos.controller.networks.observation import NetworkObservation
from cedos.controller.outbox import Outbox
from cedos.daemon.observer import Observer
from cedos.host.monitor.providers.provider import AccessPoint, GuardedProvider
from cedos.kernel.rtnetlink import Counters
from cedos.model import Network, NetworkKind, NextHop

GATEWAY = ip_address("10.0.0.1")
WLAN = Network(
    *("wlan0", "wlan0", 2, NetworkKind.WIFI, False, (ip_interface("10.0.0.2/24"),)),
    next_hops=(NextHop(4, GATEWAY),),
)
LTE = Network("lte0", "lte0", 3, NetworkKind.CELLULAR, True, (ip_interface("10.1.0.2/24"),))


@dataclass
class Watched:
    """An observer of two networks, and the events that it posted."""

    target: str = "1.1.1.1"
    dns: bool = True
    events: list[on.Event] = field(default_factory=list)
    may: object = lambda *_: True

    def __post_init__(self):
        config = Config(
            providers=ProvidersConfig(host=False),
            probes=ProbesConfig(target=self.target, portal_url="", dns=self.dns),
        )
        self.known = NetworkObservation(Outbox(), LivingFlows())
        self.observer = Observer(config, None, self.events.append, self.known, may=self.may)
        self.observer.networks_changed([WLAN, LTE])
        self.observer.watch([WLAN, LTE])

    async def rest(self):
        for _ in range(20):
            await asyncio.sleep(0)


async def test_a_well_known_host_is_asked_only_where_it_lies_beyond_the_router(monkeypatch):
    asked = []

    async def shake_hands(network, target, timeout_s):
        asked.append(target)
        return on.TlsAnswer.PROVEN

    monkeypatch.setattr("cedos.daemon.observer.shake_hands", shake_hands)
    for target, answer in (("gateway", None), ("1.1.1.1", on.TlsAnswer.PROVEN)):
        watched = Watched(target)
        watched.observer.ask(ShakeHands("wlan0", 3, 1.0))
        await watched.rest()
        assert watched.events == [on.HandshakeEnded("wlan0", 3, answer)]
    assert asked == [ip_address("1.1.1.1")]


async def test_a_host_is_not_asked_where_a_rule_forbids_it(monkeypatch):
    """Tell the two apart: a network whose checks a filter drops counted as dead."""
    asked = []

    async def anything(*_):
        asked.append(_)

    monkeypatch.setattr("cedos.daemon.observer.shake_hands", anything)
    watched = Watched(may=lambda network, address, port: (network.name, port) == ("lte0", 53))
    monkeypatch.setattr(watched.observer.prober, "knows_names", anything)
    for question in (ShakeHands("lte0", 3, 1.0), AskName("wlan0")):
        watched.observer.ask(question)
    await watched.rest()
    assert watched.events == [on.HandshakeEnded("lte0", 3, None)]
    assert asked == []


async def test_pings_that_end_and_counters_are_events(monkeypatch):
    watched = Watched()
    observer = watched.observer

    async def counters(index):
        return Counters(1000 * index, 10 * index)

    monkeypatch.setattr(observer._counters, "read", counters)
    following = asyncio.create_task(observer._follow_probes())
    await watched.rest()
    observer.prober._on_finished("wlan0", 0.03, 1.0)
    observer.prober._on_finished("lte0", None, 1.0)
    await watched.rest()
    await observer._read(WLAN)
    following.cancel()
    pings = [each for each in watched.events if isinstance(each, on.PingEnded)]
    assert [(each.network, each.rtt_s) for each in pings] == [("wlan0", 0.03), ("lte0", None)]
    assert on.CountersRead("wlan0", 2000, 20) in watched.events
    assert not [each for each in watched.events if isinstance(each, on.Attached)]


class Roaming:
    """A provider of a network's access point."""

    name = "roaming"
    point = AccessPoint("02:00:00:00:00:01", "home")

    async def read(self, network, now_s):
        return {}

    def access_point(self, network):
        return self.point

    async def close(self):
        pass


async def test_an_access_point_is_told_of_until_the_controller_knows_it():
    watched, roaming = Watched(), Roaming()
    watched.observer._providers = [GuardedProvider(roaming, print)]
    keeper = watched.known.keeper
    for bssid in ("02:00:00:00:00:01", "02:00:00:00:00:02"):
        roaming.point = AccessPoint(bssid, "home")
        await watched.observer._read(WLAN)
        assert on.Attached("wlan0", bssid, "home") in watched.events
        keeper.observe_attachment("wlan0", bssid, "home", 1.0)
        watched.events.clear()
        await watched.observer._read(WLAN)
        assert not [each for each in watched.events if isinstance(each, on.Attached)]
    watched.observer._counters.close()


@pytest.mark.parametrize(
    ("dns", "knows", "said"),
    [(True, True, [True]), (True, False, [False]), (True, None, []), (False, True, [])],
)
async def test_a_network_that_is_asked_for_names_says_whether_it_knows_them(
    monkeypatch, dns, knows, said
):
    watched = Watched(dns=dns)
    asked = []

    async def knows_names(network):
        asked.append(network.name)
        return knows

    monkeypatch.setattr(watched.observer.prober, "knows_names", knows_names)
    watched.observer.ask(AskName("wlan0"))
    watched.observer.ask(AskName("eth7"))  # it is gone
    await watched.rest()
    assert asked == ["wlan0"] * dns
    names = [each for each in watched.events if isinstance(each, on.Witnessed)]
    assert [(each.network, each.heard, each.witness) for each in names] == [
        ("wlan0", heard, on.Witness.NAME) for heard in said
    ]


async def test_a_network_that_never_answers_pings_is_not_pinged():
    watched = Watched()
    assert watched.observer._ping_target(WLAN) == ip_address("1.1.1.1")
    liveness = watched.known.keeper.liveness("wlan0")
    for second in range(10):
        liveness.on_heard(on.Witness.NAME, float(second))
        liveness.on_missed(on.Witness.PING, float(second), float(second))
    assert watched.observer._ping_target(WLAN) is None


async def test_the_prober_is_told_once_of_what_was_heard():
    """It pings no network that is known to live."""
    watched = Watched()
    watched.known.on_answer(("wlan0"), on.Witness.TRANSFER, 10.0)
    watched.observer.follow_heard()
    assert watched.observer.prober.heard_at_s["wlan0"] == 10.0
    watched.known.on_answer("wlan0", on.Witness.TRANSFER, 9.0)
    watched.observer.follow_heard()
    assert watched.observer.prober.heard_at_s["wlan0"] == 10.0


@pytest.mark.parametrize("network", ["wlan0", "eth7"])
async def test_every_check_has_an_answer(monkeypatch, network):
    """The controller waits for it: also if the check fails, or the network is gone."""
    watched = Watched()

    async def fails(network, timeout_s):
        raise KeyError("a fault")

    monkeypatch.setattr(watched.observer, "_check", fails)
    watched.observer.ask(CheckPage(network, 7, 1.0))
    await watched.rest()
    (event,) = watched.events
    assert isinstance(event, on.PageChecked)
    assert (event.network, event.number) == (network, 7)
    assert event.finding.verdict is on.PortalVerdict.UNCLEAR
    assert ("KeyError" in event.finding.why) is (network == "wlan0")


async def test_a_network_that_answers_nothing_holds_up_no_other():
    asked = []

    class Deaf:
        async def knows_names(self, network):
            asked.append(network.name)
            if network.name == "wlan0":
                await asyncio.Event().wait()

    observer = Observer(Config(), None, lambda event: None, Script().controller.networks)
    observer._networks = (WLAN, LTE)
    observer.prober = Deaf()
    for _ in range(2):  # the second is none while the first one lasts
        observer.ask(AskName("wlan0"))
    observer.ask(AskName("lte0"))
    observer.ask(AskName("gone0"))
    await asyncio.sleep(0.01)
    assert asked == ["wlan0", "lte0"]
    for task in observer._asking.values():
        task.cancel()


async def test_helpers_are_counted_and_neither_asked_nor_named(monkeypatch):
    counted = []
    watched = Watched()
    observer = watched.observer
    monkeypatch.setattr(observer, "_metered", lambda net, read, _: counted.append((net.name, read)))
    helper = replace(WLAN, name="helper-1", kind=NetworkKind.HELPER)
    observer.networks_changed([WLAN, LTE], [helper])
    observer._count_helpers()
    observer.networks_changed([WLAN, LTE], [])
    observer._count_helpers()
    # Once as it is there, and once when it goes.
    assert counted == [("helper-1", Counters(0, 0))] * 2
    assert observer.find_network("helper-1") is None


async def test_no_network_is_pinged_where_a_rule_forbids_it():
    """The filter of rules drops such pings: the network would count as silent."""
    asked = []
    watched = Watched(may=lambda network, *of: asked.append((network.name, *of)))
    assert watched.observer._ping_target(WLAN) is None
    assert asked == [("wlan0", ip_address("1.1.1.1"), 0)]
