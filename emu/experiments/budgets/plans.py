"""What there is to spend in simulated months: data, joules from charge to charge, data bought in units.

The same choices are counted in three ways. A month's data: the bytes over the metered network. A day's
joules: those of both radios by the energy model, from four at night, when the battery is charged, to
the next. Units: the data again, bought one after the other, each for money that is worth some waiting
(dissertation, 3.2.2.7).
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from cedos.model import Budget, Every, Increment, Resource
from cedos.selector.budgets.controller import Option
from cedos.selector.budgets.demand import increments
from cedos.storage.radio_file import radios
from emu.experiments.budgets.habits import DAY_S, Choice

_DEVICE = "lte-2012"
_CHATTER_S = 0.1
_CHARGED_S = 4 * 3600.0
_UNITS = 5
_MONEY = 5.0


class Month(NamedTuple):
    """What a person did.

    Attributes:
        share: of the supply, that is used without a choice; about.
    """

    begins_s: float
    days: int
    choices: Sequence[Choice]
    share: float


class Counted(NamedTuple):
    """A choice with what each of its options takes of the budget, as foretold and as it turns out."""

    at_s: float
    options: tuple[Option, ...]
    actual: tuple[Option, ...]
    steered: bool


@dataclass(frozen=True, slots=True)
class World:
    """One period: its choices, its budget, and what this could buy at most.

    Attributes:
        length_s: until the next one begins.
        forced: units that are used without a choice.
        asked: units that would save time.
        best_s: the seconds that could be bought by one who knows the future (fractional knapsack), less
            those that units bought for it are worth.
    """

    begins_s: float
    length_s: float
    choices: Sequence[Counted]
    budget: Budget
    forced: float
    asked: float
    best_s: float
    change: "Change | None" = None


class Change(NamedTuple):
    """The person has another plan from an instant on, seconds since the period began."""

    at_s: float
    budget: Budget


Plan = Callable[[Sequence[Month], random.Random], list[World]]


def data(months: Sequence[Month], dice: random.Random) -> list[World]:
    """A data plan for each month that fits the person somehow."""
    worlds = []
    for month in months:
        choices = [counted_bytes(each) for each in month.choices]
        length_s = month.days * DAY_S
        supply = max(forced_by(choices) / month.share, _met_by_all(choices, length_s))
        budget = budget_of(Resource.DATA, supply, month.begins_s + length_s, Every.MONTH)
        worlds.append(world_of(month.begins_s, length_s, choices, budget))
    return worlds


def energy(months: Sequence[Month], dice: random.Random) -> list[World]:
    """For each day what cannot be done without, and a share of the rest: batteries are full or not."""
    worlds = []
    for month in months:
        days: list[list[Counted]] = [[] for _ in range(month.days - 1)]
        for each in month.choices:
            day, at_s = divmod(each.at_s - _CHARGED_S, DAY_S)
            if 0 <= day < len(days):
                days[int(day)].append(_joules(each)._replace(at_s=at_s))
        for day, choices in enumerate(days):
            supply = forced_by(choices) + dice.uniform(0.1, 0.5) * asked_by(choices)
            supply = max(supply, _met_by_all(choices, DAY_S))
            begins_s = month.begins_s + _CHARGED_S + day * DAY_S
            budget = budget_of(Resource.ENERGY, supply, begins_s + DAY_S, Every.DAY)
            worlds.append(world_of(begins_s, DAY_S, choices, budget))
    return worlds


def money(months: Sequence[Month], dice: random.Random) -> list[World]:
    """As much data as in `data`, at most, in units; waiting is worth more to some than to others."""
    worlds = []
    for world in data(months, dice):
        unit = world.budget.supply / _UNITS
        s_per_money = dice.uniform(0.1, 1.0) * world.best_s / _UNITS / _MONEY
        increment = Increment(unit, _MONEY, s_per_money, _UNITS)
        ends_s = world.begins_s + world.length_s
        budget = budget_of(Resource.DATA, world.budget.supply, ends_s, Every.MONTH, increment)
        worlds.append(world_of(world.begins_s, world.length_s, world.choices, budget))
    return worlds


PLANS: dict[str, Plan] = {"data": data, "energy": energy, "money": money}


def paid_s(increment: Increment | None, spent: float, forced: float) -> float:
    """What units cost beyond those that nobody has a choice about, in seconds of waiting."""
    if increment is None:
        return 0.0
    more = _units(spent, increment) - _units(forced, increment)
    return more * increment.money * increment.s_per_money


def _units(spent: float, increment: Increment) -> int:
    return max(-int(-spent // increment.amount), 1)


def budget_of(
    resource: Resource, supply: float, ends_s: float, every: Every, unit: Increment | None = None
) -> Budget:
    until = datetime.fromtimestamp(ends_s, UTC).replace(tzinfo=None).isoformat()
    return Budget(resource.value, resource, supply, until, every=every, increment=unit)


def counted_bytes(choice: Choice) -> Counted:
    def options(size: float) -> tuple[Option, ...]:
        metered = Option(choice.metered_s, size)
        return (metered,) if choice.free_s is None else (Option(choice.free_s, 0.0), metered)

    foretold, actual = options(choice.expected_bytes), options(choice.size_bytes)
    return Counted(choice.at_s, foretold, actual, choice.steered)


def _joules(choice: Choice) -> Counted:
    """Each transfer by itself: minutes lie between two, and no tail is shared."""
    cellular, wifi = radios()[_DEVICE]["lte"], radios()[_DEVICE]["wifi"]

    def options(ratio: float) -> tuple[Option, ...]:
        size, carried_s = ratio * choice.size_bytes, choice.metered_s or _CHATTER_S
        joules = cellular.transfer_j(bytes_down=size, seconds=ratio * carried_s)
        metered = Option(choice.metered_s, joules)
        if choice.free_s is None:
            return (metered,)
        carried_s = ratio * (choice.free_s - choice.waits_s)
        return (
            Option(choice.free_s, wifi.transfer_j(bytes_down=size, seconds=carried_s)),
            metered,
        )

    ratio = choice.expected_bytes / choice.size_bytes if choice.steered else 1.0
    return Counted(choice.at_s, options(ratio), options(1.0), choice.steered)


def forced_by(choices: Sequence[Counted]) -> float:
    return sum(min(option.amount for option in each.actual) for each in choices)


def asked_by(choices: Sequence[Counted]) -> float:
    return sum(step.amount for each in choices for step in increments(each.actual))


def _met_by_all(choices: Sequence[Counted], length_s: float) -> float:
    """The least supply that anybody can meet who does not know the future.

    What is used without a choice takes at no instant more, from then on, than nine tenths of what an
    even spending would have left.
    """
    supply = to_come = 0.0
    for each in reversed(choices):
        least = min(option.amount for option in each.actual)
        if least > 0.0:
            to_come += least
            # The last hours are covered by the insurance that every controller keeps back.
            supply = max(supply, to_come / (0.9 * (1.0 - each.at_s / length_s) + 0.005))
    return supply


def world_of(
    begins_s: float,
    length_s: float,
    choices: Sequence[Counted],
    budget: Budget,
    change: Change | None = None,
) -> World:
    steps = [step for each in choices for step in increments(each.actual)]
    steps.sort(reverse=True)
    forced, unit = forced_by(choices), budget.increment
    sizes = [budget.supply if change is None else change.budget.supply]
    if unit is not None:
        sizes = [unit.amount * count for count in range(_units(forced, unit), unit.most + 1)]
    best_s = max(_knapsack(steps, size - forced) - paid_s(unit, size, forced) for size in sizes)
    asked = sum(step.amount for step in steps)
    return World(begins_s, length_s, choices, budget, forced, asked, best_s, change)


def _knapsack(steps: Sequence[tuple[float, float]], room: float) -> float:
    saved_s = 0.0
    for s_per_unit, amount in steps:
        taken = min(amount, room)
        saved_s += taken * s_per_unit
        room -= taken
    return saved_s
