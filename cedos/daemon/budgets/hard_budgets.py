"""Hard budgets are kept: once one is spent, programs are kept off the networks that it counts.

The nearer the end, the sooner they are checked again. What would still come until nothing more does is
reckoned with, as far as the rate of the last moments tells, so that a budget is met within that.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol

import structlog

from cedos.budget_kinds import Resource, Tariff
from cedos.daemon.budgets.host_budgets import HostBudgets
from cedos.daemon.budgets.metering import Metering
from cedos.daemon.budgets.price_text import amount
from cedos.errors import CedosError
from cedos.model import Budget, Network
from cedos.selector.budgets.hard import LATEST_S, Account, Bars, Pace, Stage
from cedos.selector.budgets.keeper import Keeper, wall

_log = structlog.get_logger(__name__)

_USUAL_BPS: Final = 100e6
"""A network is taken to be as quick as this, or as it was seen to be."""

_AGAIN_S: Final = 10.0
"""A refusal of steering is tried again, and a leak looked for, so often."""

_LEAK_BYTES: Final = 100_000
"""If a barred network carries more than that, another program may have taken our rules out."""

_Counted = tuple[str, Resource, tuple[str, ...]]
"""A budget's name, and what it counts: one that counts something else has nothing of that behind it."""


class BarringInterface(Protocol):
    """The interface of `cedos.host.steer.barring.barring.Barring`. Errors: SteeringError."""

    async def bar(self, names: Collection[str]) -> None:
        """Bar these networks and no others; again repairs."""


class HardBudgets:
    """Checks how hard budgets stand, warns, bars and lifts.

    Args:
        barred: told of every change: network -> why it is barred, in words.
        unable: why nothing can be barred on this host, in words; "": it can.
    """

    def __init__(
        self,
        budgets: HostBudgets,
        metering: Metering,
        networks: Callable[[], Sequence[Network]],
        barring: BarringInterface,
        barred: Callable[[Mapping[str, str]], None],
        count: Callable[[Network], Awaitable[object]],
        priced: Mapping[str, float],
        ticked: asyncio.Event,
        *,
        unable: str = "",
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._budgets = budgets
        self._metering = metering
        self._networks = networks
        self._barring = barring
        self._barred = barred
        self._count = count
        self._money_per_mb = priced
        self._unable = unable
        self._clock, self._steady = clock, steady
        self._bars = Bars()
        self._accounts: list[Account] = []
        self._stages: dict[str, tuple[float, Stage]] = {}
        self._paces: dict[_Counted, Pace] = {}
        self._closed: dict[_Counted, tuple[float, float]] = {}
        self._failed = ""
        self._reasons: dict[str, tuple[str, float, float, str]] = {}
        self._acted_at_s = -math.inf
        self._acted_bytes = 0.0
        self._ticked = ticked
        self._due = False
        self._turn = asyncio.Lock()

    # -- what it shows ------------------------------------------------------------------------

    @property
    def problems(self) -> list[str]:
        """Return warnings, and what is barred, in words."""
        lines = []
        why = self._unable or self._failed
        for account in self._accounts:
            budget, left = account.budget, amount(max(account.left, 0.0), account.budget.resource)
            of = f"of {amount(account.supply, budget.resource)}"
            if account.stage is Stage.SPENT:
                networks = ", ".join(self._bars.barred_by(budget.name)) or "its networks"
                are = "should be" if why else "are"
                lines.append(
                    f'the hard budget "{budget.name}" is used up: programs {are} blocked on {networks}'
                    f" until {_shown(account.ends_s)}. `cedos budget set` gives it more, `cedos budget"
                    f" remove {budget.name}` ends it"
                )
            elif account.stage is not Stage.EASY:
                nearly = "almost used up" if account.stage is Stage.RESERVE else "nearly used up"
                lines.append(
                    f'the hard budget "{budget.name}" is {nearly}: {left} {of} left. After that,'
                    " programs are blocked on its networks"
                )
        if self._accounts and why:
            lines.append(f"hard budgets cannot be enforced: {why}")
        elif self._failed:
            lines.append(f"networks that were blocked cannot be unblocked: {self._failed}")
        return lines

    def barred_by(self, name: str) -> tuple[str, ...]:
        return () if self._unable or self._failed else self._bars.barred_by(name)

    def unkept(self, name: str) -> str:
        """Return why programs are not kept off a spent budget's networks; "" if they are."""
        spent = any(
            account.budget.name == name and account.stage is Stage.SPENT
            for account in self._accounts
        )
        return self._unable or self._failed if spent else ""

    # -- what it does -------------------------------------------------------------------------

    def check(self) -> float:
        """Check all hard budgets, and tell; return in how many seconds to check again.

        What is to be barred or opened is so with `settle`, which may have to wait for the kernel's tools.
        """
        hard = [keeper for keeper in self._budgets.keepers.values() if keeper.budget.hard]
        self._accounts = list(map(self._account, hard))
        networks = self._networks()
        changed = self._bars.update(
            self._accounts,
            [network.name for network in networks],
            Tariff(self._money_per_mb, [network.name for network in networks if network.metered]),
        )
        self._warn()
        if not self._unable and (changed or self._again()):
            self._due = True
            if changed:
                self._changed()
        self._tell()
        now_s = self._steady()
        return min(
            (
                self._paces[_counted(account.budget)].next_check_s(account.left, now_s)
                for account in self._accounts
                if not account.over and account.stage is not Stage.SPENT
            ),
            default=LATEST_S,
        )

    async def settle(self) -> None:
        """Bar and opens as the last check found."""
        async with self._turn:
            while self._due:
                self._due = False
                await self._act()
        self._tell()

    def wake(self) -> None:
        """Have it checked and settled soon, without waiting for that."""
        self._ticked.set()

    async def run(self) -> None:
        """Check until it is cancelled: when something has changed, and often near the end."""
        while True:
            self._ticked.clear()
            next_s = self.check()
            await self.settle()
            try:
                async with asyncio.timeout(next_s):
                    await self._ticked.wait()
            except TimeoutError:
                if next_s < LATEST_S:  # others count every second anyway
                    await asyncio.gather(*map(self._count, self._networks()))

    # -- within -------------------------------------------------------------------------------

    def _account(self, keeper: Keeper) -> Account:
        budget, counted = keeper.budget, _counted(keeper.budget)
        spent = self._metering.spent(budget, keeper.period.begins_s)
        tariff = Tariff(self._money_per_mb)
        usual = budget.resource.meter.usual_per_s(_USUAL_BPS / 8.0, tariff)
        pace = self._paces.setdefault(counted, Pace(usual))
        pace.observe(spent, self._steady())
        account = Account(budget, spent, keeper.period.ends_s, keeper.has_ended(self._clock()))
        key = (keeper.period.begins_s, account.supply)
        # What was barred, as what was coming would spend it, is not opened for what then is left.
        closed = self._closed.get(counted) == key
        account = replace(account, coming=math.inf if closed else pace.coming(account.supply))
        if account.stage is Stage.SPENT:
            self._closed[counted] = key
        else:
            self._closed.pop(counted, None)
        return account

    async def _act(self) -> None:
        names = sorted(self._bars.networks)
        self._acted_at_s, self._acted_bytes = self._steady(), self._carried()
        failed = ""
        try:
            await self._barring.bar(names)
        except CedosError as error:
            failed = str(error)
            if failed != self._failed:
                _log.warning("hard budgets cannot be enforced", why=failed)
        self._failed = failed

    def _changed(self) -> None:
        names = sorted(self._bars.networks)
        why = [self._why(name) for name in names]
        _log.warning("blocked", networks=names, why=". ".join(why) or "no network is, any more")
        self._budgets.tick()  # what it shows, and its prices, are of now

    def _tell(self) -> None:
        """Report the spent networks, also those that cannot be barred: they are not chosen.

        Another budget is another reason, and so is that steering refuses, or no longer does.
        """
        if self._unable:
            return
        reasons = {
            name: (account.budget.name, account.supply, account.ends_s, self._failed)
            for name, (account, *_) in self._bars.networks.items()
        }
        if reasons != self._reasons:
            self._reasons = reasons
            self._barred({name: self._why(name) for name in sorted(reasons)})

    def _again(self) -> bool:
        """Return whether to do it again: it failed, or something gets through though it should not."""
        if self._steady() - self._acted_at_s < _AGAIN_S:
            return False
        leaks = bool(self._bars.networks) and self._carried() > self._acted_bytes + _LEAK_BYTES
        if leaks:
            _log.info("a barred network carries something; the bar is put in again")
        return leaks or bool(self._failed)

    def _carried(self) -> float:
        return self._metering.carried_bytes(self._bars.networks)

    def _why(self, name: str) -> str:
        account = self._bars.networks[name][0]
        budget = account.budget
        spent, supply = (amount(each, budget.resource) for each in (account.spent, account.supply))
        fact = f'the hard budget "{budget.name}" is used up ({spent} of {supply})'
        until = _shown(account.ends_s)
        if self._failed:
            return (
                f"New connections avoid {name} until {until}, because {fact}. Programs cannot be blocked"
                f" there: {self._failed}"
            )
        return f"Programs are blocked on {name} until {until}, because {fact}"

    def _warn(self) -> None:
        """Log each warning once in a period, unless the budget was given more meanwhile."""
        before, self._stages = self._stages, {}
        for account in self._accounts:
            name, stage = account.budget.name, account.stage
            ends_s, earlier = before.get(name, (account.ends_s, Stage.EASY))
            if stage > (earlier if ends_s == account.ends_s else Stage.EASY):
                left = amount(max(account.left, 0.0), account.budget.resource)
                words = {Stage.NEARLY: "nearly used up", Stage.RESERVE: "almost used up"}
                how = words.get(stage, "used up")
                _log.warning(f"a hard budget is {how}", name=name, left=left)
            self._stages[name] = (account.ends_s, stage)


def _counted(budget: Budget) -> _Counted:
    return budget.name, budget.resource, budget.networks


def _shown(at_s: float) -> str:
    return f"{wall(at_s):%Y-%m-%d %H:%M}"
