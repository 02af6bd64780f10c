import pytest

from cedos.selector.uncertainty.completion import interval_of, spread_of
from predictors.base import Distribution


def test_a_distribution_in_short() -> None:
    times = Distribution(tuple(float(number) for number in range(1, 101)))
    spread = spread_of(times)
    assert spread.mean_s == 50.5
    assert (spread.low_s, spread.high_s) == interval_of(times)


def test_the_interval_is_wider_than_the_middle_of_errors_held_out() -> None:
    times = Distribution(tuple(float(number) for number in range(1, 101)))
    low_s, high_s = interval_of(times)
    assert low_s == pytest.approx(50.5 * (5.5 / 50.5) ** 1.3)
    assert high_s == pytest.approx(50.5 * (95.5 / 50.5) ** 1.3)
    assert interval_of(Distribution((2.0,))) == (2.0, 2.0)


def test_a_rare_hang_rules_the_mean_and_not_what_is_usual() -> None:
    spread = spread_of(Distribution((0.1,) * 9 + (10.0,)))
    assert spread.mean_s == pytest.approx(1.09)
    assert spread.usual_s == pytest.approx(0.1 * 100**0.1)
