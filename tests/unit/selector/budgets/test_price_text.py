"""Prices in words that a person understands, whatever they are."""

import pytest

from cedos.budget_kinds import Resource
from cedos.model import Budget, Network, NetworkKind
from cedos.selector.budgets.keeper import Period, Standing
from cedos.selector.budgets.prices import Prices, amount, note, worth_s


@pytest.mark.parametrize(
    ("seconds", "message"),
    [
        (2.5e-6, "less than 1 ms"), (0.0421, "42 ms"), (0.3, "0.3 s"), (41.0, "41 s"),
        (2592.0, "43 minutes"), (82_800.0, "23 hours"), (7.9e5, "9 days"),
    ],
)  # fmt: skip
def test_a_price_is_told_in_its_own_unit(seconds, message):
    assert worth_s(seconds) == message


LTE = Network("lte0", "lte0", 3, NetworkKind.CELLULAR, True)
WLAN = Network("wlan0", "wlan0", 2, NetworkKind.WIFI, False)


class Quote:
    rate = 2e-6

    def rate_for(self, amount, duration_s):
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
def test_what_is_left_lasts_for_no_zero_hours(left_s, words):
    budget = Budget("data", Resource.DATA, 4e9, "2026-12-01T00:00:00")
    standing = Standing(budget, Period(0.0, 1e6), 1e9, None, 2e-6, 0.0, over=False)
    said = note(Prices(data={"lte0": (Quote(),)}), [standing], [LTE], 1e6 - left_s)
    assert said == (
        f'A megabyte over lte0 must save 2 s (budget "data": 3 GB of 4 GB left for {words})'
    )


def test_much_money_is_no_power_of_ten():
    assert amount(20_000.0, Resource.MONEY) == "20000"
    assert amount(7.25, Resource.MONEY) == "7.25"


def test_a_price_names_the_budgets_that_it_comes_from_and_networks_that_are_there():
    """`data` counts what is metered: the price of Wi-Fi was said to come from it, too."""
    standings = [
        Standing(budget, Period(0.0, 1e6), 1e9, None, 2e-6, 0.0, over=False)
        for budget in (
            Budget("data", Resource.DATA, 4e9, "2026-12-01T00:00:00"),
            Budget("w", Resource.DATA, 2e9, "2026-12-01T00:00:00", networks=("wlan0", "lte9")),
        )
    ]
    quotes = {name: (Quote(),) for name in ("lte0", "wlan0", "lte9")}
    assert note(Prices(data=quotes), standings, [WLAN, LTE], 1e6 - 7200.0).split(". ") == [
        'A megabyte over lte0 must save 2 s (budget "data": 3 GB of 4 GB left for 2 hours)',
        'A megabyte over wlan0 must save 2 s (budget "w": 1 GB of 2 GB left for 2 hours)',
    ]
