import pytest

from cedos.selector.uncertainty.completion import spread_of
from predictors.base import Distribution


def test_a_distribution_in_short() -> None:
    times = Distribution(tuple(float(number) for number in range(1, 101)))
    spread = spread_of(times)
    assert (spread.mean_s, spread.low_s, spread.high_s) == (50.5, 5.5, 95.5)


def test_a_rare_hang_rules_the_mean_and_not_what_is_usual() -> None:
    spread = spread_of(Distribution((0.1,) * 9 + (10.0,)))
    assert spread.mean_s == pytest.approx(1.09)
    assert spread.usual_s == pytest.approx(0.1 * 100**0.1)
