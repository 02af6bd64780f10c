"""Choices for a program that carries its transfer out itself."""

from collections.abc import Sequence

import pytest
from kit.controller import LTE, WLAN

from cedos.controller.commands import RecordDecision
from cedos.controller.config import Choices
from cedos.controller.decisions.decider import Decider
from cedos.controller.events import ChoiceAsked
from cedos.controller.flows.living_flows import LivingFlows
from cedos.controller.outbox import Outbox
from cedos.model import Bulk, Context, Indicator, Label, SizeEstimate, Transfer, Urgency
from cedos.selector.decision.case import Sent
from cedos.selector.decision.sessions import Detour
from cedos.selector.objective import WeightedCost
from predictors.base import Distribution

SHORT, LONG, LATER = Label(), Label(bulk=Bulk.LARGE), Label(Urgency.BACKGROUND)


class Fixed:
    """Predictions that no size changes."""

    features: Sequence[str] = ()

    def __init__(self, **times):
        self.times = times

    def predict(self, features):
        return self.times


def decider_by(choices):
    outbox = Outbox()
    decider = Decider(choices, LivingFlows(), outbox)
    decider.networks_changed([WLAN, LTE])
    return decider, outbox


@pytest.mark.parametrize(("can", "may", "s_per_j", "label", "expected"), [
    (True, True, 0.0, SHORT, "redundant(wlan0, lte0)"), (True, True, 1.0, SHORT, "single(wlan0)"),
    (True, False, 0.0, SHORT, "single(wlan0)"), (False, True, 0.0, SHORT, "single(wlan0)"),
    (True, True, 0.0, LONG, "single(wlan0)"), (True, True, 0.0, LATER, "single(wlan0)"),
])  # fmt: skip
def test_a_program_that_can_send_twice_does_where_it_may_and_where_it_pays(
    can, may, s_per_j, label, expected
):
    gamble = Distribution((0.1,) * 9 + (10.0,))
    model = Fixed(wifi=gamble, cellular=gamble)
    choices = Choices(WeightedCost(s_per_j), model, 3000, redundant=may)
    decider, outbox = decider_by(choices)
    transfer = Transfer(SizeEstimate(4000, 4000, 4000, "hint"), label=label)
    decision = decider.choose(ChoiceAsked(transfer, can, False), Context(10.0, {})).decision
    assert str(decision.choice) == expected
    assert outbox.take() == [RecordDecision(decision)], "so that it can be explained"
    assert ("Sending twice saves" in decision.reason) is expected.startswith("redundant")
    # Who asked for both and gets one is told where that is switched on.
    off = can and not may and label == SHORT
    assert ("[decision] redundant = false" in decision.reason) is off


def test_a_program_that_can_spread_a_transfer_may_be_told_to():
    quick, slow = Distribution((1.0,) * 10), Distribution((2.0,) * 10)
    model = Fixed(wifi=slow, cellular=slow, mptcp_wifi=quick, mptcp_cellular=slow)
    choices = Choices(WeightedCost(), model, 3000)
    decider, _ = decider_by(choices)
    transfer = Transfer(SizeEstimate(10**7, 10**7, 10**7, "hint"), label=LONG)
    chosen = [
        str(decider.choose(ChoiceAsked(transfer, False, can), Context(10.0, {})).decision.choice)
        for can in (True, False)
    ]
    assert chosen == ["mptcp(wlan0, lte0)", "single(wlan0)"]


@pytest.mark.parametrize(("waited_s", "expected"), [
    (0.0, "single(wlan0)"), (0.05, "single(wlan0)"), (0.2, "redundant(wlan0, lte0)"),
    (0.3, "single(lte0)"),
])  # fmt: skip
def test_sending_twice_begins_when_the_first_copy_stays_silent(waited_s, expected):
    wifi, cellular = Distribution((0.1,) * 18 + (0.25, 10.0)), Distribution((0.3,) * 20)
    choices = Choices(
        WeightedCost(0.0, 3e-4),  # 1.2 s for 4 kB: not worth it for a mean of 0.6 s
        Fixed(wifi=wifi, cellular=cellular), 3000, redundant=True,
    )  # fmt: skip
    decider, _ = decider_by(choices)
    transfer = Transfer(SizeEstimate(4000, 4000, 4000, "hint"), label=SHORT)
    asked = ChoiceAsked(transfer, True, False, Sent("wlan0", waited_s))
    decision = decider.choose(asked, Context(10.0, {})).decision
    assert str(decision.choice) == expected
    assert "No answer over wlan0 for " in decision.reason
    staying = decision.evaluations[0]
    left_s = [time_s - waited_s for time_s in wifi.samples if time_s > waited_s]
    assert staying.time_s == pytest.approx(sum(left_s) / len(left_s))


def test_what_was_sent_over_a_metered_network_is_paid():
    """Of both copies only the second one still costs."""
    times = Fixed(wifi=Distribution((1.0,) * 5), cellular=Distribution((1.0,) * 5))
    choices = Choices(WeightedCost(0.0, 1.0), times, 3000, redundant=True)
    decider, _ = decider_by(choices)
    transfer = Transfer(SizeEstimate(4000, 4000, 4000, "hint"), label=SHORT)
    for sent, metered in (None, [0, 4000, 4000]), (Sent("lte0", 0.1), [0, 0, 0]):
        asked = ChoiceAsked(transfer, True, False, sent)
        decision = decider.choose(asked, Context(10.0, {})).decision
        assert [each.metered_bytes for each in decision.evaluations] == metered


def test_a_route_is_recorded_with_its_reason():
    same = Distribution((0.2,) * 10)
    choices = Choices(WeightedCost(), Fixed(wifi=same, cellular=same), 3000)
    decider, outbox = decider_by(choices)
    transfer = Transfer(SizeEstimate(4000, 4000, 4000, "hint"), label=SHORT)
    for rtt_s, direct in ((0.01, False), (2.0, True)):
        asked = ChoiceAsked(transfer, True, True, detour=Detour(rtt_s, 443))
        answer = decider.choose(asked, Context(10.0, {}))
        assert answer.detour.direct is direct
        assert answer.decision.reason.startswith("direct: " if direct else "through the gateway")
        assert outbox.take() == [RecordDecision(answer.decision)]


@pytest.mark.parametrize("multipath", [True, False])
def test_what_can_be_spread_looks_at_a_network_whose_rate_is_old(multipath):
    slow_once = Distribution((2.0,) * 3 + (40.0,) * 17)
    model = Fixed(
        wifi=slow_once, cellular=Distribution((6.0,)), mptcp_cellular=Distribution((7.0,))
    )
    decider, outbox = decider_by(Choices(WeightedCost(), model, 3000))
    transfer = Transfer(SizeEstimate(16_000_000, 16_000_000, 16_000_000, "hint"), label=LONG)
    known = {"wlan0": {"past1_bps": Indicator(4e6, 0.0)}}
    asked = ChoiceAsked(transfer, False, multipath)
    made = decider.choose(asked, Context(10.0, known)).decision
    assert str(made.choice) == ("mptcp(lte0, wlan0)" if multipath else "single(lte0)")
    assert ("to show what it does" in made.reason) is multipath
    assert outbox.take() == [RecordDecision(made)]


@pytest.mark.parametrize(("programs", "expected"), [(1, "single(wlan0)"), (3, "single(lte0)")])
def test_what_several_programs_wait_for_may_cost_more(programs, expected):
    model = Fixed(wifi=Distribution((6.0,)), cellular=Distribution((2.0,)))
    # Four seconds saved are worth eight megabytes at a second each only to two programs and more.
    decider, _ = decider_by(Choices(WeightedCost(s_per_metered_byte=1e-6), model, 3000))
    size = 8_000_000
    transfer = Transfer(SizeEstimate(size, size, size, "hint"), label=LONG)
    asked = ChoiceAsked(transfer, False, False, programs=programs)
    decision = decider.choose(asked, Context(10.0, {})).decision
    assert str(decision.choice) == expected
    assert ("counts for each of 3 programs" in decision.reason) is (programs == 3)
