"""Each IP version has its own default, over the best network that has it."""

from dataclasses import replace
from ipaddress import ip_address, ip_interface
from typing import Any

import pytest

from cedos.controller.commands import NOWHERE
from cedos.controller.events import HostDefault
from cedos.controller.rule import RuleRequest
from cedos.model import FlowKey, Network, NextHop, StrategyKind

Stage = Any
pytestmark = pytest.mark.anyio

SIX = "2001:db8:7::1"
FE80 = ip_address("fe80::1")


def in_versions(network: Network, *versions: int) -> Network:
    """The network with addresses and default routes of these IP versions alone."""
    own = {4: network.addresses[0], 6: ip_interface(f"2001:db8:{network.index}::2/64")}
    hops = {4: NextHop(4, ip_address(f"10.{network.index - 2}.0.1")), 6: NextHop(6, FE80)}
    return replace(
        network,
        addresses=tuple(own[v] for v in versions),
        next_hops=tuple(hops[v] for v in versions),
    )


def _take(stage: Stage, wlan: tuple[int, ...], lte: tuple[int, ...]) -> None:
    stage.director.networks_changed([in_versions(stage.wlan, *wlan), in_versions(stage.lte, *lte)])


async def test_what_the_best_network_lacks_goes_over_the_next(stage: Stage) -> None:
    _take(stage, (6,), (4,))
    await stage.reconsider()
    assert stage.asked() == [("default", "wlan0", {4: "lte0"})]
    default = stage.director.default
    four, six = default.decision_of(4), default.decision_of(6)
    assert four is not None
    assert six is default.decision
    assert four.choice.networks == ("lte0",)
    assert "lte0 is the only usable network" in four.reason
    assert "wlan0 has no IPv4" in four.reason
    assert four in stage.decisions
    assert default.is_led_to("lte0", 4)
    assert not default.is_led_to("wlan0", 4)
    await stage.reconsider(11.0)
    assert stage.asked() == []


async def test_a_network_loses_a_version_while_it_lives_and_gains_it_again(stage: Stage) -> None:
    _take(stage, (4, 6), (4, 6))
    await stage.reconsider()
    assert stage.asked() == [("default", "wlan0")]
    for lost, left in ((4, 6), (6, 4)):
        _take(stage, (left,), (4, 6))
        await stage.reconsider(11.0)
        assert stage.asked() == [("default", "wlan0", {lost: "lte0"})]
        _take(stage, (4, 6), (4, 6))
        await stage.reconsider(12.0)
        assert stage.asked() == [("default", "wlan0")]
        assert stage.director.default.others == {}


async def test_the_other_version_follows_the_best_that_has_it(stage: Stage) -> None:
    third = replace(stage.wlan, name="eth0", interface="eth0", index=4)
    stage.director.networks_changed(
        [in_versions(stage.wlan, 6), in_versions(stage.lte, 4), in_versions(third, 4)]
    )
    await stage.reconsider()
    assert stage.asked() == [("default", "eth0", {6: "wlan0"})]
    stage.director.networks_changed(
        [in_versions(stage.wlan, 6), in_versions(stage.lte, 4), in_versions(third, 6)]
    )
    await stage.reconsider(11.0)
    assert stage.asked() == [("default", "eth0", {4: "lte0"})]


async def test_what_is_barred_is_not_led_to_and_is_told(stage: Stage) -> None:
    _take(stage, (6,), (4,))
    stage.director.decider.bar({"lte0": "lte0 is blocked: the budget data is spent"})
    await stage.reconsider()
    assert stage.asked() == [("default", "wlan0")]
    refused = stage.director.default.decision_of(4)
    assert refused is not None
    assert refused.choice.kind is StrategyKind.DEFER
    assert "the budget data is spent" in refused.reason
    assert "wlan0 has no IPv4" in refused.reason


async def test_a_version_that_the_host_keeps_is_left_to_it(stage: Stage) -> None:
    _take(stage, (6,), (4,))
    stage.steer.host_defaults = {4: HostDefault("clat", vpn=True, what="tun")}
    await stage.reconsider()
    assert stage.asked() == [("default", "wlan0")]
    stage.steer.host_defaults[6] = HostDefault("br0", vpn=False, what="bridge")
    await stage.reconsider(11.0)
    assert stage.director.default.decision is None
    del stage.steer.host_defaults[6]
    await stage.reconsider(12.0)
    assert stage.asked() == [("default", "wlan0")]


async def test_a_flow_follows_its_versions_decision(stage: Stage) -> None:
    _take(stage, (6,), (4,))
    await stage.reconsider()
    default = stage.director.default
    four = FlowKey(ip_address("10.1.0.2"), 4000, ip_address("198.51.100.1"), 80)
    six = FlowKey(ip_address("2001:db8:2::2"), 4000, ip_address(SIX), 80)
    led = [stage.director.destinations.on_connection(key, None, 10.0) for key in (four, six)]
    assert led == [default.decision_of(4), default.decision_of(6)]


async def test_a_known_destination_is_led_only_over_networks_that_reach_it(stage: Stage) -> None:
    _take(stage, (6,), (4,))
    await stage.reconsider()
    stage.asked()
    sizes = {f"{SIX}/128": "wlan0", "198.51.100.7/32": "lte0"}
    for destination, network in sizes.items():
        led = await stage.director.destinations.hinted(
            destination,
            443,
            stage.director.decider.unknown().size,
            stage.director.decider.unknown().direction,
            99.0,
            stage.context(),
        )
        assert led == network
    assert stage.asked() == []  # each is the default of its version


async def test_a_rule_leads_each_version_to_a_network_that_has_it(stage: Stage) -> None:
    third = replace(stage.wlan, name="eth0", interface="eth0", index=4)
    stage.director.networks_changed(
        [in_versions(stage.wlan, 6), in_versions(stage.lte, 4, 6), in_versions(third, 4)]
    )
    rule = RuleRequest(host="updates.example", never=("metered",), addresses=("198.51.100.7", SIX))
    stage.director.ruled.rules.add(rule)
    await stage.reconsider()
    asked = stage.asked()
    assert ("destination", "198.51.100.7/32", None, "eth0") in asked
    assert ("destination", f"{SIX}/128", None, "wlan0") in asked
    (told,) = stage.director.ruled.messages({})
    assert (told.network, told.refused) == ("eth0", {})


async def test_a_rule_that_leaves_a_version_no_network_says_so(stage: Stage) -> None:
    _take(stage, (6,), (4,))
    rule = RuleRequest(host="updates.example", only=("wlan0",), addresses=("198.51.100.7", SIX))
    stage.director.ruled.rules.add(rule)
    await stage.reconsider()
    asked = stage.asked()
    assert ("destination", "198.51.100.7/32", None, NOWHERE) in asked
    assert ("destination", f"{SIX}/128", None, "wlan0") in asked
    (told,) = stage.director.ruled.messages({})
    assert (told.network, told.refused) == ("wlan0", {"4": "wlan0 has no IPv4"})
    four = FlowKey(ip_address("10.1.0.2"), 4000, ip_address("198.51.100.7"), 80)
    decision = stage.director.ruled.decision(four)
    assert decision is not None
    assert "wlan0 has no IPv4, so connections are refused" in decision.reason


async def test_a_connection_moves_only_over_networks_of_its_version(stage: Stage) -> None:
    """An MPTCP connection over Wi-Fi's IPv4, which a better network has not."""
    _take(stage, (4, 6), (4, 6))
    await stage.reconsider()
    flow = stage.connection(movable=True)
    stage.told(50_000_000)
    for versions, others in (((4, 6), ["lte0"]), ((6,), [])):
        _take(stage, (4, 6), versions)
        assert flow.strategy is not None
        decision = stage.director.decider.again(
            flow, flow.strategy, flow.transfer, stage.context(), 0.1
        )
        tried = {name for each in decision.evaluations for name in each.strategy.networks}
        assert sorted(tried - {"wlan0"}) == others
