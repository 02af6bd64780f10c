"""Each IP version has its own default, over the best network that has it."""

from dataclasses import replace
from ipaddress import ip_address, ip_interface

from kit.controller import LTE, WLAN, led

from cedos.controller.commands import NOWHERE, SetDefault
from cedos.controller.events import HintGiven, HostDefault, HostDefaultsChanged, RuleSet
from cedos.controller.hint import HintRequest
from cedos.controller.rule import RuleRequest
from cedos.model import FlowKey, NextHop

SIX = "2001:db8:7::1"
FE80 = ip_address("fe80::1")


def in_versions(network, *versions):
    """The network with addresses and default routes of these IP versions alone."""
    own = {4: network.addresses[0], 6: ip_interface(f"2001:db8:{network.index}::2/64")}
    hops = {4: NextHop(4, ip_address(f"10.{network.index - 2}.0.1")), 6: NextHop(6, FE80)}
    return replace(
        network,
        addresses=tuple(own[v] for v in versions),
        next_hops=tuple(hops[v] for v in versions),
    )


def take(script, at_s, wlan, lte):
    script.networks(in_versions(WLAN, *wlan), in_versions(LTE, *lte), at_s=at_s)


def test_a_version_that_the_host_keeps_is_left_to_it(script):
    take(script, 9.0, (6,), (4,))
    script.steering()
    tunnel = HostDefault("clat", vpn=True, what="tun")
    script.tell(HostDefaultsChanged({4: tunnel}), at_s=10.0)
    script.wait(10.0)
    assert script.steering() == [SetDefault("wlan0", {})]
    bridge = HostDefault("br0", vpn=False, what="bridge")
    script.tell(HostDefaultsChanged({4: tunnel, 6: bridge}), at_s=11.0)
    script.wait(11.0)
    assert script.controller.default.decision is None
    assert script.steering() == []
    script.tell(HostDefaultsChanged({4: tunnel}), at_s=12.0)
    script.wait(12.0)
    assert script.steering() == [SetDefault("wlan0", {})]


def test_a_known_destination_is_led_only_over_networks_that_reach_it(script):
    take(script, 10.0, (6,), (4,))
    script.steering()
    for prefix, network in ((f"{SIX}/128", "wlan0"), ("198.51.100.7/32", "lte0")):
        hint = HintRequest(destination=prefix, port=443, size_bytes=3000)
        script.tell(HintGiven(hint, uid=1000))
        assert script.controller.destinations.network_of(prefix, 443) == network
    assert script.steering() == []  # each is the default of its version


def test_a_rule_that_leaves_a_version_no_network_says_so(script):
    take(script, 9.0, (6,), (4,))
    rule = RuleRequest(host="updates.example", only=("wlan0",), addresses=("198.51.100.7", SIX))
    given = script.tell(RuleSet(1, rule), at_s=10.0)
    assert led(given) == {("198.51.100.7/32", None): NOWHERE, (f"{SIX}/128", None): "wlan0"}
    found = script.controller.ruled.by_version(1)
    assert (found[4].network, found[4].refused) == (None, "wlan0 has no IPv4")
    assert (found[6].network, found[6].refused) == ("wlan0", "")
    four = FlowKey(ip_address("10.1.0.2"), 4000, ip_address("198.51.100.7"), 80)
    decision = script.controller.ruled.decision(four)
    assert "wlan0 has no IPv4, so connections are refused" in decision.reason


def test_a_connection_moves_only_over_networks_of_its_version(script):
    """An MPTCP connection over Wi-Fi's IPv4, which a better network has not."""
    take(script, 9.0, (4, 6), (4, 6))
    flow = script.connection(movable=True)
    script.told(50_000_000)
    for versions, others in (((4, 6), ["lte0"]), ((6,), [])):
        script.controller.decider.networks_changed(
            [in_versions(WLAN, 4, 6), in_versions(LTE, *versions)]
        )
        assert flow.strategy is not None
        assert flow.transfer is not None
        decision = script.controller.decider.decide_again(
            flow, flow.strategy, flow.transfer, script.controller.context(10.0), 0.1
        )
        tried = {name for each in decision.evaluations for name in each.strategy.networks}
        assert sorted(tried - {"wlan0"}) == others
