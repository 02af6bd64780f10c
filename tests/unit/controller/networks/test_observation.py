"""Observations of networks by flows, pings, counters and witnesses, by scripts of events."""

from dataclasses import replace
from ipaddress import ip_address

import pytest
from kit.controller import KEY, LTE, WLAN, Script, of_kind

from cedos.controller import events as on
from cedos.controller.commands import AskNetwork, RescueFlow, TellVerdict
from cedos.model import FlowKey, FlowSample

GATEWAY = ip_address("10.0.0.1")


@pytest.fixture
def script():
    """A flow over Wi-Fi began at 9 s."""
    script = Script(rescue=False)
    script.tell(on.FlowOpened(KEY, 9.0, 100.0), at_s=9.0)
    return script


def known(script, name, network="wlan0"):
    return script.controller.context(script.now_s).networks.get(network, {}).get(name)


def test_another_access_point_is_another_place_that_is_asked_at_once(script):
    for point, asked in (("a", []), ("a", []), ("b", [AskNetwork("wlan0")])):
        found = script.tell(on.Attached("wlan0", point, "home"))
        assert of_kind(AskNetwork, found) == asked


@pytest.mark.parametrize("rescued", [False, True])
def test_what_another_network_carried_is_not_held_to_the_credit_of_the_flows_own(script, rescued):
    if rescued:
        script.tell(on.CommandDone(RescueFlow(KEY, "lte0", "no reply")))
    closed = on.FlowClosed(KEY, 0.0, 100_000, 500, at_s=9.4, idle_down_s=0.0, idle_ack_s=0.0)
    script.tell(closed, on.FlowsSampled((), {}), at_s=9.4)
    assert (known(script, "delivery_down_bps") is None) is rescued
    assert known(script, "delivery_down_bps", "lte0") is None


@pytest.mark.parametrize(("answered_s", "knows"), [(0.01, True), (5.0, False), (None, False)])
def test_a_short_flow_tells_at_its_end_what_a_round_trip_took(script, answered_s, knows):
    closed = on.FlowClosed(
        KEY, 0.0, 4_000, 500, rtt_s=0.012, at_s=9.4, idle_down_s=0.0, idle_ack_s=answered_s
    )
    script.tell(closed, at_s=9.4)
    found = known(script, "rtt_s")
    assert (found is not None and found.value == 0.012) is knows


def test_what_a_host_before_the_router_sends_says_nothing_of_what_is_behind_it():
    """A copy from a disk in the same Wi-Fi made it a network of 800 Mbit/s and a round trip of 0.3 ms."""
    script = Script(rescue=False)
    disk = replace(KEY, remote=ip_address("10.0.0.9"), remote_port=445)
    script.tell(on.FlowOpened(disk, 9.0, 100.0), at_s=9.0)
    for look in range(1, 6):
        at_s, received_bytes = 9.0 + 0.2 * look, 20_000_000 * look
        copied = FlowSample(
            disk, at_s, 1, None, 3e-4, 3e-4, None, received_bytes, 9_000 * look, 0, 0.0, 0, 0.0
        )
        script.sampled(copied)
        script.tell(on.CountersRead("wlan0", received_bytes, 0))
    ended = on.FlowClosed(
        disk, 0.0, received_bytes, 45_000, 3e-4, 3e-4, at_s=10.0, idle_down_s=0.0, idle_ack_s=0.0
    )
    script.tell(ended, on.FlowsSampled((), {}))
    found = script.controller.context(10.0).networks["wlan0"]
    assert found.keys().isdisjoint({"past1_bps", "delivery_down_bps", "rtt_s", "rtt_min_s"})
    assert "wlan0" not in script.controller.networks.heard_at_s
    # Two seconds later counters are believed again, from then on, though a question goes to the router
    # and the disk says that it is there.
    script.tell(on.FlowOpened(replace(disk, remote=GATEWAY, protocol="udp"), 12.1, 1.0), at_s=12.1)
    alive = replace(
        copied, key=replace(disk, local_port=4001), at_s=12.1, bytes_down=500, bytes_up=500
    )
    script.sampled(alive)
    script.tell(on.CountersRead("wlan0", received_bytes, 0))
    script.tell(on.CountersRead("wlan0", received_bytes + 1_000_000, 0), at_s=13.1)
    rate = known(script, "delivery_down_bps")
    assert rate.value > 0.0


def test_a_rest_without_looks_makes_nothing_of_what_a_host_before_the_router_sent_before_it():
    script = Script(rescue=False)
    disk = replace(KEY, remote=ip_address("10.0.0.9"), remote_port=445)
    script.tell(on.FlowOpened(disk, 9.0, 100.0), at_s=9.0)
    copied = FlowSample(disk, 9.2, 1, None, 3e-4, 3e-4, None, 10**7, 9_000, 0, 0.0, 0, 0.0)
    script.sampled(copied)
    script.tell(on.FlowsSampled((), {}, looked=False), at_s=12.0)
    script.sampled(replace(copied, at_s=20.0))
    script.tell(on.CountersRead("wlan0", 10**7, 0))
    script.tell(on.CountersRead("wlan0", 10**7 + 1_000_000, 0), at_s=21.0)
    assert known(script, "delivery_down_bps") is not None


@pytest.mark.parametrize(
    ("remote", "bytes_down", "lives"),
    [("198.51.100.1", 1200, True), ("198.51.100.1", 0, False), ("10.0.0.9", 1200, False)],
)
def test_who_drops_pings_and_answers_by_udp_lives(script, remote, bytes_down, lives):
    key = FlowKey(ip_address("10.0.0.2"), 4000, ip_address(remote), 443, "udp")
    script.tell(on.FlowOpened(key, 9.0, 100.0), at_s=9.0)
    script.tell(on.FlowClosed(key, 0.0, bytes_down, 500, exact=False), at_s=200.0)
    for witness in (on.Witness.PING, on.Witness.PING, on.Witness.PING, on.Witness.PAGE):
        script.tell(on.Witnessed("wlan0", False, witness, 200.0))
    available = known(script, "available")
    assert available.value == float(lives)


def test_a_lost_ping_of_a_network_that_is_gone_asks_for_nothing(script):
    script.networks(LTE, at_s=9.5)
    assert script.tell(on.PingEnded("wlan0", None, 9.0, 10.0), at_s=10.0) == []


def told(script, at_s, *events):
    given = script.tell(*events, at_s=at_s)
    return [(each.life.value, each.before.value) for each in of_kind(TellVerdict, given)]


def test_the_states_of_networks_that_are_up_are_told_when_they_change():
    script = Script()
    page, connection = on.Witness.PAGE, on.Witness.CONNECTION
    assert told(script, 10.0, on.Witnessed("wlan0", True, page, 10.0)) == []
    script.now_s = 11.0
    boxed = on.PortalFinding(on.PortalVerdict.CAPTIVE, "another page")
    given = of_kind(TellVerdict, script.checked("wlan0", boxed))
    assert [(each.life.value, each.before.value) for each in given] == [("unknown", "alive")]
    missed = on.Witnessed("wlan0", False, connection, 12.0)
    assert told(script, 12.0, missed) == [("captive", "unknown")]
    assert told(script, 13.0, on.Witnessed("wlan0", True, page, 13.0)) == [("alive", "captive")]
    # A network that went down while it was silent has replied to nothing.
    script.tell(on.PingEnded("wlan0", 0.02, 13.0, 13.0), at_s=13.0)
    pinged = {"wlan0": 14.0}
    assert told(script, 14.6, on.FlowsSampled((), pinged)) == [("silent", "alive")]
    script.networks(replace(WLAN, up=False), LTE, at_s=14.7)
    assert told(script, 14.8, on.FlowsSampled((), {})) == []
    script.networks(LTE, at_s=14.9)
    assert told(script, 15.0, on.FlowsSampled((), {})) == []


@pytest.mark.parametrize(
    ("how", "told"),
    [("as usual", False), ("rescued", True), ("on the link", True), ("not answered", False)],
)
def test_answers_of_other_networks_show_no_portal(monkeypatch, how, told):
    script, elsewhere = Script(), list[FlowKey]()
    monkeypatch.setattr(script.controller.portals, "answered_elsewhere", elsewhere.append)
    key = replace(KEY, remote=ip_address("10.0.0.9")) if how == "on the link" else KEY
    script.tell(on.FlowOpened(key, 9.0, 100.0))
    if how == "rescued":
        script.tell(on.CommandDone(RescueFlow(key, "lte0", "no reply")))
    rtt_s = None if how == "not answered" else 0.02
    script.tell(on.FlowClosed(key, 102.0, 5_000, 500, rtt_s=rtt_s, at_s=9.5))
    assert elsewhere == ([key] if told else [])


def test_what_another_network_carries_is_told_apart(monkeypatch):
    script, told = Script(), []

    def observe(here, elsewhere, now_s):
        told.append(([each.key for each in here], [each.key for each in elsewhere]))
        return False

    monkeypatch.setattr(script.controller.portals, "observe_flows", observe)
    other = replace(KEY, local_port=4001)
    for key in (KEY, other):
        script.tell(on.FlowOpened(key, 9.0, 1.0), at_s=9.0)
    script.tell(on.CommandDone(RescueFlow(KEY, "lte0", "no reply")))
    sample = FlowSample(KEY, 10.0, 1, None, 0.02, 0.02, None, 50_000, 300, 0, 0.01, 0)
    script.sampled(sample, replace(sample, key=other))
    assert told == [([other], [KEY])]
