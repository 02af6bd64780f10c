from cedos.selector.uncertainty import Spread, spread_of
from predictors.base import Distribution


def test_a_distribution_in_short() -> None:
    times = Distribution(tuple(float(number) for number in range(1, 101)))
    assert spread_of(times) == Spread(50.5, 5.5, 95.5)
