"""Prices in words that a person understands, whatever they are."""

import pytest

from cedos.daemon.budgets.price_text import amount, note, worth_s
from cedos.model import Budget, Resource
from cedos.selector.budgets.calendar import Period
from cedos.selector.budgets.keeper import Standing
from cedos.selector.budgets.prices import Prices


@pytest.mark.parametrize(
    ("seconds", "message"),
    [
        (2.5e-6, "less than 1 ms"),
        (0.0421, "42 ms"),
        (0.3, "0.3 s"),
        (41.0, "41 s"),
        (2592.0, "43 minutes"),
        (82_800.0, "23 hours"),
        (7.9e5, "9 days"),
    ],
)
def test_a_price_is_told_in_its_own_unit(seconds: float, message: str) -> None:
    assert worth_s(seconds) == message


class Quote:
    rate = 2e-6

    def rate_for(self, amount: float, duration_s: float) -> float:
        return self.rate


@pytest.mark.parametrize(
    ("left_s", "words"),
    [
        (10 * 86_400.0, "10 days"),
        (47.6 * 3600.0, "48 hours"),
        (5400.0, "90 minutes"),
        (1200.0, "20 minutes"),
        (20.0, "a minute"),
    ],
)
def test_what_is_left_lasts_for_no_zero_hours(left_s: float, words: str) -> None:
    budget = Budget("data", Resource.DATA, 4e9, "2026-12-01T00:00:00")
    standing = Standing(budget, Period(0.0, 1e6), 1e9, None, 2e-6, 0.0, over=False)
    said = note(Prices(data={"lte0": (Quote(),)}), [standing], 1e6 - left_s)
    assert said == (
        f'A megabyte over lte0 must save 2 s (budget "data": 3 GB of 4 GB left for {words})'
    )


def test_much_money_is_no_power_of_ten() -> None:
    assert amount(20_000.0, Resource.MONEY) == "20000"
    assert amount(7.25, Resource.MONEY) == "7.25"
