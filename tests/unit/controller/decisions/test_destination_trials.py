"""A connection goes over a network that is believed slow, to see what that does."""

from dataclasses import replace
from ipaddress import ip_address, ip_interface

import pytest
from kit.controller import LTE, SERVER, WLAN, Script, led, of_kind, size_of

from cedos.controller import events as on
from cedos.controller.commands import AskNetwork, SetDestinations
from cedos.controller.rule import RuleRequest
from cedos.model import Direction, FlowKey
from predictors.base import Distribution

PLACE = ("198.51.100.1/32", 80)
OVER_WLAN = [SetDestinations({PLACE: "wlan0"})]
AS_USUAL = [SetDestinations({PLACE: None})]
"""Where the default goes: over the phone."""


class Doubtful:
    """Of 300 kB: Wi-Fi takes a tenth of a second, or one, or four; cellular less than one."""

    features = ("size_bytes",)

    def predict(self, features, /):
        large = features["size_bytes"] / 300_000
        return {
            "wifi": Distribution((0.1 * large,) * 4 + (0.9 * large,) * 4 + (4.0 * large,) * 4),
            "cellular": Distribution((0.6 * large,)),
        }


class Visited(Script):
    """Downloads of 300 kB begin and end; Wi-Fi was measured 20 s ago."""

    def __init__(self, wlan=WLAN):
        super().__init__(Doubtful(), rescue=False)
        self.port = 5000  # that of the last connection
        self.networks(wlan, LTE, at_s=9.0)
        self.known(10.0, wlan0={"past1_bps": 1e6})

    def begins(self, at_s, network=LTE):
        self.port += 1
        key = FlowKey(network.addresses[0].ip, self.port, ip_address(str(SERVER)), 80)
        sizes = on.SizesKnown(SERVER, 80, {Direction.DOWN: size_of(300_000, "history")})
        self.tell(on.FlowOpened(key, at_s, at_s), sizes, at_s=at_s)
        return self.flow(key)

    def ends(self, flow, at_s):
        self.tell(on.FlowClosed(flow.key, at_s, 300_000, 100, at_s=at_s), at_s=at_s)

    def looks(self, at_s, answered_s=0.05):
        """Decide again; Wi-Fi answered so long ago (None: not now). Return destinations' networks."""
        if answered_s is not None:
            answered_at_s = at_s - answered_s
            self.tell(on.PingEnded("wlan0", 0.02, answered_at_s, answered_at_s), at_s=at_s)
        self.given(SetDestinations)
        self.asked = [each.network for each in of_kind(AskNetwork, self.decide(at_s))]
        return list(self.given(SetDestinations))

    def is_busy(self, answered_s=0.05):
        for second in range(10, 30):
            self.ends(self.begins(float(second)), second + 0.5)
        self.looks(29.8, answered_s)


@pytest.fixture
def script():
    return Visited()


def test_the_next_connection_shows_what_the_network_does(script):
    script.is_busy()
    assert script.looks(30.0) == OVER_WLAN
    assert script.begins(30.1).decision is not None, "it began before the rule"
    decision = script.recorded()
    flow = script.begins(30.2, WLAN)
    made = script.recorded()
    assert made is not decision
    assert flow.decision == made.number == decision.number + 1
    assert made.choice.networks == ("wlan0",)
    assert "to show how fast it is by now" in made.reason
    assert script.begins(30.25, WLAN).decision == made.number, "the rule stood still"
    timer_s = script.controller.next_timer_s()
    assert timer_s <= 30.3
    assert script.looks(30.35) == AS_USUAL
    assert script.looks(31.0) == []


def test_kept_connections_are_not_tried(script):
    script.is_busy()
    script.begins(29.95)
    kept = script.begins(24.9)
    assert script.looks(30.0) == [], "it lives for five seconds"
    script.ends(kept, 30.5)
    assert script.looks(30.6) == OVER_WLAN, "the other one is new"


def test_where_no_connection_is_old_nobody_knows_whether_they_are_kept(script):
    for _ in range(30):
        script.ends(script.begins(26.0), 26.1)
    script.looks(29.9)
    assert script.looks(30.9) == []
    assert script.looks(31.0) == OVER_WLAN


def test_a_trial_that_nobody_takes_ends_and_waits(script):
    script.is_busy()
    assert script.looks(30.0) == OVER_WLAN
    assert script.looks(34.9) == []
    assert script.looks(35.0) == AS_USUAL
    assert script.looks(44.9) == []
    assert script.looks(45.0) == OVER_WLAN


def test_a_network_that_was_not_heard_is_pinged_first(script):
    script.is_busy(answered_s=20.0)
    assert script.looks(30.0, None) == []
    assert script.asked == ["wlan0"]
    assert script.looks(30.2, None) == []
    assert script.asked == []
    assert script.looks(30.4) == OVER_WLAN


def test_metered_networks_are_never_tried():
    script = Visited(replace(WLAN, metered=True))
    script.is_busy()
    assert script.looks(30.0) == []
    assert script.asked == []


def test_connections_that_a_vpn_carries_do_not_count(script):
    tunnel = replace(LTE, name="tun0", addresses=(ip_interface("10.9.0.2/24"),))
    for _ in range(30):
        script.ends(script.begins(20.0, tunnel), 20.1)
    script.looks(29.8)
    assert script.looks(30.0) == []


def test_a_connection_with_several_paths_counts_once(script):
    for token in range(3):
        flow = script.begins(20.0)
        for _ in range(10):
            script.tell(on.SubflowJoined(token, flow.key, False), at_s=20.05)
        script.ends(flow, 20.1)
    script.looks(29.8)
    assert script.looks(30.0) == [], "of three not enough would be saved"


def test_what_a_rule_of_the_user_leads_is_not_tried(script):
    script.is_busy()
    script.tell(on.RuleSet(1, RuleRequest(host=str(SERVER), only=("lte0",))))
    for second in range(50, 60):
        assert "wlan0" not in led(script.looks(float(second), None)).values()
        assert script.asked == []
