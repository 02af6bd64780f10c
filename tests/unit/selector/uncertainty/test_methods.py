"""Differences between the methods of uncertainty, computed by hand."""

from dataclasses import replace
from itertools import pairwise, product
from math import exp, inf, log, nan, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from cedos.selector.objective import WeightedCost
from cedos.selector.uncertainty import error_bounds, evaluator
from cedos.selector.uncertainty.error_bounds import bounds
from cedos.selector.uncertainty.evaluator import Known, Redundant, Term, Way
from cedos.selector.uncertainty.times import (
    MOST,
    gather,
    interval_of,
    mean_of_first,
    quantile,
    remaining,
    spread_of,
    sums_of,
    survival_of_first,
)
from predictors.base import Distribution
from predictors.error import ErrorHistory

BOTH = Redundant("both", ("A", "B"))


def itself(value):
    return value


def way(name, energy_j=0.0):
    return Way(name, (Term(name, itself),), fixed_j=energy_j)


def plain(quantity):
    return ErrorHistory(prior=None, fading=1.0)


@given(st.floats(0.0005, 0.9995), st.floats(0.5, 500.0))
def test_quantiles_of_student_s_t_are_those_of_scipy(q, freedom):
    expected = stats.t.ppf(q, freedom)
    assert error_bounds.quantile(q, freedom) == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert error_bounds.cdf(expected, freedom) == pytest.approx(q, rel=1e-6)


@pytest.mark.parametrize(
    ("q", "freedom"), [(0.0, 3.0), (1.0, 3.0), (0.5, 0.0), (float("nan"), 1.0)]
)
def test_there_are_no_other_quantiles(q, freedom):
    with pytest.raises(ValueError, match="quantile"):
        error_bounds.quantile(q, freedom)


def test_bounds_are_the_prediction_interval_of_the_logarithms():
    ratios = [0.5, 0.8, 1.0, 1.1, 1.6, 2.0]
    known = Known(plain("A"))
    for ratio in ratios:
        known.errors.add(ratio, 1.0, 0.0)
    low, center, high = bounds(known, 0.0)
    logs = [log(ratio) for ratio in ratios]
    mean, n = sum(logs) / len(logs), len(logs)
    deviation = sqrt(sum((each - mean) ** 2 for each in logs) / (n - 1))
    reach = stats.t.ppf(0.975, n - 1) * deviation * sqrt(1.0 + 1.0 / n)
    assert center == pytest.approx(exp(mean))
    assert (low, high) == pytest.approx((exp(mean - reach), exp(mean + reach)))


def test_bounds_that_do_not_overlap_leave_nothing_to_hedge():
    knows = evaluator("error-bounds", plain)
    for k in range(10):
        knows.on_measured("A", 1.0 + 0.01 * (k % 2), 1.0, 0.0)
        knows.on_measured("B", 9.0 + 0.1 * (k % 2), 9.0, 0.0)
    assert knows.choose((way("A"), way("B"), BOTH)).name == "A"


def test_bounds_that_overlap_are_hedged_up_to_the_most_that_it_can_save():
    knows = evaluator("error-bounds", plain)
    for k in range(21):
        knows.on_measured("A", 1.0 * exp(0.5 * (k % 3 - 1)), 1.0, 0.0)
        knows.on_measured("B", 1.5 * exp(0.5 * (k % 3 - 1)), 1.5, 0.0)
    free = knows.choose((way("A", 1.0), way("B", 1.0), BOTH))
    assert free.name == "both"
    alone, other, both = free.evaluations
    # What is saved where A is at its worst and B at its best: A's own best is not both at once.
    saved_s = alone.high_s - other.low_s
    assert alone.low_s < other.low_s
    assert both.cost == pytest.approx(alone.cost - saved_s)
    for price, expected in ((0.9 * saved_s, "both"), (1.1 * saved_s, "A")):
        choice = knows.choose((way("A", 1.0), way("B", 1.0), BOTH), WeightedCost(s_per_j=price))
        assert choice.name == expected


def test_the_least_that_another_way_costs_is_told_by_its_own_bounds():
    """Also where it stops with the first one: it is at its earliest end that it saves the most."""
    knows = evaluator("error-bounds", plain)
    for k in range(21):
        knows.on_measured("A", 1.0 * exp(0.8 * (k % 3 - 1)), 1.0, 0.0)
        knows.on_measured("B", 3.0 * exp(0.2 * (k % 3 - 1)), 3.0, 0.0)
    working = replace(way("B"), watts=0.5)
    for called_off in (False, True):
        redundant = Redundant("both", ("A", "B"), called_off=called_off)
        choice = knows.choose((way("A"), working, redundant), WeightedCost(s_per_j=1.0))
        alone, other, both = choice.evaluations
        assert alone.low_s < other.low_s < alone.high_s
        expected = alone.cost - (alone.high_s - other.low_s) + 0.5 * other.low_s
        assert both.cost == pytest.approx(expected)


def test_the_end_of_a_contact_counts_by_its_probability_at_every_bound():
    """In one of ten cases the network is gone already, which costs 3 s: 0.3 s at each bound."""
    knows = evaluator("error-bounds", plain)
    for k in range(21):
        knows.on_measured("A", 0.1 * exp(0.5 * (k % 3 - 1)), 0.1, 0.0)
    (lasts,) = knows.choose((way("A"),)).evaluations
    ends = Distribution((0.0, *[100.0] * 9))
    (may_end,) = knows.choose((replace(way("A"), lasting=ends, detour_s=3.0),)).evaluations
    for sure_s, unsure_s in (
        (lasts.time_s, may_end.time_s),
        (lasts.low_s, may_end.low_s),
        (lasts.high_s, may_end.high_s),
    ):
        assert unsure_s == pytest.approx(0.9 * sure_s + 0.1 * 3.0)


def rained(right, wrong):
    """Return the expected time of A: it took 1 as predicted `right` times, and 4 `wrong` times."""
    knows = evaluator("bayesian", plain)
    ways = (way("A"), way("B"), BOTH)
    knows.predict("A", 1.0, 0.0)
    knows.predict("B", 2.0, 0.0)
    knows.choose(ways)
    for k in range(right + wrong):
        # B is 2 all along; A is 1 as predicted, or 4.
        knows.on_measured("A", 1.0 if k % (right + wrong) < right else 4.0, 1.0, 0.0)
        knows.on_measured("B", 2.0, 2.0, 0.0)
    found = {each.name: each.time_s for each in knows.choose(ways).evaluations}
    assert found["B"] == pytest.approx(2.0)
    assert found["both"] <= min(found["A"], found["B"])
    return found["A"]


def test_forecasts_that_were_wrong_before_are_doubted():
    """4.3.3: the likelihood is how often the decision was this one when the values were those."""
    assert rained(12, 0) == pytest.approx(1.0)
    assert 1.0 < rained(10, 2) < rained(6, 6) < rained(2, 10) < 4.0


def test_the_posterior_is_prior_times_likelihood():
    """Two values of A; the decision is B before both of them but once: Bayes by hand."""
    knows = evaluator("bayesian", lambda quantity: ErrorHistory(prior=None, fading=1.0))
    ways = (way("A"), way("B"))
    knows.predict("B", 2.0, 0.0)
    told = [(1.0, 1.0), (1.0, 3.0), (4.0, 3.0), (4.0, 3.0)]
    knows.predict("A", told[0][1], 0.0)
    knows.choose(ways)
    knows.on_measured("B", 2.0, 2.0, 0.0)
    for k, (value, _) in enumerate(told):
        following = told[k + 1][1] if k + 1 < len(told) else 3.0
        knows.on_measured("A", value, following, 0.0)
    # P(decision B | A = 1) = 1/2, P(B | A = 4) = 1, up to the fading of older counts.
    fade = 0.97
    of_1, of_4 = 1.0 / (1.0 + fade), 1.0
    prior_1 = 2.0 * fade**2
    prior_4 = 2.0
    expected = (prior_1 * of_1 * 1.0 + prior_4 * of_4 * 4.0) / (prior_1 * of_1 + prior_4 * of_4)
    found = {each.name: each.time_s for each in knows.choose(ways).evaluations}
    assert found["A"] == pytest.approx(expected, rel=0.05)


def test_without_history_the_bayesian_goes_by_the_errors_prior():
    bayesian, brute = evaluator("bayesian"), evaluator("brute-force")
    for knows in (bayesian, brute):
        knows.predict("A", 1.0, 0.0)
        knows.predict("B", 1.2, 0.0)
    ways = (way("A"), way("B"), BOTH)
    assert bayesian.choose(ways).evaluations == brute.choose(ways).evaluations


def test_a_distribution_in_short():
    times = Distribution(tuple(float(number) for number in range(1, 101)))
    spread = spread_of(times)
    assert spread.mean_s == 50.5
    assert (spread.low_s, spread.high_s) == interval_of(times)


def test_the_interval_is_wider_than_the_middle_of_errors_held_out():
    times = Distribution(tuple(float(number) for number in range(1, 101)))
    low_s, high_s = interval_of(times)
    assert low_s == pytest.approx(50.5 * (5.5 / 50.5) ** 1.3)
    assert high_s == pytest.approx(50.5 * (95.5 / 50.5) ** 1.3)
    assert interval_of(Distribution((2.0,))) == (2.0, 2.0)


def test_a_rare_hang_rules_the_mean_and_not_what_is_usual():
    spread = spread_of(Distribution((0.1,) * 9 + (10.0,)))
    assert spread.mean_s == pytest.approx(1.09)
    assert spread.usual_s == pytest.approx(0.1 * 100**0.1)


seconds = st.lists(st.floats(0.001, 1000.0), min_size=1, max_size=12).map(sorted)


@given(st.floats(0, 10), st.lists(seconds, max_size=3))
def test_sums_are_all_sums(fixed_s, parts):
    expected = sorted(fixed_s + sum(case) for case in product(*parts))
    assert sums_of(fixed_s, parts) == pytest.approx(expected)


@given(st.lists(seconds.map(lambda each: each * 30), min_size=3, max_size=3))
def test_with_many_quantities_the_mean_stays_exact(parts):
    found = sums_of(0.0, parts)
    assert len(found) <= MOST
    assert sum(found) / len(found) == pytest.approx(sum(sum(p) / len(p) for p in parts))


@pytest.mark.parametrize("parts", [[[nan]], [[1.0, inf]], [[-inf]], [[-3.0, 1.0]]])
def test_what_is_no_time_is_none(parts):
    assert sums_of(0.0, parts) == []
    assert sums_of(nan, [[1.0]]) == []


@given(st.lists(st.floats(0.001, 1000.0), min_size=1, max_size=60).map(sorted), st.integers(1, 20))
def test_gathering_keeps_the_mean(times, count):
    found = gather(times, count)
    assert len(found) == min(count, len(times))
    assert sum(found) / len(found) == pytest.approx(sum(times) / len(times))
    assert all(low <= high * (1 + 1e-9) for low, high in pairwise(found))


@given(seconds, seconds)
def test_the_first_of_two_is_the_mean_over_all_pairs(a, b):
    expected = sum(min(x, y) for x in a for y in b) / (len(a) * len(b))
    assert mean_of_first([a, b]) == pytest.approx(expected, rel=1e-9)
    assert mean_of_first([a]) == pytest.approx(sum(a) / len(a))


@given(seconds, seconds, seconds)
def test_the_first_of_three_is_the_mean_over_all(a, b, c):
    expected = sum(min(case) for case in product(a, b, c)) / (len(a) * len(b) * len(c))
    assert mean_of_first([a, b, c]) == pytest.approx(expected, rel=1e-9)


@given(seconds, seconds, st.floats(0.02, 0.98))
def test_quantiles_of_the_first(a, b, q):
    survival = survival_of_first([a, b])
    found = quantile(survival, q, min(a[0], b[0]), min(a[-1], b[-1]))
    pairs = sorted(min(x, y) for x in a for y in b)
    below = sum(each < found * (1 - 2e-4) for each in pairs) / len(pairs)
    upto = sum(each <= found * (1 + 2e-4) for each in pairs) / len(pairs)
    assert below <= q + 1e-9
    assert upto >= q - 1e-9


@given(seconds, st.floats(0.0, 2000.0))
def test_what_is_left_of_a_wait(times, elapsed_s):
    left = remaining(times, elapsed_s)
    beyond = [time - elapsed_s for time in times if time > elapsed_s]
    if elapsed_s == 0.0 or beyond:
        assert left == pytest.approx(beyond)
    else:
        assert left == [pytest.approx(elapsed_s)], "longer than ever: as long again"
