"""The rate that a network keeps up."""

import math
from math import exp, inf, isfinite, nan
from random import Random
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.model import Direction
from cedos.selector.deadlines.network_state import (
    ForecastSupply,
    HostNetworks,
    SeenNetwork,
    SustainedRate,
    deviations,
)
from cedos.selector.deadlines.prospect import ends_s
from cedos.selector.prefetch.outlook import Stretch, Stretches
from predictors.dwell import Weibull


def drawn(spread, seconds=3000, seed=1):
    random, rate = Random(seed), SustainedRate()
    for at_s in range(seconds):
        rate.observe(random.lognormvariate(15.0, spread), 1.0, float(at_s))
    return rate


def test_longer_means_are_surer():
    rate = drawn(0.5)
    low = [rate.quantile_bps(over_s, 0.01, 3000.0) for over_s in (1.0, 10.0, 100.0)]
    assert low == sorted(low)


def test_a_tenth_of_seconds_is_below_the_tenth_quantile():
    rate, random = drawn(0.5), Random(2)
    bound = rate.quantile_bps(1.0, 0.1, 3000.0)
    below = sum(random.lognormvariate(15.0, 0.5) < bound for _ in range(2000))
    assert 0.03 < below / 2000 < 0.15


def test_one_second_of_use_does_not_make_an_old_rate_certain_again():
    """It did: a download that had just begun over LTE stopped again, and was a minute and a half late."""
    rate = drawn(0.2)
    fresh, old = rate.error(300.0, 3000.0), rate.error(300.0, 9000.0)
    rate.observe(1e6, 1.0, 9000.0)
    assert old - rate.error(300.0, 9000.0) < 0.1 * (old - fresh)
    for second in range(1, 150):
        rate.observe(3.3e6, 1.0, 9000.0 + second)
    assert rate.error(300.0, 9149.0) < fresh + 0.1 * (old - fresh)


def test_what_is_kept_comes_back():
    rate, again = drawn(0.4), SustainedRate()
    again.restore(rate.to_state(), 3000.0)
    assert again.quantile_bps(50.0, 0.05, 3000.0) == rate.quantile_bps(50.0, 0.05, 3000.0)
    again.restore({"1": [nan, 1.0, 1.0], "10": [1.0], "100": [-1.0, 1.0, 1.0]}, 3000.0)
    assert again.quantile_bps(50.0, 0.05, 3000.0) == rate.quantile_bps(50.0, 0.05, 3000.0)


def test_what_cannot_be_is_not_taken_in():
    rate = SustainedRate()
    for bps, lasted_s in ((nan, 1.0), (-1.0, 1.0), (1e6, 0.0), (1e6, nan)):
        rate.observe(bps, lasted_s, 0.0)
    assert not rate.known


def test_deviations_are_those_of_the_normal_distribution():
    assert deviations(0.5) == pytest.approx(0.0)
    assert deviations(0.01) == pytest.approx(-2.326, abs=1e-3)
    assert isfinite(deviations(0.0))
    assert exp(deviations(1.0)) > 1.0


@given(
    st.lists(st.tuples(st.floats(0, 1e9), st.floats(0.1, 2000.0)), min_size=1, max_size=50),
    st.floats(0.0, 1e6),
    st.floats(0.001, 0.999),
)
def test_any_measurements_give_a_rate(measured, over_s, q):
    rate, at_s = SustainedRate(), 0.0
    for bps, lasted_s in measured:
        at_s += lasted_s
        rate.observe(bps, lasted_s, at_s)
    found = rate.quantile_bps(over_s, q, at_s + 10.0)
    assert isfinite(found)
    assert found >= 0.0


def carried(now, *, gone_s, within_s, q):
    """Its share of the time, of a Wi-Fi that was there since anybody looked, and has gone lately."""
    networks = HostNetworks()
    networks.on_measured("wlan0", Direction.DOWN, 8e6, 1.0, 0.0)
    for at_s in range(int(now) + 1):
        networks.watch([SeenNetwork("wlan0", at_s < now - gone_s, 0.0)], float(at_s))
    seen = SeenNetwork("wlan0", gone_s == 0.0, 0.0)
    (state,) = networks.states([seen], Direction.DOWN, now)
    there = state.supply.there_s
    return float(there(within_s, q)) / within_s


def test_one_that_is_there_may_falter_but_is_not_taken_to_leave_for_ever():
    assert 0.3 < carried(100.0, gone_s=0.0, within_s=300.0, q=0.01) < 0.95


def steady(bps, lasted_s=2000):
    rate = SustainedRate()
    for at_s in range(lasted_s):
        rate.observe(bps, 1.0, float(at_s))
    return rate


def test_it_carries_less_where_it_waits_first():
    supply = ForecastSupply(steady(1e6), 2000.0)
    assert supply.bits(100.0, 0.5, 40.0) == supply.bits(60.0, 0.5)


def test_one_that_never_came_or_went_stays_as_it_is():
    assert ForecastSupply(steady(1e6), 2000.0, up=False).bits(1e5, 0.99) == 0.0
    for_ever = Stretches(inf, 60.0)
    for_ever.record(10.0, True)
    supply = ForecastSupply(steady(1e6), 2000.0, stretch=for_ever.stretch())
    assert supply.there_s(600.0, 0.005) > 590.0


@given(
    st.booleans(),
    st.floats(0, 1e5),
    st.floats(0.3, 2.0),
    st.floats(0.3, 2.0),
    st.floats(1, 1e5),
    st.floats(1, 1e5),
    st.lists(st.floats(0, 1e7), min_size=1, max_size=30),
    st.tuples(st.floats(1e-4, 0.9999), st.floats(1e-4, 0.9999)),
    st.floats(0, 1e5),
)
def test_more_surely_is_less_and_never_more_than_there_is_time_for(
    up, age_s, stays, absences, stay_s, away_s, rates, quantiles, within_s
):
    rate = SustainedRate()
    for at_s, bps in enumerate(rates):
        rate.observe(bps, 1.0, float(at_s))
    stretch = Stretch(age_s, Weibull(stays, stay_s), 0.0, Weibull(absences, away_s))
    supply = ForecastSupply(rate, float(len(rates)), up=up, stretch=stretch)
    low, high = sorted(quantiles)
    assert 0.0 <= supply.there_s(within_s, low) <= supply.there_s(within_s, high) <= within_s
    assert supply.bits(within_s, low) >= 0.0


QUANTILES = (0.05, 0.5, 0.95)
LONGEST_S = 30 * 86_400.0


class Steady:
    """A supply of a rate that varies by a factor, after a time without."""

    def __init__(self, rate_bps, spread, away_s):
        self.rate_bps, self.spread, self.away_s = rate_bps, spread, away_s
        self.asked = 0

    def bits(self, within_s, q, wait_s=0.0):
        self.asked += 1
        there_s = max(within_s - max(wait_s, self.away_s), 0.0)
        return there_s * self.rate_bps * math.exp((q - 0.5) * self.spread)


def network(supply):
    return SimpleNamespace(supply=supply)


supplies = st.builds(Steady, st.floats(1, 1e9), st.floats(0, 3), st.sampled_from([0.0, 7.0, 1e4]))


@given(
    st.floats(0, 1e13), st.lists(supplies, max_size=2), supplies, st.sampled_from([0.0, 60.0, 1e6])
)
def test_an_end_is_when_the_networks_have_carried_all(bits, free, paid, begin_s):
    def carried(at_s, q):
        found = sum(each.bits(at_s, q) for each in free)
        return found + (paid.bits(at_s, q, begin_s) if at_s > begin_s else 0.0)

    ends = ends_s(bits, [network(each) for each in free], [network(paid)], begin_s, QUANTILES)
    for end_s, quantile in zip(ends, QUANTILES, strict=True):
        q = 1.0 - quantile
        if math.isinf(end_s):
            assert carried(LONGEST_S, q) < bits
        else:
            assert carried(end_s, q) >= bits
            before_s = end_s * 0.999 - 0.001
            assert before_s <= 0.0 or carried(before_s, q) < bits


def test_it_is_found_in_few_steps():
    """The search took 99 steps for an answer to a report, and hundreds for a recorded decision."""
    supply = Steady(2e7, 1.0, 0.0)
    for bits in (1e4, 1e7, 1e10, 1e13):
        supply.asked = 0
        ends_s(bits, [network(supply)], [], math.inf, QUANTILES)
        assert supply.asked <= 50
