"""Hard budgets: networks of a spent budget are barred until there is more of it.

A price keeps decisions from spending; it does not keep programs from it where no other network is
up. The bars follow from facts alone (the use, the supply and the period). So a budget that is
raised, removed or renewed, a clock that jumps and a daemon that starts again all lead to the same
answer.

`Pace` says how quickly a budget is spent: what would still come, and when to check again.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import IntEnum
from math import isfinite
from typing import Final

from cedos.budget_kinds import Tariff
from cedos.model import Budget
from cedos.selector.budgets.controller import KEPT_OF_SUPPLY, plannable

# The share of the supply from which on the user is warned.
NEARLY: Final = 0.9
# Networks that have gone and keep their bars, the last ones. An earlier one is barred when it comes.
MOST_GONE: Final = 16


class Stage(IntEnum):
    """The stages of spending a hard budget, in this order.

    From `NEARLY` on the user is warned. In `RESERVE`, prices already keep decisions off the budget's
    networks (Odyssey's insurance). In `SPENT`, the networks are barred for all programs.
    """

    EASY = 0
    NEARLY = 1
    RESERVE = 2
    SPENT = 3


@dataclass(frozen=True, slots=True)
class Account:
    """The state of a hard budget."""

    budget: Budget
    spent: float  # bytes, or money, since its period began
    ends_s: float  # when the period ends, in seconds since the epoch
    over: bool = False  # whether it has come to its end, and does not recur
    # Units that would still come before anything could be barred; inf: its networks are barred
    # already, and stay so until the period or the supply changes.
    coming: float = 0.0

    @property
    def supply(self) -> float:
        """The units that may be spent in the period."""
        return self.budget.supply

    @property
    def left(self) -> float:
        """The units that may still be spent; negative if too much was."""
        return self.supply - self.spent

    @property
    def stage(self) -> Stage:
        """The stage of spending, with the coming use. An unknown use bars nothing."""
        if self.over or not isfinite(self.spent):
            return Stage.EASY
        if self.left <= self.coming:
            return Stage.SPENT
        if plannable(self.left, self.supply) <= 0.0:
            return Stage.RESERVE
        return Stage.NEARLY if self.spent >= NEARLY * self.supply else Stage.EASY


class Bars:
    """The barred networks, with the budgets that bar them."""

    def __init__(self) -> None:
        self.networks: dict[str, tuple[Account, ...]] = {}  # name -> the accounts that bar it
        self._gone: dict[str, None] = {}  # barred ones that are not there, as they went

    def update(self, accounts: Iterable[Account], present: Collection[str], tariff: Tariff) -> bool:
        """Update the bars by the state of the hard budgets.

        Returns:
            Whether other networks are barred than before.
        """
        found: dict[str, tuple[Account, ...]] = {}
        gone = [each for each in (self._gone | self.networks) if each not in present]
        self._gone = dict.fromkeys(gone[-MOST_GONE:])
        for account in accounts:
            # A spent budget bars all networks that its meter counts.
            if account.stage is Stage.SPENT:
                budget = account.budget
                # An absent network keeps its bar, and finds it when it comes back.
                kept = self._gone.keys() & self.barred_by(budget.name)
                for name in budget.resource.meter.list_barred(budget.networks, tariff, kept):
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


# The shortest and the longest time between two checks.
_SOONEST_S: Final = 0.05
LATEST_S: Final = 1.0

# A check comes after this fraction of the time in which the rest could be spent: 1 / 4.
_MARGIN: Final = 4.0
# The time from a counter's rise to the last byte that still arrived: 5 to 280 ms were measured.
_REACTION_S: Final = 0.2

# The shortest time between two checks while nothing moves.
_IDLE_S: Final = 0.2
# Checks are rarer if nothing moved for this time.
_IDLE_AFTER_S: Final = 1.0


@dataclass(slots=True)
class Pace:
    """The pace at which a hard budget is spent: what would still come, and when to check again."""

    usual_per_s: float  # the assumed units a second, until a faster use was observed
    _fastest_per_s: float = 0.0
    _lately_per_s: float = 0.0
    _spent: float | None = None
    _at_s: float = 0.0  # when the use was observed last, and when it was another one than before
    _moved_at_s: float = 0.0

    def observe(self, spent: float, now_s: float) -> None:
        """Record the use until an instant of a clock that does not jump."""
        if spent != self._spent:
            if self._spent is not None and now_s > self._at_s:
                self._lately_per_s = max((spent - self._spent) / (now_s - self._at_s), 0.0)
                self._fastest_per_s = max(self._fastest_per_s, self._lately_per_s)
            self._spent, self._moved_at_s = spent, now_s
        elif now_s - self._moved_at_s > _IDLE_AFTER_S:
            # Nothing was spent for a while: the last pace no longer counts.
            self._lately_per_s = 0.0
        self._at_s = now_s

    def coming(self, supply: float) -> float:
        """Return the units that would come before a bar works; no more than Odyssey's reserve."""
        return min(self._lately_per_s * _REACTION_S, KEPT_OF_SUPPLY * supply)

    def next_check_s(self, left: float, now_s: float) -> float:
        """Return the seconds until the next check: a quarter of the time left at the highest pace."""
        per_s = max(self.usual_per_s, self._fastest_per_s)
        next_s = left / (_MARGIN * per_s) if per_s > 0.0 else LATEST_S
        soonest_s = _IDLE_S if now_s - self._moved_at_s > _IDLE_AFTER_S else _SOONEST_S
        return min(max(next_s, soonest_s), LATEST_S)
