import random
from pathlib import Path

import pytest

from cedos.selector.budget_keeper import Keeper
from cedos.selector.budget_odyssey import LEAST_S
from cedos.selector.budget_pacer import Pacer
from emu.budgets import months
from emu.budgets.figures import figures
from emu.budgets.habits import DAY_S, draw, month
from emu.budgets.months import Outcome, World, live, lives, simulate
from emu.budgets.picture import draw as draw_picture


@pytest.fixture(scope="module")
def found() -> dict[str, list[Outcome]]:
    return simulate(seed=5, months=4)


def test_the_same_seed_is_the_same_month() -> None:
    first, again = (month(draw(random.Random(3)), 28, random.Random(4))[0] for _ in range(2))
    assert first == again
    assert [choice.at_s for choice in first] == sorted(choice.at_s for choice in first)
    assert 0 <= first[0].at_s <= first[-1].at_s < 28 * DAY_S


def test_a_plan_can_always_be_met_by_one_who_spends_evenly() -> None:
    for worlds in lives(9, 3):
        for world in worlds:
            to_come = 0.0
            for choice in reversed(world.choices):
                if choice.free_s is None:
                    to_come += choice.size_bytes
                left_share = 1.0 - choice.at_s / (world.days * DAY_S)
                assert to_come <= world.supply * (0.9 * left_share + 0.0051)
            assert world.best_s >= 0.0


def test_budgets_are_met_and_used(found: dict[str, list[Outcome]]) -> None:
    said = figures(found)
    assert said["months"] == 4
    assert said["met_share"] == 1.0
    assert said["met_share"] >= said["odyssey_met_share"]
    assert said["spent_share"] > 0.9
    assert said["bought_over_odyssey_ratio"] > 1.0
    assert 0.0 < said["bought_of_best_share"] <= 1.02


def test_what_was_spent_is_what_the_choices_say(found: dict[str, list[Outcome]]) -> None:
    for outcome in found["pacer"]:
        assert outcome.spent >= outcome.world.forced
        assert outcome.spent + outcome.declined >= 0.99 * (
            outcome.world.forced + outcome.world.asked
        )
        assert [at_s for at_s, *_ in outcome.path] == sorted(at_s for at_s, *_ in outcome.path)


def test_a_controller_that_breaks_budgets_is_found_out() -> None:
    """The simulation can fail: a keeper whose price is always nothing exceeds every tight plan."""

    class Careless(Pacer):
        def quote(self, now_s: float) -> object:  # type: ignore[override]
            return self

        rate = 0.0

        def rate_for(self, amount: float, duration_s: float) -> float:
            return 0.0

    worlds = next(lives(5, 1))
    outcomes = live(worlds, Careless)  # type: ignore[arg-type]
    assert any(world.asked + world.forced > 1.2 * world.supply for world in worlds)
    assert not all(outcome.met for outcome in outcomes)


def test_habits_are_learned_over_months() -> None:
    """The second month begins with what the first one taught, not with the first's free spending."""
    worlds = next(
        each for each in lives(5, 9) if all(one.asked > 2 * one.supply for one in each[:2])
    )
    keepers: list[Keeper] = []

    class Kept(Keeper):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)  # type: ignore[arg-type]
            keepers.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(months, "Keeper", Kept)
        first, second, *_ = live(worlds[:2], Pacer)
    assert len(keepers) == 1
    assert first.path[0][2] == pytest.approx(LEAST_S / worlds[0].supply)
    assert second.path[0][2] > 100 * LEAST_S / worlds[1].supply


def test_a_month_without_demand_is_left_over_and_no_fault() -> None:
    world = World(0.0, 30, [], 1e9, 0.0, 0.0, 0.0)
    outcome = Outcome(world, 0.0, 0.0, 0.0, 0.0, [])
    assert outcome.met
    assert not outcome.wanted
    assert not outcome.wasted


def test_the_picture(found: dict[str, list[Outcome]], tmp_path: Path) -> None:
    draw_picture(found, tmp_path / "months.png")
    assert (tmp_path / "months.png").read_bytes().startswith(b"\x89PNG")
