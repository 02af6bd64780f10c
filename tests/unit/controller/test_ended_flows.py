"""Flows as they end: compared with what was expected of them, recorded, and forgotten."""

from dataclasses import replace
from ipaddress import ip_address

import pytest
from kit.controller import KEY, SERVER, Script

from cedos.controller.commands import ForgetFlow, RecordFlow
from cedos.controller.controller import JUDGED_AT_ONCE, JUDGED_PER_S
from cedos.controller.events import FlowClosed, FlowOpened, HostDefault, HostDefaultsChanged
from cedos.model import FlowKey


def ends(script, key=KEY, size=3_000, *, began_s=9.0, took_s=0.1, **opened):
    """A download begins and ends; its record."""
    script.tell(FlowOpened(key, began_s, 100.0, **opened), at_s=began_s)
    script.told(size, key=key)
    end_s = began_s + took_s
    closed = FlowClosed(key, 100.0 + took_s, size, 100, at_s=end_s, idle_down_s=0.0, idle_ack_s=0.0)
    script.tell(closed, at_s=end_s)
    (command,) = script.given(RecordFlow)
    return command.record


def test_of_a_crowd_of_small_transfers_some_are_judged_and_the_large_ones_always():
    script = Script()
    crowd = [
        ends(script, replace(KEY, local_port=5000 + number), began_s=9.0 + number / 200)
        for number in range(200)
    ]
    judged = [each.prediction is not None for each in crowd]
    assert JUDGED_AT_ONCE <= sum(judged) <= JUDGED_AT_ONCE + 2 * JUDGED_PER_S
    assert judged[0], "a few are never too many"
    large = [
        ends(script, replace(KEY, local_port=6000 + number), 3_000_000, took_s=2.0)
        for number in range(5)
    ]
    assert all(each.prediction for each in large)
    found = script.controller.reliability.of("wlan0")
    assert found.n == sum(judged) + 5


def test_a_check_of_our_own_says_nothing_of_how_well_transfers_are_expected():
    """Once a check, expected to take ten seconds on a dead network, outweighed 200 transfers."""
    script = Script()
    assert ends(script, own=True).prediction is None
    assert script.controller.reliability.of("wlan0") is None
    assert ends(script, replace(KEY, local_port=4002)).prediction is not None


@pytest.mark.parametrize("local", ["10.1.0.2", "10.8.0.2"], ids=["bound to LTE", "of a VPN"])
def test_what_followed_no_decision_had_no_choice(local):
    """Wi-Fi was chosen, the program went over LTE all the same: no demand, and no seconds saved."""
    script = Script()
    script.tell(HostDefaultsChanged({4: HostDefault("tun0", vpn=True, what="a tunnel")}))
    script.decide(8.5)
    key = replace(KEY, local=ip_address(local))
    script.tell(FlowOpened(key, 9.0, 100.0), at_s=9.0)
    script.tell(FlowClosed(key, 101.0, 10**6, 300, at_s=10.0), at_s=10.0)
    (ended,) = script.given(RecordFlow)
    assert not ended.chosen


@pytest.mark.parametrize(
    ("opened", "answered_bytes", "forgotten"),
    [(True, 1200, False), (True, 0, True), (False, 1200, True)],
    ids=["answered", "no peer answered", "its beginning was not seen"],
)
def test_datagrams_that_no_peer_answered_are_no_flow(opened, answered_bytes, forgotten):
    script = Script()
    key = FlowKey(KEY.local, 4000, SERVER, 443, "udp")
    if opened:
        script.tell(FlowOpened(key, 9.0, 100.0), at_s=9.0)
    script.given(RecordFlow)
    given = script.tell(FlowClosed(key, 101.0, answered_bytes, 500, at_s=10.0), at_s=10.0)
    assert (ForgetFlow(key) in given) is forgotten
    assert bool(script.given(RecordFlow)) is not forgotten
