"""A person's month as the choices that come up: when, how long over which network, how many bytes.

Drawn, not measured: days at home, at work, on the way and out; Wi-Fi of the quality of each place;
transfers of several kinds by the hour of the day; and habits that shift in the middle of a month
(a home network that gets worse, an office without Wi-Fi, a trip, more or less to do). Where there is no
Wi-Fi, small things go over the metered network without a choice, as a person waits for them; videos and
what happens in the background may wait for Wi-Fi, which costs a wait that is drawn, too. A program that
nobody steers uses a little all the time.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import exp, log
from typing import NamedTuple

DAY_S = 86_400.0
_RTT_WIFI_S, _RTT_CELLULAR_S = 0.03, 0.07
_SIZE_ERROR = 0.2
"""Sizes are foretold with this standard deviation of their logarithm."""


class Choice(NamedTuple):
    """One transfer.

    Attributes:
        free_s: seconds without the metered network, by Wi-Fi or by waiting; None: there is no choice.
        metered_s: seconds over it.
        expected_bytes: what is foretold of its size.
        steered: whether the product decides on it, or even sees it.
        waits_s: so much of `free_s` is waiting, in which nothing is carried.
    """

    at_s: float
    free_s: float | None
    metered_s: float
    expected_bytes: float
    size_bytes: float
    steered: bool = True
    waits_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Habits:
    """What shifts.

    Attributes:
        activity: transfers of each kind, relative to the usual.
        video: videos, likewise.
        home_bps: typical rate of the Wi-Fi at home; 0: none.
        metered_bps: typical rate of the metered network.
        out: share of evenings and weekends spent out.
        away: on a trip: everywhere is out, and the hotel's Wi-Fi is bad.
    """

    activity: float
    video: float
    home_bps: float
    work_bps: float
    metered_bps: float
    out: float
    away: bool = False


class _Kind(NamedTuple):
    per_day: float
    median_bytes: float
    spread: float
    wait_s: tuple[float, float] | None
    """How long waiting for Wi-Fi is felt, in seconds of a person's time; None: it cannot wait."""


_MESSAGE = _Kind(60.0, 60e3, 1.0, None)
_PAGE = _Kind(40.0, 1.5e6, 0.7, None)
_VIDEO = _Kind(6.0, 40e6, 0.6, (20.0, 600.0))
_PHOTO = _Kind(12.0, 6e6, 0.9, (0.5, 60.0))
_KINDS = (_MESSAGE, _PAGE, _VIDEO, _PHOTO)
_BY_HOUR = (
    *(0.2, 0.1, 0.05, 0.05, 0.05, 0.2, 0.8, 1.5),
    *(1.4, 1.0, 1.0, 1.0, 1.4, 1.2, 1.0, 1.0),
    *(1.1, 1.4, 1.5, 1.7, 2.0, 2.0, 1.6, 0.75),
)
_CHATTER_BYTES = 2e4
_CHATTER_S = 600.0


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
    """The person after something has changed."""
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
    """All choices of so many days, in no order; nothing shifts, and no program acts by itself."""
    return [choice for day in range(count) for choice in _day(day, habits, dice)]


def month(habits: Habits, days: int, dice: random.Random) -> tuple[list[Choice], Habits]:
    """All choices of a month in their order, and the habits at its end."""
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
