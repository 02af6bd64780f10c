"""Each destination, program and flow is decided on in its turn, so that an event decides little."""

from collections import Counter
from dataclasses import replace
from ipaddress import ip_address

import pytest
from kit.controller import KEY, LTE, WLAN, Rates, Script, led, of_kind, size_of

from cedos.controller import events as on
from cedos.controller.commands import MoveConnection, SetDefault, SetDestinations
from cedos.controller.hint import HintRequest
from cedos.model import Direction

MANY = 40
HOSTS = [ip_address(f"198.51.100.{1 + number}") for number in range(MANY)]
PLACES = [(f"{host}/32", 80) for host in HOSTS]
ROUND_S = 0.1 * MANY


class Counting(Rates):
    """Counts the predictions by size."""

    def __init__(self):
        super().__init__()
        self.asked = Counter()

    def predict(self, features):
        self.asked[features["size_bytes"]] += 1
        return super().predict(features)


@pytest.fixture
def script():
    """Forty destinations of large downloads, each of another size, which LTE carries sooner."""
    script = Script(Counting(), rescue=False)
    for number, host in enumerate(HOSTS):
        size = size_of(4_000_000 + number, "history")
        opened = on.FlowOpened(replace(KEY, remote=host, local_port=5000 + number), 9.0, 9.0)
        script.tell(opened, on.SizesKnown(host, 80, {Direction.DOWN: size}), at_s=9.0)
    return script


def asks_again(script, at_s):
    """Everything is to be decided again, and destinations have been looked at."""
    script.tell(on.HostDefaultsChanged({}), on.TimerFired(), on.TimerFired(), at_s=at_s)


def test_verdicts_are_renewed_in_turn_the_oldest_first(script):
    script.decide(10.0)
    script.model.rate_bps["cellular"] = 1e5
    script.steering()
    asks_again(script, 11.0)
    assert led(script.wait(11.85)) == dict.fromkeys(PLACES[:9], None)
    asks_again(script, 12.0)  # another reason, before all have had their turn
    assert led(script.wait(12.0 + ROUND_S)) == dict.fromkeys(PLACES[9:], None)


def test_destinations_stay_where_their_verdict_leads_while_the_default_changes(script):
    script.decide(10.0)
    script.steering()
    script.model.rtt_s["wifi"] = 0.5  # small transfers now go over LTE, too
    asks_again(script, 11.0)
    assert [each.wanted for each in script.given(SetDestinations)] == [dict.fromkeys(PLACES)]
    script.model.rtt_s["wifi"] = 0.02
    asks_again(script, 12.0)
    assert led(script.steering()) == dict.fromkeys(PLACES, "lte0")


def test_destinations_follow_the_default_at_once_to_a_network_that_lives_again(script):
    script.model.rtt_s["wifi"], script.model.rate_bps["wifi"] = 0.01, 50e6  # better for all sizes
    script.networks(replace(WLAN, up=False), LTE, at_s=10.0)
    script.wait(10.0 + ROUND_S)
    found = script.networks(WLAN, LTE, at_s=15.0) + script.wait(15.0 + ROUND_S)
    assert [each.network for each in of_kind(SetDefault, found)] == ["wlan0"]
    assert led(found) == {}, "none is kept on LTE until its turn"


def test_flows_and_programs_have_their_turn_before_destinations(script):
    hint = HintRequest(program="curl", size_bytes=10**7)
    script.tell(on.HintGiven(hint, uid=1000), at_s=9.0)
    keys = [replace(KEY, local_port=7000 + number) for number in range(9)]
    for token, key in enumerate(keys, 1):
        script.connection(key, token=token, movable=True)
        script.told(5_000_000 + token, key=key)
    script.decide(10.0)
    script.networks(WLAN, replace(LTE, up=False), at_s=11.0)
    script.tell(on.TimerFired())
    moved = 0
    for _ in range(1 + len(keys)):
        given = script.tell(on.TimerFired())
        moves = [each for each in given if isinstance(each, MoveConnection)]
        assert len(moves) <= 1
        moved += len(moves)
    assert moved == len(keys), "all of them, and at once"


def test_no_destination_is_led_over_the_network_that_went_last(script):
    script.networks(WLAN, at_s=10.0)
    script.wait(10.0 + ROUND_S)
    found = script.networks(at_s=15.0) + script.wait(15.0 + ROUND_S)
    assert led(found) == {}


def test_nothing_is_kept_of_a_destination_whose_hint_has_ended(script):
    hint = HintRequest(destination=str(HOSTS[0]), port=80, size_bytes=10**7)
    script.tell(on.HintGiven(hint, uid=1000), at_s=9.0)
    script.tell(on.HintWithdrawn(script.controller.hints.last))
    assert PLACES[0] not in script.controller.destinations._sizes
