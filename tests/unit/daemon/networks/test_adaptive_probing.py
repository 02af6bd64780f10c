"""Full probes: which rule is asked, what it may see, and what is sent when it says so."""

import asyncio
from dataclasses import dataclass, replace
from ipaddress import IPv4Address
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cedos.config import Config, ProbesConfig
from cedos.config.sections import EnergyConfig
from cedos.daemon.budgets.metering import radios_of
from cedos.daemon.networks import adaptive_probing
from cedos.daemon.networks.adaptive_probing import AdaptiveProbing, rule_of
from cedos.daemon.networks.observer import joules_taken
from cedos.host.monitor.probing.prober import Prober
from cedos.host.monitor.probing.result import ProbeKind, Spent
from cedos.model import Direction, Evaluation, Network, NetworkKind, NextHop, Strategy, StrategyKind
from cedos.selector.budgets.prices import Prices
from cedos.selector.probing.rules import FixedRate, Moment, PassiveChange
from cedos.selector.probing.value import ProbeValue

WIFI = Network("wlan0", "wlan0", 3, NetworkKind.WIFI, metered=False)
LTE = Network("lte0", "lte0", 4, NetworkKind.CELLULAR, metered=True)


@dataclass(frozen=True)
class Flat:
    """A quote that is the same for any amount."""

    rate: float

    def rate_for(self, amount: float, duration_s: float) -> float:
        return self.rate


class Recorder:
    """Stands in for the prober."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ProbeKind]] = []
        self.directions: list[Direction] = []

    def pings(self, network: Network) -> bool:
        return True

    async def probe(
        self, network: Network, kind: ProbeKind, direction: Direction = Direction.DOWN
    ) -> None:
        self.asked.append((network.name, kind))
        self.directions.append(direction)


def evaluation(name: str, cost: float) -> Evaluation:
    return Evaluation(Strategy(StrategyKind.SINGLE, (name,)), cost, cost, cost, 0.0, 0.0, cost)


def configured(**keys: Any) -> Config:
    return Config(probes=ProbesConfig(**keys))


def test_the_rule_is_the_configured_one() -> None:
    assert isinstance(rule_of(ProbesConfig(), [WIFI]), ProbeValue)
    assert isinstance(rule_of(ProbesConfig(rule="change"), [WIFI]), PassiveChange)
    assert isinstance(rule_of(ProbesConfig(rule="fixed"), [WIFI]), FixedRate)


def test_a_train_over_cellular_is_the_dearest_probe() -> None:
    moment = Moment(
        100.0, True, False, {}, (evaluation("wlan0", 0.2), evaluation("lte0", 0.3)), 0.05
    )
    # At a price of seconds per joule that Wi-Fi's probe can pay, and cellular's tail cannot.
    rule = rule_of(ProbesConfig(seconds_per_joule=0.01, seconds_per_mb=0.0), [WIFI, LTE])
    for network in (WIFI, LTE):
        rule.probed(network.name, replace(moment, now_s=70.0))
    assert rule.weigh("wlan0", moment).send
    assert not rule.weigh("lte0", moment).send


def test_the_ledgers_joules_are_those_of_the_configured_radios() -> None:
    lookup = Spent(70, 90, 0.6)
    papers = joules_taken(Config())(NetworkKind.CELLULAR, lookup, None)
    assert papers == pytest.approx((2.778 + 1.674) / 2 * 0.6 + 6.5, rel=0.1)
    energy = EnergyConfig(device="nexus-one", cellular="3g")
    told = Config(energy=energy)
    radio = radios_of(told)[NetworkKind.CELLULAR]
    watts = (radio.active_w(Direction.UP) + radio.active_w(Direction.DOWN)) / 2
    joules = joules_taken(told)(NetworkKind.CELLULAR, lookup, None)
    assert joules == pytest.approx(watts * 0.6 + radio.added_tail_j(None))
    assert abs(joules - papers) > 0.5, "the two phones differ"


def test_a_probe_pays_what_budgets_ask_today_like_any_transfer() -> None:
    """Worth it while data is free; not when a train's 60 kB cost a minute of waiting."""
    evaluations = (evaluation("wlan0", 2.0), evaluation("lte0", 2.1))
    moment = Moment(100.0, True, True, {}, evaluations, 1.0)
    rule = rule_of(ProbesConfig(server="192.0.2.1:7007", key_file=Path("k")), [WIFI, LTE])
    for network in (WIFI, LTE):
        rule.probed(network.name, replace(moment, now_s=70.0))
    assert all(rule.weigh(network.name, moment).send for network in (WIFI, LTE))
    dear = replace(moment, prices=Prices(data={"lte0": (Flat(1e-3),)}))
    assert rule.weigh("wlan0", dear).send, "its bytes are not what the budget counts"
    assert not rule.weigh("lte0", dear).send
    hungry = replace(moment, prices=Prices(energy=(Flat(10.0),)))
    assert not rule.weigh("lte0", hungry).send, "cellular's tail is what a probe takes most of"
    spent = replace(moment, prices=Prices(data={"lte0": (Flat(inf),)}))
    unknown = rule_of(ProbesConfig(), [WIFI, LTE])
    assert unknown.weigh("wlan0", spent).why == "never probed"
    assert unknown.weigh("wlan0", spent).send
    assert "a used-up budget forbids it" in unknown.weigh("lte0", spent).why
    assert not unknown.weigh("lte0", spent).send, "what is forbidden is not asked even once"


@pytest.mark.parametrize(("rival_s", "again"), [(0.21, True), (5.0, False)])
def test_only_an_answer_that_may_change_the_choice_is_asked_for(
    rival_s: float, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon's own rule, as it runs: half a minute of looks; a winner by far is not asked again."""
    monkeypatch.setattr(adaptive_probing, "_ASK_S", 0.001)
    recorder = Recorder()
    monkeypatch.setattr(recorder, "pings", lambda network: False)
    evaluations = (evaluation("wlan0", 0.2), evaluation("lte0", rival_s))
    clock = iter(range(10_000))
    monkeypatch.setattr(
        adaptive_probing, "time", SimpleNamespace(monotonic=lambda: float(next(clock)))
    )
    over = asyncio.Event()

    def moment(now_s: float, pending: bool, per_s: float, direction: Direction) -> Moment:
        if now_s >= 30.0:
            over.set()
        return Moment(now_s, True, False, {}, evaluations, 0.2)

    async def live() -> None:
        subject = AdaptiveProbing(configured(), cast(Prober, recorder), moment)
        subject.networks_changed([WIFI, LTE])
        running = asyncio.create_task(subject.run())
        await over.wait()
        running.cancel()

    asyncio.run(live())
    asked = [network for network, _ in recorder.asked]
    assert "lte0" in asked, "what was never probed is probed once"
    assert (asked.count("wlan0") > 1) is again


@pytest.mark.parametrize(
    ("heard", "pings", "dns", "asked"),
    [
        (False, True, True, []),
        (True, False, True, []),
        (False, False, True, [ProbeKind.DNS]),
        (False, False, False, []),
    ],
)
def test_a_look_up_stands_in_for_pings_that_are_in_vain_unless_programs_hear_it(
    heard: bool, pings: bool, dns: bool, asked: list[ProbeKind], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every two seconds at most."""
    monkeypatch.setattr(adaptive_probing, "_ASK_S", 0.001)
    clock = iter(range(10_000))
    monkeypatch.setattr(
        adaptive_probing, "time", SimpleNamespace(monotonic=lambda: float(next(clock)))
    )
    recorder = Recorder()
    monkeypatch.setattr(recorder, "pings", lambda network: pings)
    evaluations = (evaluation("wlan0", 0.2), evaluation("lte0", 0.21))
    over = asyncio.Event()

    def moment(now_s: float, pending: bool, per_s: float, direction: Direction) -> Moment:
        if now_s >= 21.0:
            over.set()
        at_s = {"wlan0": now_s - 0.4} if heard else {}
        return Moment(now_s, True, False, {}, evaluations, 1.0, heard_at_s=at_s)

    async def live() -> None:
        subject = AdaptiveProbing(configured(dns=dns), cast(Prober, recorder), moment)
        subject.networks_changed([WIFI])
        running = asyncio.create_task(subject.run())
        await (over.wait() if dns else asyncio.sleep(0.05))
        running.cancel()

    asyncio.run(live())
    kinds = [kind for _, kind in recorder.asked]
    assert set(kinds) == set(asked)
    assert not asked or 9 <= len(kinds) <= 11


@pytest.mark.parametrize(
    ("keys", "kinds"),
    [
        ({}, [ProbeKind.DNS]),
        ({"dns": False}, []),
        (
            {"server": "192.0.2.1:7007", "key_file": Path("k")},
            [ProbeKind.DNS, ProbeKind.UDP_TRAIN],
        ),
    ],
)
def test_each_network_is_probed_once_and_again_when_it_is_due(
    keys: dict[str, Any], kinds: list[ProbeKind], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adaptive_probing, "_ASK_S", 0.01)
    recorder = Recorder()
    seen: list[tuple[bool, float]] = []

    def moment(now_s: float, pending: bool, per_s: float, direction: Direction) -> Moment:
        seen.append((pending, per_s))
        return Moment(now_s, True, pending, {})

    async def live() -> None:
        subject = AdaptiveProbing(
            configured(rule="fixed", full_interval_s=3600.0, idle_interval_s=3600.0, **keys),
            cast(Prober, recorder),
            moment,
        )
        subject.networks_changed([WIFI, replace(LTE, up=False)])
        subject.on_transfer_begun()
        running = asyncio.create_task(subject.run())
        await asyncio.sleep(0.1)
        subject.networks_changed([WIFI, LTE])  # another set of networks is learned anew
        await asyncio.sleep(0.1)
        running.cancel()

    asyncio.run(live())
    once = [("wlan0", kind) for kind in kinds]
    assert recorder.asked == [*once, *once, *(("lte0", kind) for kind in kinds)]
    if kinds:
        assert seen[0] == (True, pytest.approx(1 / 60))
        assert seen[1][0] is False


def test_a_network_that_answers_nothing_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptive_probing, "_ASK_S", 0.01)
    asked: list[str] = []
    cellular = asyncio.Event()

    class Deaf:
        async def probe(self, network: Network, kind: ProbeKind) -> None:
            asked.append(network.name)
            if network is WIFI:
                await asyncio.Event().wait()
            cellular.set()

    async def live() -> None:
        config = configured(rule="fixed", full_interval_s=3600.0, idle_interval_s=3600.0)
        subject = AdaptiveProbing(
            config, cast(Prober, Deaf()), lambda now_s, *_: Moment(now_s, True, False, {})
        )
        subject.networks_changed([WIFI, LTE])
        running = asyncio.create_task(subject.run())
        await asyncio.wait_for(cellular.wait(), 30)
        running.cancel()

    asyncio.run(live())
    assert asked == ["wlan0", "lte0"]


def test_addresses_are_no_part_of_it() -> None:
    """A network that only got another address is the same one."""
    subject = AdaptiveProbing(
        configured(), cast(Prober, Recorder()), lambda *_: Moment(0, True, False, {})
    )
    subject.networks_changed([WIFI])
    rules = subject._rules
    subject.networks_changed([replace(WIFI, next_hops=(NextHop(4, IPv4Address("192.0.2.1")),))])
    assert subject._rules is rules


@pytest.mark.parametrize("forbidden", [False, True])
def test_it_is_told_why_networks_are_probed_or_not(
    forbidden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adaptive_probing, "_ASK_S", 0.001)
    evaluations = (evaluation("wlan0", 0.2), evaluation("lte0", 0.21))
    prices = Prices(data={"lte0": (Flat(inf if forbidden else 1e-9),)})
    looks = iter(range(3))
    over = asyncio.Event()

    def moment(now_s: float, pending: bool, per_s: float, direction: Direction) -> Moment:
        at_s = next(looks, None)
        if at_s is None:
            over.set()
        return Moment(2.0 if at_s is None else at_s, True, False, {}, evaluations, 0.2, prices)

    async def live() -> None:
        keys = {"server": "192.0.2.1:7007", "key_file": Path("k"), "seconds_per_mb": 10.0}
        subject = AdaptiveProbing(configured(**keys), cast(Prober, Recorder()), moment)
        assert subject.explained() == []
        subject.networks_changed([WIFI, LTE])
        assert {each.why for each in subject.explained() if each.direction is Direction.DOWN} == {
            "it is up for less than a second"
        }
        running = asyncio.create_task(subject.run())
        await over.wait()
        running.cancel()
        verdicts = {(each.network, each.direction): each for each in subject.explained()}
        assert len(verdicts) == 4
        wifi, lte = verdicts["wlan0", Direction.DOWN], verdicts["lte0", Direction.DOWN]
        assert wifi.rule == "value"
        assert wifi.gain_s is not None
        assert wifi.cost_s is not None
        assert not wifi.send
        assert 0.0 < wifi.gain_s < 0.6 < wifi.cost_s
        assert "of waiting, not more than its price of " in wifi.why
        assert wifi.sent is not None
        assert wifi.sent.why == "never probed"
        assert (lte.cost_s is None) is forbidden
        assert (lte.sent is None) is forbidden
        assert ("a used-up budget forbids" in lte.why) is forbidden
        assert "no upload was seen lately" in verdicts["wlan0", Direction.UP].why
        subject.networks_changed([WIFI])
        assert [each.sent for each in subject.explained()] == [None, None]

    asyncio.run(live())


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"enabled": False}, "probes are off"),
        ({"dns": False}, "nothing to ask"),
    ],
)
def test_it_is_told_that_nothing_is_probed(keys: dict[str, Any], why: str) -> None:
    subject = AdaptiveProbing(
        configured(**keys), cast(Prober, Recorder()), lambda *_: Moment(0, True, False, {})
    )
    subject.networks_changed([WIFI])
    (verdicts,) = subject.explained()
    assert why in verdicts.why
    assert not verdicts.send


def trains_up(uploads: list[int], monkeypatch: pytest.MonkeyPatch, **keys: Any) -> list[str]:
    """Looks, a second apart, with so many uploads seen at each; the networks probed upwards."""
    monkeypatch.setattr(adaptive_probing, "_ASK_S", 0.001)
    recorder = Recorder()
    over = asyncio.Event()
    looks = iter(uploads)
    clock = iter(range(10_000))
    monkeypatch.setattr(
        adaptive_probing, "time", SimpleNamespace(monotonic=lambda: float(next(clock)))
    )
    evaluations = (evaluation("wlan0", 0.4), evaluation("lte0", 0.41))

    def moment(now_s: float, pending: bool, per_s: float, direction: Direction) -> Moment:
        return Moment(now_s, True, pending, {}, evaluations, per_s)

    def so_far() -> int:
        now = next(looks, None)
        if now is None:
            over.set()
        return uploads[-1] if now is None else now

    async def live() -> None:
        server = {"server": "192.0.2.1:7007", "key_file": Path("k")}
        subject = AdaptiveProbing(
            configured(**server, **keys), cast(Prober, recorder), moment, so_far
        )
        subject.networks_changed([WIFI, LTE])
        running = asyncio.create_task(subject.run())
        await over.wait()
        running.cancel()

    asyncio.run(live())
    asked = zip(recorder.asked, recorder.directions, strict=True)
    up = [(network, kind) for (network, kind), way in asked if way is Direction.UP]
    assert all(kind is ProbeKind.UDP_TRAIN for _, kind in up)
    return [network for network, _ in up]


@pytest.mark.parametrize("rule", ["value", "change", "fixed"])
def test_the_uplink_is_measured_while_somebody_uploads(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert trains_up([0] * 30, monkeypatch, rule=rule) == [], "nobody wants to know it"
    once = trains_up([0] * 5 + [1] * 200, monkeypatch, rule=rule, full_interval_s=30.0)
    assert set(once) == {"wlan0", "lte0"}
    assert len(once) < 16, "not oftener than it is worth"
    forever = trains_up([0] * 5 + [1] * 600, monkeypatch, rule=rule, full_interval_s=30.0)
    assert forever == once, "long after the only one nobody wants to know it any more"


def test_an_uplink_train_costs_the_radios_sending(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {"server": "192.0.2.1:7007", "key_file": Path("k")}
    rules = [rule_of(ProbesConfig(**keys), [LTE], direction=way) for way in Direction]
    down, up = (cast(ProbeValue, rule)._of("lte0") for rule in rules)
    assert up.carried_bytes == down.carried_bytes
    assert up.energy_j > down.energy_j
