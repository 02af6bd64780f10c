"""What a budget will have been used at its end: nine of ten turn out within the range."""

import random

import pytest

from cedos.selector.budgets.forecast import Forecast

_MONTH_S = 30 * 86_400.0
_HOUR_S = 3600.0


@pytest.mark.parametrize("lumps_a_month", [60, 400])
@pytest.mark.parametrize("seen_share", [0.2, 0.5, 0.8])
def test_nine_of_ten_months_end_within_the_range(lumps_a_month: int, seen_share: float) -> None:
    dice = random.Random(f"{lumps_a_month} {seen_share}")
    inside, count = 0, 200
    for _ in range(count):
        used = [
            dice.expovariate(1e-6) if dice.random() < lumps_a_month / 720 else 0.0
            for _ in range(720)
        ]
        forecast, seen = Forecast(0.0, _MONTH_S), int(seen_share * 720)
        for hour in used[:seen]:
            forecast.add(hour, _HOUR_S)
        expected = forecast.at_end(sum(used[:seen]), (720 - seen) * _HOUR_S)
        assert expected is not None
        inside += expected.low <= sum(used) <= expected.high
    assert 0.82 <= inside / count <= 0.98


def test_it_narrows_to_what_was_used() -> None:
    forecast = Forecast(0.0, _MONTH_S)
    for hour in range(720):
        forecast.add(float(hour % 3), _HOUR_S)
    assert forecast.at_end(720.0, 0.0) == (720.0, 720.0, 720.0)


def test_a_long_sleep_is_one_piece_of_news() -> None:
    forecast = Forecast(0.0, _MONTH_S)
    forecast.add(10.0, _MONTH_S / 2)
    expected = forecast.at_end(10.0, _MONTH_S / 2)
    assert expected is not None
    assert expected.likely == pytest.approx(20.0)
