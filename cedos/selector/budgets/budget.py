"""Budgets: resources with a supply that is to last for a period (dissertation, 3.1.2 and 3.2.2.4).

A budget is to be met in both directions: not broken, and not left over while there was something to
gain. Its price, in seconds per unit, is moved by a controller (`budget_controller`).
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

PROHIBITIVE: Final = 2.0**200
"""Seconds per unit once a budget is spent: more than any transfer can save, and still a number."""

KEPT_OF_LEFT: Final = 0.05
KEPT_OF_SUPPLY: Final = 0.01
"""Odyssey's insurance against what nobody foresaw (3.2.2.4): these shares are not planned with."""


class Resource(StrEnum):
    """What can be budgeted; amounts are bytes, joules, or money in the person's currency."""

    DATA = "data"
    ENERGY = "energy"
    MONEY = "money"


class Every(StrEnum):
    """How a budget recurs."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    YEAR = "year"


@dataclass(frozen=True, slots=True)
class Increment:
    """Pay as you go (3.2.2.7): data comes in units that are bought, and not refunded.

    Attributes:
        amount: bytes of a unit.
        money: what a unit costs.
        s_per_money: seconds of waiting that one unit of money is worth to the person.
        most: at most so many are bought in a period.
    """

    amount: float
    money: float
    s_per_money: float
    most: int


@dataclass(frozen=True, slots=True)
class Budget:
    """One resource for one period.

    Attributes:
        name: what the person calls it.
        resource: what is counted.
        supply: bytes, joules or money for a period; 0: nothing may be spent.
        until: the end of a period, local time in ISO 8601 (`2026-12-01T00:00:00`).
        since: the beginning of one that does not recur, likewise; empty: when it was first seen.
        networks: names of the networks whose use counts; empty: all that are metered. Energy: empty.
        every: how it recurs; None: it does not.
        increment: data that is bought unit by unit; `supply` is then the unit's times the most.
        battery: joules of this host's battery until it is charged; `supply` is what it then holds.
        hard: data or money: once it is spent, programs are kept off the networks it counts.
    """

    name: str
    resource: Resource
    supply: float
    until: str
    since: str = ""
    networks: tuple[str, ...] = ()
    every: Every | None = None
    increment: Increment | None = None
    battery: bool = False
    hard: bool = False


def reduced(left: float, supply: float) -> float:
    """What may be planned with: what is left without Odyssey's insurance; 0 or less: it is spent."""
    return left - (KEPT_OF_LEFT * left + KEPT_OF_SUPPLY * supply)
