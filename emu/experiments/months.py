"""Months with budgets, simulated with the product's own keeper; the clock is an argument.

Odd months are unlike most: what is asked for comes late, in a flood, or under another plan. Each is a
first month, so nothing was learned of any habit. The use without a choice is a given share of the supply
and comes when the demand does, half of it in transfers that are seen; it always fits.
"""

import gc
import random
from calendar import monthrange
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import NamedTuple

from cedos.budget_kinds import Resource
from cedos.model import Every
from cedos.selector.budgets.controller import MakeController
from cedos.selector.budgets.keeper import Keeper, period_at
from cedos.selector.budgets.odyssey import Odyssey
from cedos.selector.budgets.pacer import Pacer
from emu.experiments.data_plans import (
    DAY_S,
    PLANS,
    Change,
    Choice,
    Habits,
    Month,
    World,
    asked_by,
    budget_of,
    counted_bytes,
    days,
    draw,
    forced_by,
    month,
    world_of,
)

CONTROLLERS: dict[str, MakeController] = {"odyssey": Odyssey, "pacer": Pacer}
# The time between two looks at the supply without a choice. Odyssey's seconds in between are
# summed up.
_STEP_S = 600.0
# The share of a supply that may be left over.
_LEFT = 0.05
_FIRST_MONTH = (2026, 1)
# The months in the life of one person, with lasting habits. Nothing is known in the first.
_LIVES = 4
_DAYS = 30
_BEGINS_S = datetime(2026, 4, 1, tzinfo=UTC).timestamp()
_WEEKEND = (5, 6)
# The share of the useful demand that plans can buy, from small to large ones.
_SHARE = (0.03, 0.5)
_LUMP = 5
_UNCHOSEN_S = 2 * 3600.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """A period as a controller got through it: units spent and declined, seconds bought."""

    world: World
    supply: float
    spent: float
    declined: float
    bought_s: float
    feasible: bool = True
    """True if the unavoidable use fitted the last supply that became known."""

    @property
    def met(self) -> bool:
        change = self.world.change
        return self.spent <= (self.world.budget if change is None else change.budget).supply

    @property
    def wanted(self) -> bool:
        """Report whether the declined transfers would have used up what is left over."""
        return self.declined >= self.supply - self.spent

    @property
    def spent_share(self) -> float:
        return self.spent / self.supply


def lives(seed: int, count: int) -> Iterator[tuple[list[Month], random.Random]]:
    """Return the months of `count` people, each a life of `_LIVES` months, and their dice."""
    for person in range(count):
        dice = random.Random(f"{seed}/{person}")
        habits = draw(dice)
        months = []
        for number in range(_LIVES):
            year, of_year = _FIRST_MONTH[0], _FIRST_MONTH[1] + number
            days = monthrange(year, of_year)[1]
            choices, habits = month(habits, days, dice)
            begins_s = datetime(year, of_year, 1, tzinfo=UTC).timestamp()
            months.append(Month(begins_s, days, choices, dice.uniform(0.1, 0.5)))
        yield months, dice


def live(worlds: Sequence[World], make: MakeController) -> list[Outcome]:
    keeper: Keeper | None = None
    found = []
    for world in worlds:
        begins_s = world.begins_s
        period = period_at(world.budget, begins_s, UTC)
        if keeper is None:
            keeper = Keeper(world.budget, period, make, begins_s)
        else:
            keeper.roll(period_at(keeper.budget, begins_s, UTC), begins_s)
            keeper.replace_budget(world.budget, period, begins_s)
        found.append(_period(world, keeper))
    return found


def _period(world: World, keeper: Keeper) -> Outcome:
    spent = declined = bought_s = 0.0
    looked_s = 0.0
    change, feasible = world.change, True
    keeper.observe(world.begins_s, 0.0)
    for choice in world.choices:
        if change is not None and change.at_s <= choice.at_s:
            to_come = forced_by([each for each in world.choices if each.at_s >= choice.at_s])
            feasible = spent + to_come <= change.budget.supply
            changed_s = world.begins_s + change.at_s
            period = period_at(change.budget, changed_s, UTC)
            keeper.replace_budget(change.budget, period, changed_s)
            change, declined = None, 0.0
        while looked_s + _STEP_S < choice.at_s:
            looked_s += _STEP_S
            keeper.observe(world.begins_s + looked_s, spent)
        now_s = world.begins_s + choice.at_s
        looked_s = choice.at_s
        keeper.observe(now_s, spent)
        if not choice.steered:
            spent += choice.actual[0].amount
            continue
        options, taken = choice.options, 0
        if len(options) > 1:
            quote = keeper.quote(now_s)
            costs = [
                each.cost_s + each.amount * quote.rate_for(each.amount, each.cost_s)
                for each in options
            ]
            taken = costs.index(min(costs))
        # The daemon, too, tells of a transfer when it has ended, with its real size.
        keeper.on_choice(now_s, choice.actual, choice.actual[taken])
        least = min(choice.actual, key=lambda each: (each.amount, each.cost_s))
        quickest = min(choice.actual, key=lambda each: (each.cost_s, each.amount))
        spent += choice.actual[taken].amount
        bought_s += least.cost_s - choice.actual[taken].cost_s
        declined += max(quickest.amount - choice.actual[taken].amount, 0.0)
    end_s = world.begins_s + world.length_s - 1.0
    keeper.observe(end_s, spent)
    supply = (world.budget if world.change is None else world.change.budget).supply
    return Outcome(world, supply, spent, declined, bought_s, feasible)


def simulate(
    seed: int, months: int, progress: Callable[[str], None] = lambda _: None
) -> dict[str, dict[str, list[Outcome]]]:
    """Simulate at least so many months of each plan under each controller, on the same months.

    Returns:
        plan -> controller -> outcomes, period by period.
    """
    found: dict[str, dict[str, list[Outcome]]] = {
        plan: {name: [] for name in CONTROLLERS} for plan in PLANS
    }
    count = -(-months // _LIVES)
    # Millions of choices live on, and in no cycles: looking for some would take most of the time.
    gc.disable()
    try:
        for number, (lived, dice) in enumerate(lives(seed, count)):
            if number % 10 == 0:
                progress(f"person {number + 1} of {count}")
            for plan, worlds_of in PLANS.items():
                worlds = worlds_of(lived, dice)
                for name, make in CONTROLLERS.items():
                    found[plan][name].extend(live(worlds, make))
    finally:
        gc.enable()
    return found


def figures(found: Mapping[str, Mapping[str, Sequence[Outcome]]]) -> dict[str, float]:
    """Return the figures of ours (`pacer`) and of Odyssey's, on the same months, plan by plan.

    Returns:
        `months`; and with the prefixes "" (a month's data) and `energy_` (a day's joules): `periods`,
        `bought_over_odyssey_ratio` (seconds saved);
        and for each controller, Odyssey's with `odyssey_` before: `met_share` (periods in which the
        budget was not exceeded) and `spent_share` (mean share of the supply spent, of the periods in
        which what was declined would have used up what is left over).
    """
    summary = {"months": float(len(found["data"]["pacer"]))}
    for plan, by in found.items():
        prefix = "" if plan == "data" else f"{plan}_"
        summary[f"{prefix}periods"] = float(len(by["pacer"]))
        for name, outcomes in by.items():
            of = prefix if name == "pacer" else f"{prefix}{name}_"
            summary |= {f"{of}{key}": value for key, value in _of(outcomes).items()}
        ours, theirs = (sum(one.bought_s for one in by[name]) for name in ("pacer", "odyssey"))
        summary[f"{prefix}bought_over_odyssey_ratio"] = ours / theirs
    return summary


def _of(outcomes: Sequence[Outcome]) -> dict[str, float]:
    wanted = [outcome.spent_share for outcome in outcomes if outcome.wanted] or [1.0]
    return {
        "met_share": _mean([float(outcome.met) for outcome in outcomes]),
        "spent_share": _mean(wanted),
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


class OddMonth(NamedTuple):
    """A kind of odd month."""

    # Makes the month's choices out of habits; only those with a choice are taken of it.
    shape: Callable[[Habits, random.Random], list[Choice]]
    unavoidable: float = 0.0  # share of the supply that is used without a choice
    change: float = 1.0  # the supply from the middle of the month on, over that before


def _steady(habits: Habits, dice: random.Random) -> list[Choice]:
    return days(habits, _DAYS, dice)


def _last_day(habits: Habits, dice: random.Random) -> list[Choice]:
    first_s = (_DAYS - 1) * DAY_S
    return [each._replace(at_s=first_s + each.at_s % DAY_S) for each in _steady(habits, dice)]


def _last_week(habits: Habits, dice: random.Random) -> list[Choice]:
    busy = replace(habits, activity=3.0 * habits.activity)
    first_s = (_DAYS - 7) * DAY_S
    return [
        *(each for each in _steady(habits, dice) if each.at_s < first_s),
        *(each._replace(at_s=first_s + each.at_s) for each in days(busy, 7, dice)),
    ]


def _flood(habits: Habits, dice: random.Random) -> list[Choice]:
    first = dice.randrange(10, 26)
    busy = replace(habits, activity=habits.activity * _DAYS / (_DAYS - first))
    return [
        each._replace(at_s=first * DAY_S + each.at_s) for each in days(busy, _DAYS - first, dice)
    ]


def _weekends(habits: Habits, dice: random.Random) -> list[Choice]:
    return [each for each in _steady(habits, dice) if each.at_s // DAY_S % 7 in _WEEKEND]


ODD_MONTHS: Mapping[str, OddMonth] = {
    "steady": OddMonth(_steady),
    "steady_12": OddMonth(_steady, 0.12),
    "last_day": OddMonth(_last_day),
    "last_day_12": OddMonth(_last_day, 0.12),
    "last_week": OddMonth(_last_week),
    "last_week_12": OddMonth(_last_week, 0.12),
    "flood": OddMonth(_flood),
    "flood_10": OddMonth(_flood, 0.10),
    "weekends": OddMonth(_weekends),
    "halved": OddMonth(_steady, 0.02, change=0.5),
    "doubled": OddMonth(_steady, 0.02, change=2.0),
}


def odd_worlds(kind: OddMonth, seed: int, count: int) -> list[World]:
    """Return a month of each of `count` people; the same people for all kinds."""
    return [_world(kind, random.Random(f"odd/{seed}/{person}")) for person in range(count)]


def _world(kind: OddMonth, dice: random.Random) -> World:
    habits = draw(dice)
    share = dice.uniform(*_SHARE)
    chosen = [each for each in kind.shape(habits, dice) if each.free_s is not None]
    counted = [counted_bytes(each) for each in chosen]
    length_s = _DAYS * DAY_S
    supply = share * asked_by(counted) / max(1.0, kind.change) / (1.0 - kind.unavoidable)
    used = _unchosen(chosen, kind.unavoidable * supply * min(1.0, kind.change), dice)
    counted = sorted([*counted, *(counted_bytes(each) for each in used)])
    ends_s = _BEGINS_S + length_s
    budget = budget_of(Resource.DATA, supply, ends_s, Every.MONTH)
    change = None
    if kind.change != 1.0:
        then = budget_of(Resource.DATA, kind.change * supply, ends_s, Every.MONTH)
        change = Change(length_s / 2, then)
    return world_of(_BEGINS_S, length_s, counted, budget, change)


def _unchosen(chosen: Sequence[Choice], amount: float, dice: random.Random) -> list[Choice]:
    """Return the use without a choice at the time of each choice."""
    if not amount:
        return []
    found = []
    for number, each in enumerate(chosen[::_LUMP]):
        at_s = min(max(each.at_s + dice.uniform(-_UNCHOSEN_S, _UNCHOSEN_S), 0), _DAYS * DAY_S - 1)
        size = dice.expovariate(1.0)
        found.append(Choice(at_s, None, 1.0, size, size, steered=bool(number % 2)))
    scale = amount / sum(each.size_bytes for each in found)
    return [
        each._replace(size_bytes=scale * each.size_bytes, expected_bytes=scale * each.size_bytes)
        for each in found
    ]


def odd_figures(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Return the figures of one kind's months.

    Returns:
        `exceeded` (of months whose use without a choice fitted when the supply became known),
        `infeasible`, `left_over` (more than 5 % though what was declined in all the month would have used
        it).
    """
    feasible = [each for each in outcomes if each.feasible]
    return {
        "exceeded": float(sum(not each.met for each in feasible)),
        "infeasible": float(len(outcomes) - len(feasible)),
        "left_over": float(
            sum(each.wanted and each.spent < (1.0 - _LEFT) * each.supply for each in outcomes)
        ),
    }
