"""Months that are unlike most: they are what they say, and the product's controller gets through them."""

import pytest

from cedos.selector.budgets.pacer import Pacer
from emu.experiments.budgets.months import live
from emu.experiments.budgets.odd_months import ODD_MONTHS, odd_figures, odd_worlds
from emu.experiments.budgets.plans import DAY_S


def days_of(kind: str) -> list[int]:
    (world,) = odd_worlds(ODD_MONTHS[kind], 3, 1)
    return [int(choice.at_s // DAY_S) for choice in world.choices if len(choice.options) > 1]


def test_each_kind_is_what_it_is_called() -> None:
    assert set(days_of("last_day")) == {29}
    assert {day % 7 for day in days_of("weekends")} == {5, 6}
    assert min(days_of("flood")) >= 10
    days = days_of("last_week")
    assert sum(day >= 23 for day in days) > 1.5 * sum(day < 7 for day in days)


@pytest.mark.parametrize("kind", ODD_MONTHS)
def test_what_is_used_without_a_choice_fits(kind: str) -> None:
    odd = ODD_MONTHS[kind]
    for world in odd_worlds(odd, 3, 2):
        share = world.forced / world.budget.supply / min(1.0, odd.change)
        assert share == pytest.approx(odd.unavoidable, abs=1e-6)
        assert world.asked > world.budget.supply


@pytest.mark.parametrize("kind", ["last_day_12", "flood_10", "weekends", "doubled"])
def test_none_is_exceeded_and_little_left_over(kind: str) -> None:
    """All demand on the last day, an eighth of it unavoidable: 40 of 40 were exceeded once."""
    outcomes = [
        each for world in odd_worlds(ODD_MONTHS[kind], 3, 4) for each in live([world], Pacer)
    ]
    found = odd_figures(outcomes)
    assert found["exceeded"] == 0
    assert found["left_over"] <= 1


def test_where_demand_is_steady_most_of_what_could_be_bought_is_bought() -> None:
    """Of the seconds that an offline optimum buys; cautious controllers lose them."""
    outcomes = [
        each for world in odd_worlds(ODD_MONTHS["steady"], 3, 4) for each in live([world], Pacer)
    ]
    found = odd_figures(outcomes)
    assert found["exceeded"] == found["left_over"] == 0
    assert found["bought_of_best_share"] >= 0.85


def test_a_plan_that_shrinks_below_what_is_spent_is_told_apart() -> None:
    worlds = odd_worlds(ODD_MONTHS["halved"], 3, 4)
    outcomes = [each for world in worlds for each in live([world], Pacer)]
    for outcome in outcomes:
        change = outcome.world.change
        assert change is not None
        assert outcome.supply == change.budget.supply
        assert outcome.met or not outcome.feasible
