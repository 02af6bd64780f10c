"""People with a data plan: what they ask for, and what there is to spend in a month. Drawn.

Days are at home, at work, on the way and out, with Wi-Fi of the quality of each place, and transfers of
several kinds by the hour of the day. Habits shift in the middle of a month (a home network that gets
worse, an office without Wi-Fi, a trip). Where there is no Wi-Fi, small things go over the metered network
without a choice; videos and background transfers may wait, which costs a wait that is drawn, too. A
program that is not steered uses a little all the time.

The same choices are counted in two ways. A month's data: the bytes over the metered network. A day's
joules: those of both radios, from four at night, when the battery is charged, to the next.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import exp, log
from typing import NamedTuple

from cedos.budget_kinds import Resource
from cedos.model import Budget, Every
from cedos.selector.budgets.controller import Option
from cedos.selector.budgets.demand import increments
from cedos.storage.model_files import radios

DAY_S = 86_400.0
_RTT_WIFI_S, _RTT_CELLULAR_S = 0.03, 0.07
# The standard deviation of a size forecast's logarithm.
_SIZE_ERROR = 0.2
_BY_HOUR = (
    *(0.2, 0.1, 0.05, 0.05, 0.05, 0.2, 0.8, 1.5),
    *(1.4, 1.0, 1.0, 1.0, 1.4, 1.2, 1.0, 1.0),
    *(1.1, 1.4, 1.5, 1.7, 2.0, 2.0, 1.6, 0.75),
)
_CHATTER_BYTES = 2e4
_CHATTER_S = 600.0
_DEVICE = "lte-2012"
_CHATTER_LOOK_S = 0.1
_CHARGED_S = 4 * 3600.0


class Choice(NamedTuple):
    """A transfer that a person may want."""

    at_s: float
    # Seconds without the metered network, by Wi-Fi or by waiting; None: there is no choice.
    free_s: float | None
    metered_s: float  # seconds over it
    expected_bytes: float  # what is foretold of its size
    size_bytes: float
    steered: bool = True  # whether the product decides on it, or even sees it
    waits_s: float = 0.0  # so much of `free_s` is waiting, in which nothing is carried


@dataclass(frozen=True, slots=True)
class Habits:
    """Habits of a person, which shift from time to time."""

    activity: float  # transfers of each kind, relative to the usual
    video: float  # videos, likewise
    home_bps: float  # typical rate of the Wi-Fi at home; 0: none
    work_bps: float
    metered_bps: float  # typical rate of the metered network
    out: float  # share of evenings and weekends spent out
    away: bool = False  # on a trip: everywhere is out, and the hotel's Wi-Fi is bad


class _Kind(NamedTuple):
    per_day: float
    median_bytes: float
    spread: float
    wait_s: tuple[float, float] | None
    """Seconds of a person's time that waiting for Wi-Fi costs; None: the transfer cannot wait."""


_PHOTO = _Kind(12.0, 6e6, 0.9, (0.5, 60.0))


_VIDEO = _Kind(6.0, 40e6, 0.6, (20.0, 600.0))


_PAGE = _Kind(40.0, 1.5e6, 0.7, None)


_MESSAGE = _Kind(60.0, 60e3, 1.0, None)


_KINDS = (_MESSAGE, _PAGE, _VIDEO, _PHOTO)


def draw(dice: random.Random) -> Habits:
    return Habits(
        activity=exp(dice.gauss(0.0, 0.4)),
        video=exp(dice.gauss(0.0, 0.6)),
        home_bps=exp(dice.uniform(log(3e6), log(60e6))),
        work_bps=dice.choice((0.0, exp(dice.uniform(log(2e6), log(60e6))))),
        metered_bps=exp(dice.uniform(log(5e6), log(40e6))),
        out=dice.uniform(0.05, 0.5),
    )


def shifted(habits: Habits, dice: random.Random) -> Habits:
    """Return the person after something has changed."""
    match dice.randrange(5):
        case 0:
            return replace(habits, activity=habits.activity * exp(dice.uniform(-0.8, 0.8)))
        case 1:
            return replace(habits, video=habits.video * exp(dice.uniform(-1.2, 1.2)))
        case 2:
            return replace(habits, home_bps=exp(dice.uniform(log(1e6), log(60e6))))
        case 3:
            return replace(habits, work_bps=0.0 if habits.work_bps else 20e6)
        case _:
            return replace(habits, away=not habits.away, metered_bps=habits.metered_bps * 0.7)


def days(habits: Habits, count: int, dice: random.Random) -> list[Choice]:
    """Return all choices of `count` days, in no order; nothing shifts, no program acts by itself."""
    return [choice for day in range(count) for choice in _day(day, habits, dice)]


def month(habits: Habits, days: int, dice: random.Random) -> tuple[list[Choice], Habits]:
    """Return all choices of a month in their order, and the habits at its end."""
    shifts = sorted(dice.randrange(2, days) for _ in range(dice.choice((0, 1, 1, 2, 3))))
    found: list[Choice] = []
    for day in range(days):
        for _ in range(shifts.count(day)):
            habits = shifted(habits, dice)
        found.extend(_day(day, habits, dice))
    chatter = int(days * DAY_S / _CHATTER_S)
    for _ in range(chatter):
        size = _CHATTER_BYTES * dice.expovariate(1.0)
        found.append(Choice(dice.uniform(0, days * DAY_S), None, 0.0, 0.0, size, steered=False))
    found.sort()
    return found, habits


def _day(day: int, habits: Habits, dice: random.Random) -> Iterator[Choice]:
    weekend = day % 7 in {5, 6}
    out_tonight, out_today = dice.random() < habits.out, dice.random() < habits.out
    leave_h, home_h = dice.uniform(7.3, 8.7), dice.uniform(16.5, 18.5)
    busy = exp(dice.gauss(0.0, 0.3))
    for kind in _KINDS:
        often = habits.activity * busy * (habits.video if kind is _VIDEO else 1.0)
        for hour, weight in enumerate(_BY_HOUR):
            for _ in range(_poisson(kind.per_day * often * weight / sum(_BY_HOUR), dice)):
                hour_of_day = hour + dice.random()
                place_bps = habits.home_bps
                if habits.away:
                    place_bps = 1.5e6 if hour_of_day < 8 or hour_of_day > 20 else 0.0
                elif weekend:
                    place_bps = 0.0 if out_today and 11 < hour_of_day < 20 else place_bps
                elif leave_h < hour_of_day < home_h:
                    on_the_way = hour_of_day < leave_h + 0.7 or hour_of_day > home_h - 0.7
                    place_bps = 0.0 if on_the_way else habits.work_bps
                elif out_tonight and hour_of_day > 19:
                    place_bps = 0.0
                yield _choice(day * DAY_S + hour_of_day * 3600.0, kind, place_bps, habits, dice)


def _choice(
    at_s: float, kind: _Kind, place_bps: float, habits: Habits, dice: random.Random
) -> Choice:
    size = kind.median_bytes * exp(dice.gauss(0.0, kind.spread))
    metered_s = _RTT_CELLULAR_S * 3 + 8 * size / (habits.metered_bps * exp(dice.gauss(0.0, 0.5)))
    free_s, waits_s = None, 0.0
    if place_bps:
        # One time in thirty a Wi-Fi hangs for a while.
        waits_s = dice.expovariate(1 / 15.0) if dice.random() < 1 / 30 else 0.0
        free_s = _RTT_WIFI_S * 3 + 8 * size / (place_bps * exp(dice.gauss(0.0, 0.7))) + waits_s
    elif kind.wait_s:
        least_s, most_s = kind.wait_s
        waits_s = exp(dice.uniform(log(least_s), log(most_s)))
        free_s = metered_s + waits_s
    foretold = size * exp(dice.gauss(0.0, _SIZE_ERROR))
    return Choice(at_s, free_s, metered_s, foretold, size, waits_s=waits_s)


def _poisson(mean: float, dice: random.Random) -> int:
    limit, product, count = exp(-mean), dice.random(), 0
    while product > limit:
        product *= dice.random()
        count += 1
    return count


class Month(NamedTuple):
    """The choices of a person's month."""

    begins_s: float
    days: int
    choices: Sequence[Choice]
    share: float  # of the supply, that is used without a choice; about


class Counted(NamedTuple):
    """A choice with what each of its options takes of the budget, as foretold and as it turns out."""

    at_s: float
    options: tuple[Option, ...]
    actual: tuple[Option, ...]
    steered: bool


@dataclass(frozen=True, slots=True)
class World:
    """A period: its choices and its budget."""

    begins_s: float
    length_s: float  # until the next one begins
    choices: Sequence[Counted]
    budget: Budget
    forced: float  # units that are used without a choice
    asked: float  # units that would save time
    change: "Change | None" = None


Plan = Callable[[Sequence[Month], random.Random], list[World]]


class Change(NamedTuple):
    """The person has another plan from an instant on, seconds since the period began."""

    at_s: float
    budget: Budget


def data(months: Sequence[Month], dice: random.Random) -> list[World]:
    """Return a data plan for each month that fits the person somehow."""
    worlds = []
    for month in months:
        choices = [counted_bytes(each) for each in month.choices]
        length_s = month.days * DAY_S
        supply = max(forced_by(choices) / month.share, _met_by_all(choices, length_s))
        budget = budget_of(Resource.DATA, supply, month.begins_s + length_s, Every.MONTH)
        worlds.append(world_of(month.begins_s, length_s, choices, budget))
    return worlds


def energy(months: Sequence[Month], dice: random.Random) -> list[World]:
    """Return for each day a budget of what is unavoidable and a share of the rest."""
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


PLANS: dict[str, Plan] = {"data": data, "energy": energy}


def budget_of(resource: Resource, supply: float, ends_s: float, every: Every) -> Budget:
    until = datetime.fromtimestamp(ends_s, UTC).replace(tzinfo=None).isoformat()
    return Budget(resource.value, resource, supply, until, every=every)


def counted_bytes(choice: Choice) -> Counted:
    def options(size: float) -> tuple[Option, ...]:
        metered = Option(choice.metered_s, size)
        return (metered,) if choice.free_s is None else (Option(choice.free_s, 0.0), metered)

    foretold, actual = options(choice.expected_bytes), options(choice.size_bytes)
    return Counted(choice.at_s, foretold, actual, choice.steered)


def _joules(choice: Choice) -> Counted:
    """Return the joules of a transfer by itself: minutes lie between two, and no tail is shared."""
    cellular, wifi = radios()[_DEVICE]["lte"], radios()[_DEVICE]["wifi"]

    def options(ratio: float) -> tuple[Option, ...]:
        size, carried_s = ratio * choice.size_bytes, choice.metered_s or _CHATTER_LOOK_S
        joules = cellular.transfer_j(bytes_down=size, seconds=ratio * carried_s)
        metered = Option(choice.metered_s, joules)
        if choice.free_s is None:
            return (metered,)
        carried_s = ratio * (choice.free_s - choice.waits_s)
        return (Option(choice.free_s, wifi.transfer_j(bytes_down=size, seconds=carried_s)), metered)

    ratio = choice.expected_bytes / choice.size_bytes if choice.steered else 1.0
    return Counted(choice.at_s, options(ratio), options(1.0), choice.steered)


def forced_by(choices: Sequence[Counted]) -> float:
    return sum(min(option.amount for option in each.actual) for each in choices)


def asked_by(choices: Sequence[Counted]) -> float:
    return sum(step.amount for each in choices for step in increments(each.actual))


def _met_by_all(choices: Sequence[Counted], length_s: float) -> float:
    """Return the least supply that a policy can meet without knowing the future.

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
    forced, asked = forced_by(choices), asked_by(choices)
    return World(begins_s, length_s, choices, budget, forced, asked, change)
