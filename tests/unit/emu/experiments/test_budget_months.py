"""Simulated months: the same for all, budgets that can be met, and controllers that are found out."""

import pytest

from cedos.budget_kinds import Resource
from cedos.model import Every
from cedos.selector.budgets.pacer import Pacer
from emu.experiments.data_plans import DAY_S, PLANS, data, energy
from emu.experiments.months import (
    ODD_MONTHS,
    figures,
    live,
    lives,
    odd_figures,
    odd_worlds,
    simulate,
)


@pytest.fixture(scope="module")
def found():
    return simulate(seed=5, months=4)


@pytest.mark.parametrize("plan", PLANS)
def test_a_budget_can_always_be_met_by_one_who_spends_evenly(plan):
    for lived, dice in lives(9, 1):
        for world in PLANS[plan](lived, dice):
            to_come = 0.0
            for choice in reversed(world.choices):
                to_come += min(option.amount for option in choice.actual)
                left_share = 1.0 - choice.at_s / world.length_s
                assert to_come <= world.budget.supply * (0.9 * left_share + 0.0051)


def test_a_day_is_counted_in_joules_of_both_radios():
    lived, dice = next(lives(9, 1))
    worlds = energy(lived, dice)
    # From four at night to four: the ends of a month are left out.
    assert len(worlds) == sum(each.days - 1 for each in lived)
    counted = sum(len(world.choices) for world in worlds)
    assert 0.9 < counted / sum(len(each.choices) for each in lived) <= 1.0
    assert all(0.0 <= choice.at_s < DAY_S for world in worlds for choice in world.choices)
    for world in worlds:
        assert world.budget.resource is Resource.ENERGY
        assert world.budget.every is Every.DAY
        # A day of a phone's radios: hundreds to some ten thousands of joules.
        assert 100.0 < world.budget.supply < 50_000.0


@pytest.mark.parametrize(("prefix", "spent"), [("", 0.94), ("energy_", 0.85)])
def test_budgets_are_met_and_used(found, prefix, spent):
    shown = figures(found)
    assert shown["months"] == 4
    assert shown[f"{prefix}met_share"] == 1.0
    assert shown[f"{prefix}met_share"] >= shown[f"{prefix}odyssey_met_share"]
    assert shown[f"{prefix}spent_share"] > spent
    assert shown[f"{prefix}bought_over_odyssey_ratio"] > 1.0


def test_what_was_spent_is_what_the_choices_say(found):
    for plan in ("data", "energy"):
        for outcome in found[plan]["pacer"]:
            assert outcome.spent >= outcome.world.forced * (1.0 - 1e-9)
            assert outcome.spent + outcome.declined >= 0.99 * (
                outcome.world.forced + outcome.world.asked
            )


def test_a_controller_that_breaks_budgets_is_found_out():
    """The simulation can fail: a keeper whose price is always nothing exceeds every tight plan."""

    class Careless(Pacer):
        def quote(self, now_s):
            return self

        rate = 0.0

        def rate_for(self, amount, duration_s):
            return 0.0

    worlds = data(*next(lives(5, 1)))
    outcomes = live(worlds, Careless)
    assert any(world.asked + world.forced > 1.2 * world.budget.supply for world in worlds)
    assert not all(outcome.met for outcome in outcomes)


@pytest.mark.parametrize("kind", ["last_day_12", "flood_10", "weekends", "doubled"])
def test_none_is_exceeded_and_little_left_over(kind):
    """With all demand on the last day, an eighth of it unavoidable, once 40 of 40 were exceeded."""
    outcomes = [
        each for world in odd_worlds(ODD_MONTHS[kind], 3, 2) for each in live([world], Pacer)
    ]
    found = odd_figures(outcomes)
    assert found["exceeded"] == 0
    assert found["left_over"] <= 1
