"""The dissertation's worked examples (4.1), brute force against enumeration, faults of every kind."""

from itertools import product
from math import inf, isfinite, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cedos.selector.decision.living import tipping_point
from cedos.selector.objective import Outcome, WeightedCost
from cedos.selector.uncertainty import METHODS, evaluator
from cedos.selector.uncertainty.evaluator import Redundant, Term, Way, network_terms
from predictors.base import Distribution, Measurement
from predictors.error import ErrorHistory

BOTH = Redundant("both", ("A", "B"))


def itself(value):
    return value


def plain(quantity):
    return ErrorHistory(prior=None, fading=1.0)


def server(name, energy_j=0.0):
    return Way(name, (Term(name, itself),), fixed_j=energy_j)


def knowing(method="brute-force", **seen):
    """An evaluator that has seen these values of quantities, each as likely, in turns."""
    found = evaluator(method, plain)
    for name, values in seen.items():
        found.predict(name, sum(values) / len(values), 0.0)
    found.choose(
        (server("A"), server("B")) if {"A", "B"} <= seen.keys() else (server(next(iter(seen))),)
    )
    for k in range(max(map(len, seen.values()))):
        for name, values in seen.items():
            found.on_measured(name, values[k % len(values)], sum(values) / len(values), 0.0)
    return found


def times(choice):
    return {each.name: each.time_s for each in choice.evaluations}


def test_two_servers_of_which_the_faster_one_is_not_known():
    """4.1: A takes 10 or 20 s, B 12 or 22 s: 15 and 17 s expected, both together 13 s."""
    knows = knowing(A=(10.0, 20.0), B=(12.0, 22.0))
    choice = knows.choose((server("A"), server("B"), BOTH))
    assert times(choice) == pytest.approx({"A": 15.0, "B": 17.0, "both": 13.0})
    assert choice.name == "both"


@pytest.mark.parametrize(("s_per_j", "expected"), [(0.19, "both"), (0.21, "A")])
def test_hedging_is_bought_at_today_s_price(s_per_j, expected):
    """The two seconds that it saves are worth ten joules up to a price of 0.2 s each."""
    knows = knowing(A=(10.0, 20.0), B=(12.0, 22.0))
    ways = (server("A", 10.0), server("B", 10.0), BOTH)
    assert knows.choose(ways, WeightedCost(s_per_j=s_per_j)).name == expected


@pytest.fixture
def outliers():
    """The same two servers, and a price at which the second one is not asked at once."""
    rare = Distribution((1.0,) * 999 + (10.0,))
    knows = evaluator("brute-force", lambda quantity: ErrorHistory(prior=rare))
    knows.predict("A", 10.0, 0.0)
    knows.predict("B", 10.0, 0.0)
    return knows, (server("A", 5.0), server("B", 5.0), BOTH), WeightedCost(s_per_j=1.0)


def test_after_eleven_seconds_of_silence_the_second_server_is_asked(outliers):
    """4.1: no answer after 11 s means 89 s more: negative information tips the decision."""
    knows, ways, weights = outliers
    assert knows.choose(ways, weights).name == "A"
    assert knows.choose(ways, weights, running={"A": 9.0}).name == "A"
    waited = knows.choose(ways, weights, running={"A": 11.0})
    assert times(waited)["A"] == pytest.approx(89.0)
    assert times(waited)["both"] == pytest.approx(10.0 + 0.001 * 79.0)
    assert waited.name == "both"


def test_the_tipping_point_is_where_the_usual_answer_did_not_come(outliers):
    knows, ways, weights = outliers
    tips_s = tipping_point(
        lambda waited_s: knows.choose(ways, weights, running={"A": waited_s}).name, 0.0, 60.0, 0.01
    )
    assert tips_s == pytest.approx(10.0, abs=0.01)


@pytest.mark.parametrize("method", ["brute-force", "error-bounds", "bayesian"])
def test_with_every_method_silence_tips_in_the_end(method):
    knows = knowing(method, A=(9.0, 10.0, 10.0, 11.0) * 8, B=(9.0, 10.0, 11.0, 10.0) * 8)
    ways, weights = (server("A", 8.0), server("B", 8.0), BOTH), WeightedCost(s_per_j=1.0)
    assert knows.choose(ways, weights).name == "A"

    def chosen(waited_s):
        return knows.choose(ways, weights, running={"A": waited_s}).name

    tips_s = tipping_point(chosen, 0.0, 100.0, 0.05)
    assert 9.0 < tips_s < 45.0
    assert chosen(tips_s) != "A"


values = st.lists(st.floats(0.05, 20.0), min_size=1, max_size=5)
prices = st.builds(WeightedCost, st.floats(0, 3), st.floats(0, 1e-2))


def enumerated(seen, ways, running, weights):
    """Expected time and cost by going through all joint outcomes that agree with what is known."""
    names = sorted(seen)
    cases = [dict(zip(names, case, strict=True)) for case in product(*[seen[n] for n in names])]
    every = [
        {way.name: way.fixed_s + sum(t.of(case[t.quantity]) for t in way.terms) for way in ways}
        for case in cases
    ]
    left = [each for each in every if all(each[name] > s for name, s in running.items())]
    rest = [{n: t - running.get(n, 0.0) for n, t in each.items()} for each in left]
    assert rest

    def price(time_s, energy_j, metered_bytes):
        return weights.cost(Outcome(time_s, energy_j, metered_bytes, 0.0))

    found = {}
    energy, carried = {}, {}
    for way in ways:
        mean_s = sum(each[way.name] for each in rest) / len(rest)
        spent = way.name in running
        energy[way.name] = way.watts * mean_s + (0.0 if spent else way.fixed_j)
        carried[way.name] = 0.0 if spent else way.metered_bytes
        found[way.name] = (mean_s, price(mean_s, energy[way.name], carried[way.name]))
    mean_s = sum(min(each.values()) for each in rest) / len(rest)
    total = price(mean_s, sum(energy.values()), sum(carried.values()))
    return found | {"both": (mean_s, total)}


def as_judged(choice):
    return {each.name: (each.time_s, each.cost) for each in choice.evaluations}


def compared(seen, ways, running, weights):
    knows = evaluator("brute-force", plain)
    for name, of in seen.items():
        knows.predict(name, 2.0, 0.0)
        for value in of:
            knows.on_measured(name, value, 2.0, 0.0)
    judged = as_judged(knows.choose((*ways, BOTH), weights, 0.0, running))
    for name, expected in enumerated(seen, ways, running, weights).items():
        assert judged[name] == pytest.approx(expected, rel=1e-9, abs=1e-9)


def two_networks(size):
    a = Way("A", network_terms("A", size), fixed_s=0.1, watts=0.5)
    b = Way("B", network_terms("B", size, 2.0), watts=1.7, fixed_j=6.0, metered_bytes=size)
    return a, b


@given(st.fixed_dictionaries(
    {f"{n}.{q}": values for n in "AB" for q in ("bandwidth", "latency")}),
    st.floats(0.01, 5.0), prices)  # fmt: skip
def test_brute_force_is_enumeration(seen, size, weights):
    compared(seen, two_networks(size), {}, weights)


@given(st.fixed_dictionaries(
    {f"{n}.{q}": values for n in "AB" for q in ("bandwidth", "latency")}),
    st.floats(0.01, 5.0), prices, st.floats(0.0, 0.95))  # fmt: skip
def test_brute_force_is_enumeration_of_what_agrees_with_silence(seen, size, weights, part):
    ways = two_networks(size)
    slowest = 0.1 + 8.0 * size / min(seen["A.bandwidth"]) + max(seen["A.latency"])
    compared(seen, ways, {"A": part * slowest}, weights)


@given(st.fixed_dictionaries(dict.fromkeys(("length", "load", "local"), values)),
       prices, st.floats(0.0, 0.95))  # fmt: skip
def test_ways_that_depend_on_the_same_thing_are_not_independent(seen, weights, part):
    """A long utterance is long wherever it is recognised."""
    ways = (
        Way("A", (Term("length", lambda s: 0.3 * s), Term("load", itself)), watts=0.2),
        Way("B", (Term("length", lambda s: 2.0 * s), Term("local", itself)), watts=3.0),
    )
    slowest = 0.3 * max(seen["length"]) + max(seen["load"])
    compared(seen, ways, {"A": part * slowest} if part > 0.2 else {}, weights)


@given(values, values, st.floats(0.0, 30.0))
def test_what_can_be_cut_off_takes_until_then_and_the_detour(of, ends, detour_s):
    knows = evaluator("brute-force", plain)
    knows.predict("A", 2.0, 0.0)
    for value in of:
        knows.on_measured("A", value, 2.0, 0.0)
    way = Way(
        "A", (Term("A", itself),), lasting=Distribution(tuple(sorted(ends))), detour_s=detour_s
    )
    expected = [t if t <= end_s else end_s + detour_s for t in of for end_s in ends]
    found = knows.choose((way,)).evaluations[0].time_s
    assert found == pytest.approx(sum(expected) / len(expected))


def test_a_price_without_end_forbids_and_free_things_stay_free():
    knows = knowing(A=(10.0, 20.0), B=(12.0, 22.0))
    dear = Way("A", (Term("A", itself),), metered_bytes=100.0)
    choice = knows.choose((dear, server("B"), BOTH), WeightedCost(s_per_metered_byte=inf))
    assert choice.name == "B"
    assert choice.chosen.cost == pytest.approx(17.0)


@pytest.mark.parametrize("method", METHODS)
def test_without_a_single_sample_there_is_a_choice(method):
    for history in (plain, lambda quantity: ErrorHistory()):
        knows = evaluator(method, history)
        ways = (server("A"), server("B"), BOTH)
        nothing = knows.choose(ways)
        assert nothing.name == "A"
        knows.predict("A", 20.0, 0.0)
        knows.predict("B", 10.0, 0.0)
        found = knows.choose(ways)
        assert found.name in {"B", "both"}
        assert all(isfinite(each.time_s) for each in found.evaluations)


numbers = st.one_of(st.floats(), st.floats(0.01, 100.0))


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from("AB"), numbers, numbers, numbers), max_size=12),
       numbers, st.floats(0, 1e9), st.booleans())  # fmt: skip
def test_whatever_predictors_say_nothing_breaks(method, told, now_s, waited_s, lasting):  # fmt: skip
    knows = evaluator(method)
    rest = Distribution((0.5, 5.0)) if lasting else None
    ways = (
        Way("A", (Term("A", itself),), watts=1.0, lasting=rest, detour_s=2.0),
        server("B"),
        BOTH,
    )
    for quantity, value, prediction, at_s in told:
        knows.predict(quantity, prediction, at_s)
        knows.choose(ways, WeightedCost(), now_s)
        knows.learn([Measurement(quantity, value, prediction, at_s)])
    for running in ({}, {"A": waited_s}):
        choice = knows.choose(ways, WeightedCost(0.1), now_s, running)
        assert choice.name in {"A", "B", "both"}
        for each in choice.evaluations:
            assert each.cost == inf or isfinite(each.cost)
            assert isfinite(each.time_s) is isfinite(each.cost)
            assert not each.time_s < 0.0
    knows.reset(("A", "never seen"), now_s)
    knows.choose(ways, WeightedCost(), now_s)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "broken", [lambda _: nan, lambda _: inf, lambda v: 1.0 / (v - v), lambda _: -5.0]
)
def test_a_way_whose_time_is_no_number_is_not_taken(method, broken):
    knows = knowing(method, A=(1.0, 2.0), B=(100.0, 200.0))
    choice = knows.choose((Way("A", (Term("A", broken),)), server("B"), BOTH))
    assert choice.name == "B"
    assert times(choice)["A"] == inf


def test_choices_are_kept_until_something_is_measured():
    calls = []

    def watched(value):
        calls.append(value)
        return value

    knows = knowing(A=(10.0, 20.0), B=(12.0, 22.0))
    ways = (Way("A", (Term("A", watched),)), server("B"), BOTH)
    first = knows.choose(ways)
    looked = len(calls)
    assert knows.choose(ways) is first
    assert len(calls) == looked
    assert knows.choose(ways, running={"A": 1.0}) is not first
    assert knows.choose(ways, WeightedCost(1.0)) is not first
    for news in (
        lambda: knows.on_measured("B", 30.0, 17.0, 1.0),
        lambda: knows.predict("A", 16.0, 1.0),
        lambda: knows.reset(("A",), 1.0),
    ):
        before = knows.choose(ways)
        news()
        assert knows.choose(ways) is not before


def test_a_network_that_nobody_uses_becomes_uncertain_and_is_tried_again():
    """6.4.3: B was clearly worse when it was last seen; with time hedging is worth it again."""
    knows = evaluator("brute-force")
    ways = (server("A", 1.0), server("B", 1.0), BOTH)
    for k in range(60):
        knows.on_measured("A", 1.0, 1.0, float(k))
        knows.on_measured("B", 2.0, 2.0, float(k))
    price = WeightedCost(s_per_j=0.02)
    assert knows.choose(ways, price, 60.0).name == "A"
    for k in range(60, 400):
        knows.on_measured("A", 1.0, 1.0, float(k))
    assert knows.choose(ways, price, 400.0).name == "both"


def test_what_is_wrong_with_the_ways_is_said():
    knows = evaluator()
    for wrong in ((), (BOTH,), (server("A"), server("A")), (server("A"), BOTH)):
        with pytest.raises(ValueError, match=r"A|ways"):
            knows.choose(wrong)
