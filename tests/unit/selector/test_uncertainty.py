from cedos.selector.uncertainty import Spread, spread_of
from predictors.base import Distribution


def test_a_distribution_in_short() -> None:
    times = Distribution(tuple(float(number) for number in range(1, 101)))
    assert spread_of(times) == Spread(50.5, 5.5, 95.5)


def test_a_spread_moves_as_a_whole() -> None:
    spread = Spread(2.0, 1.0, 4.0)
    assert spread.scaled(2.0) == Spread(4.0, 2.0, 8.0)
    assert spread.later(0.5) == Spread(2.5, 1.5, 4.5)
