"""What rate a network keeps up."""

from math import exp, isfinite, nan
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.selector.deadlines.sustained_rate import TYPICAL_ERRORS, SustainedRate, deviations


def drawn(spread: float, seconds: int = 3000, seed: int = 1) -> SustainedRate:
    random, rate = Random(seed), SustainedRate()
    for at_s in range(seconds):
        rate.observe(random.lognormvariate(15.0, spread), 1.0, float(at_s))
    return rate


def test_nothing_is_known_before_anything_was_measured() -> None:
    rate = SustainedRate()
    assert not rate.known
    assert rate.mean_bps(10.0) == rate.quantile_bps(10.0, 0.01, 0.0) == 0.0
    assert rate.error(1.0, 0.0) == pytest.approx(TYPICAL_ERRORS[0])


def test_longer_means_are_surer() -> None:
    rate = drawn(0.5)
    low = [rate.quantile_bps(over_s, 0.01, 3000.0) for over_s in (1.0, 10.0, 100.0)]
    assert low == sorted(low)


def test_a_tenth_of_seconds_is_below_the_tenth_quantile() -> None:
    rate, random = drawn(0.5), Random(2)
    bound = rate.quantile_bps(1.0, 0.1, 3000.0)
    below = sum(random.lognormvariate(15.0, 0.5) < bound for _ in range(2000))
    assert 0.03 < below / 2000 < 0.15


def test_a_steady_network_is_known_soon() -> None:
    rate = SustainedRate()
    for at_s in range(100):
        rate.observe(5e6, 1.0, float(at_s))
    assert rate.quantile_bps(60.0, 0.005, 100.0) > 0.6 * 5e6


def test_an_old_rate_is_less_certain() -> None:
    rate = drawn(0.2)
    assert rate.error(100.0, 3000.0) < rate.error(100.0, 3600.0) < rate.error(100.0, 9000.0)


def test_one_second_of_use_does_not_make_an_old_rate_certain_again() -> None:
    """It did: a download that had just begun over LTE stopped again, and was a minute and a half late."""
    rate = drawn(0.2)
    fresh, old = rate.error(300.0, 3000.0), rate.error(300.0, 9000.0)
    rate.observe(1e6, 1.0, 9000.0)
    assert old - rate.error(300.0, 9000.0) < 0.1 * (old - fresh)
    for second in range(1, 150):
        rate.observe(3.3e6, 1.0, 9000.0 + second)
    assert rate.error(300.0, 9149.0) < fresh + 0.1 * (old - fresh)


def test_what_is_kept_comes_back() -> None:
    rate, again = drawn(0.4), SustainedRate()
    again.restore(rate.to_state(), 3000.0)
    assert again.quantile_bps(50.0, 0.05, 3000.0) == rate.quantile_bps(50.0, 0.05, 3000.0)
    again.restore({"1": [nan, 1.0, 1.0], "10": [1.0], "100": [-1.0, 1.0, 1.0]}, 3000.0)
    assert again.quantile_bps(50.0, 0.05, 3000.0) == rate.quantile_bps(50.0, 0.05, 3000.0)


def test_what_cannot_be_is_not_taken_in() -> None:
    rate = SustainedRate()
    for bps, lasted_s in ((nan, 1.0), (-1.0, 1.0), (1e6, 0.0), (1e6, nan)):
        rate.observe(bps, lasted_s, 0.0)
    assert not rate.known


def test_deviations_are_those_of_the_normal_distribution() -> None:
    assert deviations(0.5) == pytest.approx(0.0)
    assert deviations(0.01) == pytest.approx(-2.326, abs=1e-3)
    assert isfinite(deviations(0.0))
    assert exp(deviations(1.0)) > 1.0


@given(
    st.lists(st.tuples(st.floats(0, 1e9), st.floats(0.1, 2000.0)), min_size=1, max_size=50),
    st.floats(0.0, 1e6),
    st.floats(0.001, 0.999),
)
def test_any_measurements_give_a_rate(
    measured: list[tuple[float, float]], over_s: float, q: float
) -> None:
    rate, at_s = SustainedRate(), 0.0
    for bps, lasted_s in measured:
        at_s += lasted_s
        rate.observe(bps, lasted_s, at_s)
    found = rate.quantile_bps(over_s, q, at_s + 10.0)
    assert isfinite(found)
    assert found >= 0.0
