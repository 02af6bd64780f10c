"""Months that are unlike most: what is asked for comes late, in a flood, or under another plan.

Each is a first month, so nothing was learned of any habit. What is used without a choice is a given share
of the supply and comes when the demand does, half of it in transfers that are seen and half by programs
that is not steered; it always fits.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple

from cedos.model import Every
from cedos.resources import Resource
from emu.experiments.budgets.months import WASTED, Outcome
from emu.experiments.budgets.plans import (
    DAY_S,
    Change,
    Choice,
    Habits,
    World,
    asked_by,
    budget_of,
    counted_bytes,
    days,
    draw,
    world_of,
)

_DAYS = 30
_BEGINS_S = datetime(2026, 4, 1, tzinfo=UTC).timestamp()
_WEEKEND = (5, 6)
_SHARE = (0.03, 0.5)
"""Of what would save time, this much can be bought: plans are small and large."""
_LUMP = 5
_UNCHOSEN_S = 2 * 3600.0


class OddMonth(NamedTuple):
    """A kind of odd month.

    Attributes:
        shape: makes the month's choices out of habits; only those with a choice are taken of it.
        unavoidable: share of the supply that is used without a choice.
        change: the supply from the middle of the month on, over that before.
    """

    shape: Callable[[Habits, random.Random], list[Choice]]
    unavoidable: float = 0.0
    change: float = 1.0


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
        it), `left_over_late` (what was declined in its last quarter would have), `bought_of_best_share`.
    """
    feasible = [each for each in outcomes if each.feasible]
    return {
        "exceeded": float(sum(not each.met for each in feasible)),
        "infeasible": float(len(outcomes) - len(feasible)),
        "left_over": float(
            sum(each.wanted and each.spent < (1.0 - WASTED) * each.supply for each in outcomes)
        ),
        "left_over_late": float(sum(each.wasted for each in outcomes)),
        "bought_of_best_share": sum(each.bought_s for each in outcomes)
        / sum(each.world.best_s for each in outcomes),
    }
