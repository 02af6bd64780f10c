"""A budget that is changed in mid-period is priced as if it had always been what it is now."""

import pytest

from cedos.selector.budgets.pacer import Pacer

DAY_S = 86_400.0
MONTH_S = 30 * DAY_S


def begun(supply: float, ends_s: float = MONTH_S) -> Pacer:
    """An hour old, with 4 MB spent."""
    pacer = Pacer(supply, 0.0, ends_s, now_s=1000.0)
    pacer.observe(1000.0, supply)
    pacer.observe(4600.0, supply - 4e6)
    return pacer


@pytest.mark.parametrize(("before", "after"), [(4e9, 1e9), (1e9, 4e9), (3e6, 1e9), (1e9, 3e6)])
def test_another_supply_costs_what_it_would_have_cost_from_the_beginning(
    before: float, after: float
) -> None:
    pacer = begun(before)
    pacer.changed(4600.0, after, MONTH_S)
    assert pacer.quote(4600.0).rate == begun(after).quote(4600.0).rate


def test_an_end_today_in_place_of_one_next_month_prices_the_day() -> None:
    pacer = begun(1e8)
    assert pacer.quote(4600.0).dear == pytest.approx(MONTH_S / 1e8)
    pacer.changed(4600.0, 1e8, DAY_S)
    # Beyond what may be spent unseen, all of it is worth its period: a day.
    assert pacer.quote(4600.0).dear == pytest.approx(DAY_S / 1e8)
