"""The networks of new connections: the default, programs, destinations and hints."""

from dataclasses import replace

import pytest
from kit.controller import LTE, ONLY_WLAN, SERVER, WHY_BARRED, WLAN, size_of

from cedos.controller import events as on
from cedos.controller.commands import SetDefault, SetDestinations, SetMark
from cedos.controller.hint import HintRequest
from cedos.model import Direction, SizeEstimate, StrategyKind, Transfer

PLACE = (f"{SERVER}/32", 80)
HINTED = ("203.0.113.0/24", 443)
SIZES = on.SizesKnown(SERVER, 80, {Direction.DOWN: size_of(4_000_000, "history")})


def test_a_default_that_was_refused_is_set_again(script):
    script.tell(on.CommandFailed(SetDefault("wlan0", {})), at_s=9.0)
    assert script.steering() == []
    script.decide(10.0)
    assert script.steering() == [SetDefault("wlan0", {})]
    assert len(script.decisions) == 1, "it is the same decision"


def test_why_the_default_stands_is_told_by_what_is_known_now(script):
    """Not by what was known when it was decided, which may be days ago."""
    first = script.controller.default.reason
    assert first == script.recorded().reason
    script.model.rtt_s["cellular"] = 2.5
    script.decide(10.0)
    assert script.steering() == [], "nothing else was done"
    assert script.controller.default.reason != first
    assert "faster than lte0 (5.00 s)" in script.controller.default.reason


def test_a_dead_network_loses_the_default_at_once(script):
    script.known(9.0, wlan0={"available": 0.0})
    script.decide(9.0)
    assert script.steering() == [SetDefault("lte0", {})]


def test_a_destination_of_large_transfers_gets_its_own_rule_and_loses_it(script):
    script.connection()
    script.decide(10.0)
    assert script.steering() == []
    # One transfer is known: a second one like it must not go where 3 KB would be best.
    script.tell(SIZES)
    script.decide(11.0)
    assert script.steering() == [SetDestinations({PLACE: "lte0"})]
    script.decide(10_000.0)  # no connection has gone there for hours
    assert script.steering() == [SetDestinations({PLACE: None})]


def test_a_rule_that_was_refused_is_tried_again(script):
    script.connection()
    script.tell(SIZES)
    script.decide(10.0)
    (command,) = script.steering()
    script.tell(on.CommandFailed(command, (PLACE,)))
    script.decide(11.0)
    assert script.steering() == [command] == [SetDestinations({PLACE: "lte0"})]


@pytest.mark.parametrize("named", [(), (HINTED,)])
def test_a_rule_that_could_not_be_changed_is_taken_back_with_its_hint(script, named):
    """The kernel may still have the earlier one, as where a network went while its rule was added."""
    prefix, port = HINTED
    script.tell(
        on.HintGiven(HintRequest(destination=prefix, port=port, size_bytes=10**7), uid=1000)
    )
    script.tell(on.HintGiven(HintRequest(program="curl", size_bytes=10**7), uid=1000))
    destination, program = script.steering()[-2:]
    script.tell(on.CommandFailed(destination, named), on.CommandFailed(program))
    assert script.controller.programs.led.get(program.mark) is None
    script.tell(on.HintWithdrawn(1), on.HintWithdrawn(2))
    removals = script.steering()
    assert removals == [SetDestinations({HINTED: None}), SetMark(program.mark, None)]
    # Nor is it forgotten where that is refused, too.
    script.tell(on.CommandFailed(removals[0], named), on.CommandFailed(removals[1]), at_s=11.0)
    script.decide(12.0)
    assert script.steering() == removals
    script.decide(13.0)
    assert script.steering() == []


def test_what_was_refused_is_tried_again_a_second_later_and_then_with_the_next_decision(script):
    """An idle host decides every ten seconds. A lasting refusal is not logged each second."""
    script.wait(9.0)
    script.given(SetDefault)
    command = SetDefault("wlan0", {})
    script.tell(on.CommandFailed(command), at_s=9.5)
    script.wait(10.4)
    assert script.given(SetDefault) == []
    script.wait(10.6)
    assert script.given(SetDefault) == [command]
    script.tell(on.CommandFailed(command))
    script.wait(15.0)
    assert script.given(SetDefault) == []
    script.decide(16.0)
    assert script.given(SetDefault) == [command]


def test_without_any_network_nothing_is_steered(script):
    script.networks(replace(WLAN, up=False), replace(LTE, up=False), at_s=9.0)
    assert script.steering() == []
    assert script.recorded().choice.kind is StrategyKind.DEFER
    script.networks(WLAN, replace(LTE, up=False), at_s=10.0)
    assert script.steering() == [SetDefault("wlan0", {})]
    assert script.controller.default.decision.choice == ONLY_WLAN


WHY = f"Programs are blocked on wlan0 until 2026-12-01 00:00, {WHY_BARRED}"


def test_nothing_is_led_to_a_barred_network_and_everything_says_why(script):
    script.connection(movable=True)
    script.told(10_000)
    script.barred("wlan0", at_s=11.0)
    assert script.steering() == []
    script.wait(11.0)
    moves = script.steering()
    assert moves[0] == SetDefault("lte0", {})
    assert [str(each) for each in moves[1:]] != []
    assert script.flow().strategy is not None
    assert script.flow().strategy.networks == ("lte0",)
    assert all(decision.reason.endswith(WHY) for decision in script.decisions[-2:])
    assert [network.up for network in script.controller.decider.networks] == [True, True]
    script.barred(at_s=12.0)
    script.wait(12.0)
    assert SetDefault("wlan0", {}) in script.steering()
    assert WHY not in script.recorded().reason


def test_with_no_other_way_than_a_barred_network_nothing_is_chosen_at_all(script):
    script.barred("wlan0", at_s=10.0)
    script.networks(WLAN, at_s=11.0)
    assert script.steering() == []
    assert script.recorded().reason == f"No network works: {WHY[0].lower()}{WHY[1:]}"
    guess = Transfer(SizeEstimate(3000, 3000, 3000, "hint"))
    context = script.controller.context(11.0)
    asked = on.ChoiceAsked(guess, True, False)
    decision = script.controller.decider.choose(asked, context).decision
    assert decision.choice.kind is StrategyKind.DEFER
    made = len(script.decisions)
    script.decide(12.0)
    assert len(script.decisions) == made + 1  # (that of the program): the same answer is no news
