"""A connection goes over a network that is believed slow, to see what that does."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from ipaddress import ip_address, ip_interface
from typing import Any

import pytest

from cedos.controller.decisions.user_rules import UserRules
from cedos.controller.events import FlowClosed, FlowOpened
from cedos.controller.rule import RuleRequest
from cedos.model import Context, Direction, FlowKey, Indicator, Network
from predictors.base import Distribution

pytestmark = pytest.mark.anyio

Stage = Any
RULE = ("destination", "198.51.100.1/32", 80)
"""Without a network: it goes where the default goes, over the phone."""


class Doubtful:
    """Of 300 kB: Wi-Fi takes a tenth of a second, or one, or four; cellular less than one."""

    features = ("size_bytes",)

    def predict(self, features: Mapping[str, float], /) -> dict[str, Distribution]:
        large = features["size_bytes"] / 300_000
        return {
            "wifi": Distribution((0.1 * large,) * 4 + (0.9 * large,) * 4 + (4.0 * large,) * 4),
            "cellular": Distribution((0.6 * large,)),
        }


@pytest.fixture
def stage(make_stage: Callable[[Doubtful], Stage]) -> Stage:
    """Downloads of 300 kB began often and ended; `stage.pinged` are the networks that were pinged."""
    stage = make_stage(Doubtful())
    stage.pinged, stage.woken = [], []
    stage.director = type(stage.director)(
        stage.steer,
        stage.flows,
        stage.sizes,
        stage.director.decider,
        ask=stage.pinged.append,
        wake=lambda: stage.woken.append("now"),
    )
    stage.director.networks_changed([stage.wlan, stage.lte])
    for _ in range(20):
        stage.sizes.learn(stage.server, 80, Direction.DOWN, 300_000)
    stage.port = 5000
    return stage


def began(stage: Stage, at_s: float, network: Network | None = None) -> Any:
    """A connection; the decision that it followed."""
    stage.port += 1
    local = (network or stage.lte).addresses[0].ip
    key = FlowKey(local, stage.port, ip_address(stage.server), 80)
    flow = stage.flows.on_open(FlowOpened(key, at_s, at_s))
    stage.director.on_connection(flow, at_s)
    return flow


def ended(stage: Stage, flow: Any, at_s: float) -> None:
    stage.flows.on_close(FlowClosed(flow.key, at_s, 300_000, 100, at_s=at_s))


async def looked(stage: Stage, at_s: float, answered_s: float = 0.5) -> list[tuple[object, ...]]:
    """All is decided on again; what steering was asked."""
    known = {"available": Indicator(1.0, at_s), "rtt_s": Indicator(0.02, at_s - answered_s)}
    known["past1_bps"] = Indicator(1e6, at_s - 20.0)
    await stage.director.reconsider(Context(at_s, {"wlan0": known, "lte0": {}}))
    asked: list[tuple[object, ...]] = stage.asked()
    return asked


async def busy(stage: Stage, until_s: float = 30.0) -> None:
    for second in range(int(until_s) - 20, int(until_s)):
        ended(stage, began(stage, float(second)), second + 0.5)
    await looked(stage, until_s - 0.1)
    stage.asked()


async def test_the_next_connection_shows_what_the_network_does(stage: Stage) -> None:
    await busy(stage)
    assert await looked(stage, 30.0) == [(*RULE, "wlan0")]
    assert began(stage, 30.1, stage.lte).decision is not None, "it began before the rule"
    decision = stage.decisions[-1]
    flow = began(stage, 30.2, stage.wlan)
    made = stage.decisions[-1]
    assert made is not decision
    assert flow.decision == made.number == decision.number + 1
    assert made.choice.networks == ("wlan0",)
    assert "to show how fast it is by now" in made.reason
    assert stage.woken == ["now"]
    assert began(stage, 30.25, stage.wlan).decision == made.number, "the rule stood still"
    assert await looked(stage, 30.3) == [(*RULE, None)]
    assert await looked(stage, 31.0) == []


async def test_kept_connections_are_not_tried(stage: Stage) -> None:
    await busy(stage)
    began(stage, 29.95)
    kept = began(stage, 24.9)
    assert await looked(stage, 30.0) == [], "it lives for five seconds"
    ended(stage, kept, 30.5)
    assert await looked(stage, 30.6) == [(*RULE, "wlan0")], "the other one is new"


async def test_where_no_connection_is_old_nobody_knows_whether_they_are_kept(stage: Stage) -> None:
    for _ in range(30):
        ended(stage, began(stage, 26.0), 26.1)
    await looked(stage, 29.9)
    assert await looked(stage, 30.9) == []
    assert await looked(stage, 31.0) == [(*RULE, "wlan0")]


async def test_a_trial_that_nobody_takes_ends_and_waits(stage: Stage) -> None:
    await busy(stage)
    assert await looked(stage, 30.0) == [(*RULE, "wlan0")]
    assert await looked(stage, 34.9) == []
    assert await looked(stage, 35.0) == [(*RULE, None)]
    assert await looked(stage, 44.9) == []
    assert await looked(stage, 45.0) == [(*RULE, "wlan0")]


async def test_a_trial_ends_when_its_network_falls_silent(stage: Stage) -> None:
    await busy(stage)
    assert await looked(stage, 30.0) == [(*RULE, "wlan0")]
    known = {"silence_s": Indicator(0.4, 31.0), "past1_bps": Indicator(1e6, 11.0)}
    await stage.director.reconsider(Context(31.0, {"wlan0": known, "lte0": {}}))
    assert stage.asked() == [(*RULE, None)]


async def test_a_network_that_was_not_heard_is_pinged_first(stage: Stage) -> None:
    await busy(stage)
    assert await looked(stage, 30.0, answered_s=20.0) == []
    assert stage.pinged == [stage.wlan]
    assert await looked(stage, 30.1, answered_s=20.0) == []
    assert stage.pinged == [stage.wlan]
    assert await looked(stage, 30.2, answered_s=0.05) == [(*RULE, "wlan0")]


async def test_what_a_network_has_no_ip_version_for_is_not_tried_there(stage: Stage) -> None:
    only_ipv6 = replace(stage.wlan, addresses=(ip_interface("2001:db8::2/64"),))
    stage.director.networks_changed([only_ipv6, stage.lte])
    await busy(stage)
    assert await looked(stage, 30.0) == []
    assert stage.pinged == []


async def test_connections_that_a_vpn_carries_do_not_count(stage: Stage) -> None:
    tunnel = replace(stage.lte, name="tun0", addresses=(ip_interface("10.9.0.2/24"),))
    for _ in range(30):
        ended(stage, began(stage, 20.0, tunnel), 20.1)
    await looked(stage, 29.9)
    assert await looked(stage, 30.0) == []


async def test_a_connection_with_several_paths_counts_once(stage: Stage) -> None:
    for _ in range(3):
        flow = began(stage, 20.0)
        for _ in range(10):
            stage.director.on_connection(flow, 20.05)
        ended(stage, flow, 20.1)
    await looked(stage, 29.9)
    assert await looked(stage, 30.0) == [], "of three not enough would be saved"


async def test_what_a_rule_of_the_user_leads_is_not_tried(stage: Stage) -> None:
    rules = UserRules()
    stage.director = type(stage.director)(
        stage.steer, stage.flows, stage.sizes, stage.director.decider, rules, stage.pinged.append
    )
    stage.director.networks_changed([stage.wlan, stage.lte])
    await busy(stage)
    rules.add(RuleRequest(host=stage.server, only=("lte0",)))
    for second in range(30, 40):
        assert (*RULE, "wlan0") not in await looked(stage, float(second), answered_s=20.0)
    assert stage.pinged == []


async def test_metered_networks_are_never_tried(stage: Stage) -> None:
    stage.director.networks_changed([replace(stage.wlan, metered=True), stage.lte])
    await busy(stage)
    assert await looked(stage, 30.0) == []
    assert stage.pinged == []


async def test_a_network_that_was_gone_is_tried_as_if_it_were_new(stage: Stage) -> None:
    await busy(stage)
    assert await looked(stage, 30.0) == [(*RULE, "wlan0")]
    began(stage, 30.1, stage.wlan)
    assert await looked(stage, 36.0) == [(*RULE, None)]
    stage.director.networks_changed([stage.lte])
    stage.director.networks_changed([stage.wlan, stage.lte])
    ended(stage, began(stage, 36.1), 36.2)
    for flow in list(stage.flows):
        ended(stage, flow, 36.3)
    assert await looked(stage, 36.5) == [(*RULE, "wlan0")], "else not before 40.1"
