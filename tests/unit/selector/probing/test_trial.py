"""Trials: a transfer goes over a network that is believed worse, to learn how fast it is."""

from dataclasses import replace
from math import exp
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.model import (
    Context,
    Decision,
    Evaluation,
    Indicator,
    SizeEstimate,
    Strategy,
    StrategyKind,
)
from cedos.selector.objective import WeightedCost
from cedos.selector.probing.trial import Recurring, Trials, in_hindsight

LTE, WLAN = (Strategy(StrategyKind.SINGLE, (name,)) for name in ("lte0", "wlan0"))
SECONDS = WeightedCost()


def evaluation(strategy, time_s, spread=1.0, cost=None):
    """`spread`: the ends of its interval are so many times the time, and one over it."""
    cost = time_s if cost is None else cost
    return Evaluation(strategy, time_s, time_s / spread, time_s * spread, 0.0, 0.0, cost)


def known(
    at_s = 100.0, age_s = 12.0, answered_at_s = None,
    **signs
):  # fmt: skip
    wifi = {name: Indicator(value, at_s) for name, value in signs.items()}
    wifi["rtt_s"] = Indicator(0.02, at_s - 0.1 if answered_at_s is None else answered_at_s)
    if age_s is not None:
        wifi["past1_bps"] = Indicator(1e6, at_s - age_s)
    return Context(at_s, {"wlan0": wifi, "lte0": {}})


def recurring(
    host, context, *, begun = 14, size_bytes = 300_000, wifi_s = 1.0,
    spread = 6.5, most_bytes = None, barred = False,
    choice = LTE, deadline_s = None, lte_cost = 0.6
):  # fmt: skip
    size = SizeEstimate(size_bytes // 2, size_bytes, most_bytes or 2 * size_bytes, "history")
    transfer = replace(host.transfer(), size=size, deadline_s=deadline_s)
    evaluations = (evaluation(LTE, 0.6, cost=lte_cost), evaluation(WLAN, wifi_s, spread))
    decision = Decision(1, 0.0, transfer, context, evaluations, choice, "balanced", "why")
    return Recurring(
        (f"{size_bytes}", 80), decision, begun, lambda network: barred and network.name == "wlan0"
    )


def due(
    host, found, context, trials = None,
    objective = SECONDS, **wifi
):  # fmt: skip
    networks = [host.lte, replace(host.wlan, **wifi)]
    return (trials or Trials()).due(found, context, networks, objective)


def test_a_network_that_may_be_fast_by_now_is_tried(host):
    context = known()
    trial = due(host, [recurring(host, context)], context)
    assert trial.of.destination == ("300000", 80)
    assert (trial.network.name, trial.answered) == ("wlan0", True)
    assert trial.why.startswith("wlan0 carries this one to show how fast it is by now")
    unknown = known(age_s=None)
    assert due(host, [recurring(host, unknown)], unknown) is not None


@pytest.mark.parametrize(
    ("wifi", "what", "signs"),
    [
        ({"metered": True}, {}, {}),
        ({"up": False}, {}, {}),
        ({}, {"begun": 0}, {}),
        ({}, {"spread": 1.1}, {}),
        ({}, {"spread": 12.0}, {}),
        ({}, {"size_bytes": 9_000}, {}),
        ({}, {"most_bytes": 9_000_000}, {}),
        ({}, {"barred": True}, {}),
        ({}, {"choice": WLAN}, {}),
        ({}, {"deadline_s": 60.0}, {}),
        ({}, {}, {"age_s": 9.0}),
        ({}, {}, {"past1_up_bps": 1e6}),
        ({}, {}, {"delivery_up_bps": 1e6}),
        ({}, {}, {"recent_s": 0.1}),
        ({}, {}, {"silence_s": 0.4}),
        ({}, {}, {"ping_loss": 0.5}),
        ({}, {}, {"available": 0.0}),
    ],
    ids=[
        "metered", "down", "nobody asks", "surely slow", "may be late", "tiny", "may be large",
        "barred", "used anyway", "deadline", "used lately", "used upwards", "delivers",
        "carried something small", "silent", "lossy", "dead",
    ],
)  # fmt: skip
def test_it_is_not_where_that_costs_or_tells_too_little(host, wifi, what, signs):
    context = known(**signs)
    assert due(host, [recurring(host, context, **what)], context, **wifi) is None


def test_what_large_ones_would_save_is_shown_by_the_largest_that_may_be_tried(host):
    context = known()
    found = [
        recurring(host, context, begun=1),
        recurring(host, context, begun=1, size_bytes=500_000),
        recurring(host, context, begun=6, size_bytes=4_000_000, wifi_s=12.0, lte_cost=8.0),
    ]
    trial = due(host, found, context)
    assert trial.of.destination == ("500000", 80)
    assert due(host, found[:2], context) is None, "by themselves they would gain too little"


def test_a_network_that_has_not_answered_is_asked_first_and_not_again_and_again(host):
    trials = Trials()

    def at(at_s, answered_at_s):
        context = known(at_s, answered_at_s=answered_at_s)
        trial = due(host, [recurring(host, context)], context, trials)
        return None if trial is None else trial.answered

    assert at(100.0, 90.0) is False
    assert at(101.0, 90.0) is None
    assert at(101.1, 101.0) is True
    assert at(109.9, 101.0) is None
    assert at(110.0, 101.0) is False


def test_trials_that_showed_nothing_become_rarer(host):
    trials = Trials()

    def next_after(at_s):
        for now_s in range(at_s, at_s + 1000):
            context = known(float(now_s))
            if due(host, [recurring(host, context)], context, trials):
                trials.on_connection("wlan0", 300_000, float(now_s))
                return now_s - at_s
        raise AssertionError

    assert [next_after(1000 * n) for n in range(1, 3)] == [0, 0], "long ago"
    at_s, pauses = 3000, []
    for _ in range(12):
        pauses.append(next_after(at_s))
        at_s += pauses[-1]
    assert pauses[1:4] == [23, 34, 51], "half as long again, rounded up"
    assert pauses[-1] == 300


@pytest.mark.parametrize(("size_bytes", "soon"), [(300_000, True), (299_000, False)])
def test_once_what_was_tried_goes_there_the_network_may_be_tried_soon_again(host, size_bytes, soon):
    trials = Trials()
    for at_s in (100.0, 200.0, 300.0):
        trials.on_connection("wlan0", 300_000, at_s)
    context = known(311.0)
    assert due(host, [recurring(host, context)], context, trials) is None
    due(host, [recurring(host, context, size_bytes=size_bytes, choice=WLAN)], context, trials)
    trials.on_connection("wlan0", 300_000, 400.0)
    context = known(410.0)
    assert (due(host, [recurring(host, context)], context, trials) is not None) is soon


def test_half_of_what_is_saved_has_to_be_a_tenth_of_a_second_more_than_what_is_lost(host):
    context = known()
    once = recurring(host, context, begun=1)
    saves_s, loses_s = in_hindsight(*once.decision.evaluations, SECONDS)
    enough = int((loses_s + 0.1) / (0.5 * saves_s)) + 1
    assert due(host, [once._replace(begun=enough - 1)], context) is None
    assert due(host, [once._replace(begun=enough)], context) is not None


@given(
    even=st.floats(0.05, 50.0), time=st.floats(0.05, 50.0), spread=st.floats(1.0, 200.0)
)  # fmt: skip
def test_hindsight_saves_and_loses_no_less_than_nothing(even, time, spread):
    chosen, alone = evaluation(LTE, even), evaluation(WLAN, time, spread)
    saves_s, loses_s = in_hindsight(chosen, alone, SECONDS)
    assert -1e-9 <= saves_s <= even
    assert loses_s >= -1e-9
    assert saves_s - loses_s == pytest.approx(even - time, abs=1e-6)


def test_hindsight_is_what_drawing_says():
    chosen, alone = evaluation(LTE, 1.0), evaluation(WLAN, 2.0, 30.0)
    sigma = 3.4012 / (1.645 * 1.3)  # the logarithm of 30
    draw = Random(1)
    times = [2.0 * exp(draw.gauss(-0.5 * sigma**2, sigma)) for _ in range(200_000)]
    saves_s, loses_s = in_hindsight(chosen, alone, SECONDS)
    assert saves_s == pytest.approx(sum(max(1.0 - t, 0.0) for t in times) / len(times), rel=0.02)
    assert loses_s == pytest.approx(sum(max(t - 1.0, 0.0) for t in times) / len(times), rel=0.05)


def test_hindsight_saves_nothing_where_the_other_one_costs_more_at_any_speed():
    alone = evaluation(WLAN, 2.0, 30.0, cost=9.0)
    assert in_hindsight(evaluation(LTE, 1.0), alone, SECONDS) == (0.0, 8.0)
