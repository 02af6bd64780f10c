"""Hard budgets: where one is spent, the networks that it counts are barred until there is more of it.

A price keeps decisions from spending; it does not keep programs from it where there is no other way.
What a hard budget bars follows from facts alone (what is spent, of how much, in which period), so a
budget that is raised, taken back or renewed, a clock that jumps and a daemon that begins anew all find
the same answer.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import IntEnum
from math import isfinite
from typing import Final

from cedos.model import Budget, Resource
from cedos.selector.budgets.supply import reduced

NEARLY: Final = 0.9
"""A warning is due from this share of the supply on."""


class Stage(IntEnum):
    """How far a hard budget is spent."""

    EASY = 0
    NEARLY = 1
    RESERVE = 2
    SPENT = 3


@dataclass(frozen=True, slots=True)
class Account:
    """How a hard budget stands.

    Attributes:
        spent: bytes, or money, since its period began.
        ends_s: when the period ends, in seconds since the epoch.
        over: whether it has come to its end, and does not recur.
        coming: what would come before anything could be barred, units; inf: it is barred already, and
            stays so until the period or the supply is another one.
    """

    budget: Budget
    spent: float
    ends_s: float
    over: bool = False
    coming: float = 0.0

    @property
    def supply(self) -> float:
        """All that may be spent in the period; of units, all that may be bought."""
        unit = self.budget.increment
        return self.budget.supply if unit is None else unit.amount * unit.most

    @property
    def left(self) -> float:
        """What may still be spent; negative where more was."""
        return self.supply - self.spent

    @property
    def stage(self) -> Stage:
        """How far it is spent, with what is coming. What cannot be known bars nothing."""
        if self.over or not isfinite(self.spent):
            return Stage.EASY
        if self.left <= self.coming:
            return Stage.SPENT
        if reduced(self.left, self.supply) <= 0.0:
            return Stage.RESERVE
        return Stage.NEARLY if self.spent >= NEARLY * self.supply else Stage.EASY


class Bars:
    """Which networks are barred, and by which budgets.

    Attributes:
        networks: name -> the accounts that bar it.
    """

    def __init__(self) -> None:
        self.networks: dict[str, tuple[Account, ...]] = {}

    def update(
        self,
        accounts: Iterable[Account],
        present: Collection[str],
        metered: Collection[str],
        priced: Collection[str],
    ) -> bool:
        """Takes how the hard budgets stand.

        Returns:
            Whether other networks are barred than before.
        """
        found: dict[str, tuple[Account, ...]] = {}
        for account in accounts:
            if account.stage is Stage.SPENT:
                for name in self._counted(account.budget, present, metered, priced):
                    found[name] = (*found.get(name, ()), account)
        changed = found.keys() != self.networks.keys()
        self.networks = found
        return changed

    def barred_by(self, name: str) -> tuple[str, ...]:
        return tuple(
            network
            for network, accounts in self.networks.items()
            if any(account.budget.name == name for account in accounts)
        )

    def _counted(
        self,
        budget: Budget,
        present: Collection[str],
        metered: Collection[str],
        priced: Collection[str],
    ) -> list[str]:
        if budget.resource is Resource.MONEY:
            return sorted(priced)
        if budget.networks:
            return list(budget.networks)
        # One that is unplugged finds its bar again when it comes back.
        gone = {name for name in self.barred_by(budget.name) if name not in present}
        return sorted({*metered, *gone})
