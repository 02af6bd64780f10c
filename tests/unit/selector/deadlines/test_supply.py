"""How much a network will have carried."""

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from cedos.selector.deadlines.supply import ForecastSupply
from cedos.selector.deadlines.sustained_rate import SustainedRate
from cedos.selector.prefetch.stretches import Stretch, Stretches
from predictors.weibull import Weibull


def steady(bps: float, lasted_s: int = 2000) -> SustainedRate:
    rate = SustainedRate()
    for at_s in range(lasted_s):
        rate.observe(bps, 1.0, float(at_s))
    return rate


def test_a_steady_network_that_stays_is_nearly_certain() -> None:
    supply = ForecastSupply(steady(1e6), 2000.0)
    assert 0.75e8 < supply.bits(100.0, 0.01) <= supply.bits(100.0, 0.5) <= 1.001e8


def test_it_carries_less_where_it_waits_first() -> None:
    supply = ForecastSupply(steady(1e6), 2000.0)
    assert supply.bits(100.0, 0.5, 40.0) == supply.bits(60.0, 0.5)


def test_a_network_that_is_away_may_come_back() -> None:
    away = Stretch(10.0, Weibull(0.77, 600.0), 100.0, Weibull(0.77, 120.0))
    supply = ForecastSupply(steady(1e6), 2000.0, up=False, stretch=away)
    assert supply.bits(30.0, 0.01) == 0.0
    assert supply.bits(3600.0, 0.5) > 0.0
    assert supply.bits(86_400.0, 0.01) > 0.3 * 86_400e6


def test_one_that_never_came_or_went_stays_as_it_is() -> None:
    assert ForecastSupply(steady(1e6), 2000.0, up=False).bits(1e5, 0.99) == 0.0
    for_ever = Stretches(inf, 60.0)
    for_ever.passed(10.0, True)
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
    up: bool,
    age_s: float,
    stays: float,
    absences: float,
    stay_s: float,
    away_s: float,
    rates: list[float],
    quantiles: tuple[float, float],
    within_s: float,
) -> None:
    rate = SustainedRate()
    for at_s, bps in enumerate(rates):
        rate.observe(bps, 1.0, float(at_s))
    stretch = Stretch(age_s, Weibull(stays, stay_s), 0.0, Weibull(absences, away_s))
    supply = ForecastSupply(rate, float(len(rates)), up=up, stretch=stretch)
    low, high = sorted(quantiles)
    assert 0.0 <= supply.there_s(within_s, low) <= supply.there_s(within_s, high) <= within_s
    assert supply.bits(within_s, low) >= 0.0
