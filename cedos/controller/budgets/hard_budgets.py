"""Hard budgets are kept: once one is spent, programs are kept off the networks that it counts.

The nearer the end, the sooner the use is counted again. What would still come until nothing more does is
reckoned with, as far as the rate of the last moments tells, so that a budget is met within that.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from cedos.budget_kinds import Resource, Tariff
from cedos.controller.commands import BarNetworks, CountUse, Tell
from cedos.controller.events import BudgetsCounted, BudgetUse
from cedos.controller.outbox import Outbox
from cedos.model import Budget, Network
from cedos.selector.budgets.hard import LATEST_S, Account, Bars, Pace, Stage
from cedos.selector.budgets.prices import amount

# The assumed highest rate of a network that was never seen faster.
_USUAL_BPS: Final = 100e6

# The time after which a refused command is repeated.
_AGAIN_S: Final = 10.0

# A budget's name, its resource and its networks. A budget that counts something else starts anew.
_Counted = tuple[str, Resource, tuple[str, ...]]


@dataclass(slots=True)
class _Course:
    """The pace of a budget, and the beginning of the period and the supply for which it bars, if any."""

    pace: Pace
    barred_for: tuple[float, float] | None = None


class HardBudgets:
    """The hard budgets, and the networks that they bar.

    Args:
        money_per_mb: by network, where it is configured.

    Attributes:
        why: the networks that programs are kept off, or should be, each with the reason in words.
    """

    def __init__(self, outbox: Outbox, money_per_mb: Mapping[str, float]) -> None:
        self.why: dict[str, str] = {}
        self._outbox = outbox
        self._money_per_mb = money_per_mb
        self._networks: Sequence[Network] = ()
        self._counted = BudgetsCounted(0.0, ())
        self._budgets: Mapping[str, Budget] = {}
        self._bars = Bars()
        self._accounts: list[Account] = []
        self._until: dict[str, str] = {}
        self._stages: dict[str, tuple[float, Stage]] = {}
        self._courses: dict[_Counted, _Course] = {}
        self._facts: dict[str, tuple[str, float, float, str]] = {}
        self._failed = ""
        self._check_at_s: float | None = None
        self._acted_at_s = -math.inf

    # -- views --------------------------------------------------------------------------------

    @property
    def problems(self) -> list[str]:
        """Return warnings, and what is barred, in words."""
        lines = []
        for account in self._accounts:
            budget, left = account.budget, amount(max(account.left, 0.0), account.budget.resource)
            of = f"of {amount(account.supply, budget.resource)}"
            if account.stage is Stage.SPENT:
                networks = ", ".join(self._bars.barred_by(budget.name)) or "its networks"
                are = "should be" if self._failed else "are"
                lines.append(
                    f'the hard budget "{budget.name}" is used up: programs {are} blocked on {networks}'
                    f" until {self._until[budget.name]}. `cedos budget set` gives it more, `cedos budget"
                    f" remove {budget.name}` ends it"
                )
            elif account.stage is not Stage.EASY:
                nearly = "almost used up" if account.stage is Stage.RESERVE else "nearly used up"
                lines.append(
                    f'the hard budget "{budget.name}" is {nearly}: {left} {of} left. After that,'
                    " programs are blocked on its networks"
                )
        if self._accounts and self._failed:
            lines.append(f"hard budgets cannot be enforced: {self._failed}")
        elif self._failed:
            lines.append(f"networks that were blocked cannot be unblocked: {self._failed}")
        return lines

    def barred_by(self, name: str) -> tuple[str, ...]:
        """Return the networks that a budget bars."""
        return () if self._failed else self._bars.barred_by(name)

    def unkept(self, name: str) -> str:
        """Return why programs are not kept off a spent budget's networks; "" if they are."""
        spent = any(
            account.budget.name == name and account.stage is Stage.SPENT
            for account in self._accounts
        )
        return self._failed if spent else ""

    def next_timer_s(self) -> float | None:
        """Return when to count again, sooner than each second; None: no budget is near its end."""
        return self._check_at_s

    # -- events: each returns whether other networks are barred than before, or for other reasons ----

    def on_counted(
        self, event: BudgetsCounted, budgets: Mapping[str, Budget], now_s: float
    ) -> bool:
        """Take the use of budgets, which are given by name; only the hard ones count."""
        self._counted, self._budgets = event, budgets
        return self._check(now_s)

    def networks_changed(self, networks: Sequence[Network], now_s: float) -> bool:
        """Take the networks: a budget of the metered ones bars also one that has just come."""
        self._networks = networks
        return self._check(now_s)

    def on_timer(self, now_s: float) -> None:
        """Have the use counted, where it is time."""
        if self._check_at_s is not None and now_s >= self._check_at_s:
            self._check_at_s = None
            self._outbox.give(CountUse())

    def on_barred(self, failed: str = "") -> bool:
        """Take the end of `BarNetworks`; `failed`: why the kernel refuses it."""
        if failed and failed != self._failed:
            self._outbox.give(Tell("hard budgets cannot be enforced", {"why": failed}))
        self._failed = failed
        return self._name_reasons()

    # -- within -------------------------------------------------------------------------------

    def _check(self, now_s: float) -> bool:
        uses = [each for each in self._counted.uses if self._budgets[each.name].hard]
        before, self._courses = self._courses, {}
        self._accounts = [self._account(each, before, now_s) for each in uses]
        self._until = {each.name: each.until for each in uses}
        names = [network.name for network in self._networks]
        metered = [network.name for network in self._networks if network.metered]
        changed = self._bars.update(self._accounts, names, Tariff(self._money_per_mb, metered))
        self._warn()
        if changed or (self._failed and now_s - self._acted_at_s >= _AGAIN_S):
            self._acted_at_s = now_s
            self._outbox.give(BarNetworks(tuple(sorted(self._bars.networks))))
            if changed:
                barred = ", ".join(sorted(self._bars.networks))
                self._outbox.give(Tell("blocked", {"networks": barred or "none any more"}))
        next_s = min(
            (
                self._courses[_begin_count(account.budget)].pace.next_check_s(account.left, now_s)
                for account in self._accounts
                if not account.over and account.stage is not Stage.SPENT
            ),
            default=LATEST_S,
        )
        # All is counted every second anyway.
        self._check_at_s = now_s + next_s if next_s < LATEST_S else None
        return self._name_reasons()

    def _account(self, use: BudgetUse, before: Mapping[_Counted, _Course], now_s: float) -> Account:
        budget = self._budgets[use.name]
        counted = _begin_count(budget)
        tariff = Tariff(self._money_per_mb)
        usual = budget.resource.meter.usual_per_s(_USUAL_BPS / 8.0, tariff)
        course = self._courses[counted] = before.get(counted) or _Course(Pace(usual))
        course.pace.observe(use.spent, now_s)
        over = self._counted.unix_s >= use.period.ends_s
        account = Account(budget, use.spent, use.period.ends_s, over)
        key = (use.period.begins_s, account.supply)
        # What was barred, as what was coming would spend it, is not opened for what then is left.
        barred = course.barred_for == key
        coming = math.inf if barred else course.pace.coming(account.supply)
        account = replace(account, coming=coming)
        course.barred_for = key if account.stage is Stage.SPENT else None
        return account

    def _name_reasons(self) -> bool:
        """Name the spent networks, also those that cannot be barred: they are not chosen."""
        # The bytes spent are no new reason: another budget is, and that the kernel refuses.
        facts = {
            name: (account.budget.name, account.supply, account.ends_s, self._failed)
            for name, (account, *_) in self._bars.networks.items()
        }
        if facts == self._facts:
            return False
        self._facts = facts
        self.why = {name: self._reason(name) for name in sorted(facts)}
        return True

    def _reason(self, name: str) -> str:
        account = self._bars.networks[name][0]
        budget = account.budget
        spent, supply = (amount(each, budget.resource) for each in (account.spent, account.supply))
        fact = f'the hard budget "{budget.name}" is used up ({spent} of {supply})'
        until = self._until[budget.name]
        if self._failed:
            return (
                f"New connections avoid {name} until {until}, because {fact}. Programs cannot be blocked"
                f" there: {self._failed}"
            )
        return f"Programs are blocked on {name} until {until}, because {fact}"

    def _warn(self) -> None:
        """Tell each warning once in a period, unless the budget was given more meanwhile."""
        before, self._stages = self._stages, {}
        for account in self._accounts:
            name, stage = account.budget.name, account.stage
            ends_s, earlier = before.get(name, (account.ends_s, Stage.EASY))
            if stage > (earlier if ends_s == account.ends_s else Stage.EASY):
                left = amount(max(account.left, 0.0), account.budget.resource)
                words = {Stage.NEARLY: "nearly used up", Stage.RESERVE: "almost used up"}
                how = words.get(stage, "used up")
                self._outbox.give(Tell(f"a hard budget is {how}", {"name": name, "left": left}))
            self._stages[name] = (account.ends_s, stage)


def _begin_count(budget: Budget) -> _Counted:
    return budget.name, budget.resource, budget.networks
