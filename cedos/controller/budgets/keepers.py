"""The keepers of all budgets, and the objective that their prices, the battery and the phone's use make.

The daemon tells each second how much of each budget was used in its period. All instants here are of the
wall's clock, as the latest of these events showed it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from cedos.budget_kinds import Tariff
from cedos.controller.config import ControllerConfig
from cedos.controller.decisions.decider import Decider
from cedos.controller.events import BatteryRead, BudgetsCounted, BudgetSet
from cedos.controller.outbox import Outbox
from cedos.model import Budget, PhoneUse
from cedos.selector.budgets.controller import MakeController, Option, Quote
from cedos.selector.budgets.keeper import Keeper, Standing
from cedos.selector.budgets.odyssey import Odyssey
from cedos.selector.budgets.pacer import Pacer
from cedos.selector.budgets.prices import FREE, Prices, note, prices
from cedos.selector.objective import Objective, WeightedCost

CONTROLLERS: Final[Mapping[str, MakeController]] = {"pacer": Pacer, "odyssey": Odyssey}
# If a price changed by this factor, everything is decided again at once.
_MATTERS: Final = 1.5
# The key of batteries' supplies in what is kept; no budget may be called so.
_SUPPLIES: Final = "batteries' supplies"


class BudgetKeepers:
    """The keepers of all budgets; a caller may read the parts.

    Args:
        kept: what an earlier one's `state` was; damaged parts of it are ignored.

    Attributes:
        keepers: by the budget's name.
        prices: what these ask now.
        wanted_phone: the use of metered networks that a person has set; None: as configured.
    """

    def __init__(
        self, config: ControllerConfig, outbox: Outbox, decider: Decider, kept: object = None
    ) -> None:
        self.keepers: dict[str, Keeper] = {}
        self.prices: Prices = FREE
        self.wanted_phone: PhoneUse | None = None
        self._config, self._outbox, self._decider = config, outbox, decider
        self._base = decider.objective
        self._kept: dict[str, Any] = dict(kept) if isinstance(kept, dict) else {}
        # By battery budget the end of the period and the supply with which the discharge began.
        supplies = self._kept.pop(_SUPPLIES, None)
        self._supplies: dict[str, Any] = dict(supplies) if isinstance(supplies, dict) else {}
        self._battery = BatteryRead()
        self._rates: tuple[float, ...] = ()
        self._ahead_s = 0.0

    # -- views --------------------------------------------------------------------------------

    @property
    def names(self) -> set[str]:
        """Return the names of all budgets, and of earlier ones."""
        return {*self.keepers, *self._kept, *self._supplies}

    @property
    def in_force(self) -> Mapping[str, Budget]:
        """Return the budgets by name, with what is bought of them and what the battery gives."""
        return {name: keeper.budget for name, keeper in self.keepers.items()}

    @property
    def phone(self) -> PhoneUse:
        """Return the use of metered networks."""
        return self.wanted_phone or self._config.phone

    def standings(self, unix_s: float) -> list[Standing]:
        return [keeper.standing(unix_s) for keeper in self.keepers.values()]

    def quotes(self, unix_s: float) -> list[tuple[Keeper, Quote]]:
        """Return the keepers of budgets that have a price now, with their quotes."""
        return [
            (keeper, keeper.quote(unix_s))
            for keeper in self.keepers.values()
            if not keeper.has_ended(unix_s) and not self.why_suspended(keeper.budget)
        ]

    def why_suspended(self, budget: Budget) -> str:
        """Return why a budget has no price now, in words; "": it has one."""
        if why := budget.resource.meter.blind(self._tariff()):
            return why
        if not budget.battery:
            return ""
        if self._battery.level is None:
            return "battery charge unknown"
        return "" if self._battery.discharging else "on mains power"

    def problems(self, unix_s: float) -> list[str]:
        """Return warnings, in words."""
        lines, tariff = [], self._tariff()
        for name, keeper in self.keepers.items():
            if why := keeper.budget.resource.meter.blind(tariff):
                lines.append(f'the budget "{name}" counts nothing: {why} in the configuration')
            if keeper.budget.battery and self._battery.level is None:
                why = "nothing says how full the battery is (UPower)"
                lines.append(f'the budget "{name}" counts nothing: {why}')
        for each in self.standings(unix_s):
            if not each.over and each.spent > each.budget.supply:
                share = each.spent / max(each.budget.supply, 1e-9)
                lines.append(
                    f'the budget "{each.budget.name}" is exceeded ({share * 100:.0f} % used)'
                )
        return lines

    def amount(
        self, budget: Budget, energy_j: float, carried: Iterable[tuple[str, float]]
    ) -> float:
        """Return the units of a budget that these joules, and bytes by network, are."""
        meter = budget.resource.meter
        return meter.amount(energy_j, carried, budget.networks, self._tariff())

    def state(self) -> dict[str, Any]:
        """Return what must survive a restart, as plain data for JSON."""
        known = {name: keeper.state() for name, keeper in self.keepers.items()}
        supplies = {_SUPPLIES: dict(self._supplies)} if self._supplies else {}
        return {**self._kept, **known, **supplies}

    # -- events -------------------------------------------------------------------------------

    def on_set(self, event: BudgetSet, now_s: float) -> None:
        """Take a budget that is new, or changed."""
        self._ahead_s = event.unix_s - now_s
        budget, name = event.budget, event.budget.name
        keeper = self.keepers.get(name)
        if keeper is None:
            known = self._kept.get(name)
            state = known if isinstance(known, dict) else None
            make = CONTROLLERS[self._config.pacing]
            self.keepers[name] = Keeper(budget, event.period, make, event.unix_s, state)
        elif event.stamped:
            keeper.stamped_anew(replace(keeper.budget, since=budget.since), event.period)
        else:
            if budget.battery:
                budget = replace(budget, supply=keeper.budget.supply)
            keeper.replace_budget(budget, event.period, event.unix_s)
        self._note_charge(self._battery, event.unix_s)

    def on_removed(self, name: str) -> None:
        """Take a budget back; nothing of it is kept, as names come without end."""
        del self.keepers[name]
        self._kept.pop(name, None)
        self._supplies.pop(name, None)

    def on_battery(self, event: BatteryRead, now_s: float) -> None:
        """Take the battery's charge."""
        before, self._battery = self._battery, event
        self._note_charge(before, now_s + self._ahead_s)

    def on_counted(self, event: BudgetsCounted, now_s: float) -> None:
        """Take what was used until now, and price it."""
        unix_s = event.unix_s
        self._ahead_s = unix_s - now_s
        charge_j = self._battery.energy_j
        for use in event.uses:
            keeper = self.keepers[use.name]
            keeper.roll(use.period, unix_s)
            if not keeper.budget.battery:
                keeper.observe(unix_s, use.spent)
            elif charge_j is not None:
                keeper.observe(unix_s, keeper.budget.supply - charge_j)
        self._price(unix_s)

    def networks_changed(self, now_s: float) -> None:
        """Price also a metered network that has just come."""
        if self.keepers:
            self._price(now_s + self._ahead_s)

    def on_choice(
        self, options: Sequence[tuple[str, float, float, int]], chosen: int, now_s: float
    ) -> None:
        """Take a choice that came up: per way its network, seconds, joules and bytes."""
        unix_s = now_s + self._ahead_s
        for keeper in self.keepers.values():
            if keeper.has_ended(unix_s):
                continue
            found = [
                Option(seconds, self.amount(keeper.budget, joules, [(network, float(size))]))
                for network, seconds, joules, size in options
            ]
            keeper.on_choice(unix_s, found, found[chosen])

    # -- within -------------------------------------------------------------------------------

    def _note_charge(self, before: BatteryRead, unix_s: float) -> None:
        """Begin the budgets of a battery anew with what it holds when it begins to be used up.

        So too after a daemon's start, unless an earlier one has begun this very discharge, and where it
        holds more than then: it was charged between two readings, in sleep say.
        """
        now = self._battery
        if now.energy_j is None or not now.discharging:
            return
        for name, keeper in self.keepers.items():
            more = now.energy_j > keeper.budget.supply
            begins = before.level is None or not before.discharging or more
            if keeper.budget.battery and begins:
                earlier_j = self._earlier_supply(name) if before.level is None else 0.0
                supply = max(now.energy_j, earlier_j)
                self._supplies[name] = [keeper.period.ends_s, supply]
                budget = replace(keeper.budget, supply=supply)
                keeper.replace_budget(budget, keeper.period, unix_s)

    def _earlier_supply(self, name: str) -> float:
        match self._supplies.get(name):
            case [ends_s, float(supply)] if ends_s == self.keepers[name].period.ends_s:
                return supply
        return 0.0

    def _price(self, unix_s: float) -> None:
        quoted = [(keeper.budget, quote) for keeper, quote in self.quotes(unix_s)]
        self.prices = prices(
            [(budget.resource, budget.networks, quote) for budget, quote in quoted],
            self._metered_networks(),
        )
        rates = tuple(quote.rate for _, quote in quoted)
        urgent = len(rates) != len(self._rates) or any(
            not 1 / _MATTERS < new / old < _MATTERS
            for new, old in zip(rates, self._rates, strict=True)
        )
        if urgent:
            self._rates = rates
        before, objective = self._decider.objective, self._objective(unix_s)
        self._decider.prefer(objective)
        # Prices change all the time. A change of prices alone waits for the next decision.
        if urgent or (objective.prices == before.prices and objective != before):
            self._outbox.wake(urgent=True)

    def _objective(self, unix_s: float) -> Objective:
        base = self._base
        if self.wanted_phone is not None and isinstance(base, WeightedCost):
            base = base.for_phone(self.wanted_phone)
        if self.prices == FREE or base.name == "max-s-per-e":
            return base
        standings = [
            each
            for each in self.standings(unix_s)
            if not self.why_suspended(each.budget)  # those have no part in any price
        ]
        text = note(self.prices, standings, self._decider.networks, unix_s)
        if not isinstance(base, WeightedCost):
            return WeightedCost(name="budgets", note=text, prices=self.prices)
        # A supply is no wish to use the phone beside Wi-Fi.
        priced = self.prices.data.keys() >= set(self._metered_networks())
        priced = priced and self.phone is not PhoneUse.WITHOUT_WIFI
        return replace(
            base,
            s_per_j=0.0 if self.prices.energy else base.s_per_j,
            s_per_metered_byte=0.0 if priced else base.s_per_metered_byte,
            noticeable_s=0.0 if priced else base.noticeable_s,
            # (Budgets of networks that are away price nothing.)
            name="budgets" if text else base.name,
            note=text,
            prices=self.prices,
        )

    def _tariff(self) -> Tariff:
        helpers = {each.name: each.money_per_mb for each in self._decider.helpers}
        return Tariff({**self._decider.choices.price_per_mb, **helpers}, self._metered_networks())

    def _metered_networks(self) -> tuple[str, ...]:
        return tuple(network.name for network in self._decider.networks if network.metered)
