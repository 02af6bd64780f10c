"""The budgets of this host: what is counted goes to their keepers, their prices to the decisions."""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

from cedos.budget_kinds import Tariff
from cedos.config import Config
from cedos.controller.events import (
    BatteryRead,
    BudgetsCounted,
    Event,
    HardBudgetUse,
    ObjectiveChanged,
)
from cedos.daemon import state_file
from cedos.daemon.aligned_sleep import aligned_sleep
from cedos.daemon.budgets.metering import Metering, money_per_mb
from cedos.errors import ConfigError, NotFoundError
from cedos.host.monitor.providers.battery import Battery
from cedos.model import Budget, Network, PhoneUse, end_wrong
from cedos.selector.budgets import price_text
from cedos.selector.budgets.controller import MakeController, Option
from cedos.selector.budgets.keeper import Keeper, Standing, wall
from cedos.selector.budgets.odyssey import Odyssey
from cedos.selector.budgets.pacer import Pacer
from cedos.selector.budgets.prices import FREE, Prices, prices
from cedos.selector.objective import Curves, Objective, WeightedCost
from cedos.storage import budget_file
from cedos.storage.usage import Usage
from cedos.token_bucket import TokenBucket

_log = structlog.get_logger(__name__)

CONTROLLERS: dict[str, MakeController] = {"pacer": Pacer, "odyssey": Odyssey}
_TICK_S = 1.0
_BATTERY_S = 10.0
_WRITE_S = 30.0
_FILE = "pacing.json"
_WHAT = "what budgets have learned"
_PHONE_FILE, _PHONE = "phone.json", "what the phone is for"
# Budgets that commands have set. Each time one is set, a reading of all counters is kept for good.
MOST, MOST_AT_ONCE, AGAIN_S = 64, 64, 60.0
# A smaller change of the clock changes no budget.
_JUMP_S = 2.0

# If a price changed by this factor, everything is decided again at once.
_MATTERS = 1.5


class HostBudgets:
    """Keeps all budgets, and makes the objective of what they, battery and plan say.

    Args:
        post: takes the objective, and the use of hard budgets, once a second and when they change.
        steady: seconds of a clock that does not, and goes on in sleep.
    """

    def __init__(
        self,
        config: Config,
        state: Path,
        usage: Usage,
        metering: Metering,
        networks: Callable[[], Sequence[Network]],
        post: Callable[[Event], None],
        base: Objective,
        *,
        curves: Curves | None = None,
        battery: Any = None,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    ) -> None:
        self._make = CONTROLLERS[config.pacing.controller]
        self._money_per_mb = money_per_mb(config)
        self._state = state
        self._usage = usage
        self._metering = metering
        self._networks = networks
        self._post = post
        self._base = base
        self._configured_phone = config.decision.phone
        said = state_file.read(state / _PHONE_FILE, _PHONE)
        self._said_phone = PhoneUse(said) if said in list(PhoneUse) else None
        self._curves = curves
        self._battery = battery
        self._clock, self._steady = clock, steady
        self._difference_s = clock() - steady()
        self._settings = TokenBucket(1 / AGAIN_S, MOST_AT_ONCE, steady())
        self._full: Battery | None = None
        self._told: BatteryRead | None = None
        self._rates: tuple[float, ...] = ()
        self._begun = self._hard = False
        self._unread = True
        self.prices: Prices = FREE
        self._configured = budget_file.configured(config, wall(clock()), state)
        self._keep_beginnings()
        self._set: dict[str, Budget] = {}
        try:
            self._open_file()
        except ConfigError as error:
            _log.warning("the budgets cannot be read", why=str(error))
        known = state_file.read(state / _FILE, _WHAT)
        self._known: dict[str, Any] = known if isinstance(known, dict) else {}
        self.keepers: dict[str, Keeper] = {}
        for budget in (self._configured | self._set).values():
            self._keep(budget)
        self.tick()

    @property
    def _file(self) -> Path:
        return self._state / budget_file.FILE

    @property
    def problems(self) -> list[str]:
        lines = [
            *budget_file.kept_aside(self._file),
            *([f"{self._file} cannot be used; see the daemon's log"] if self._unread else []),
            *(each for each in (self._usage.notice, self._usage.problem) if each),
        ]
        tariff = self._tariff()
        lines += [
            f'the budget "{name}" counts nothing: {why} in the configuration'
            for name, keeper in self.keepers.items()
            if (why := keeper.budget.resource.meter.blind(tariff))
        ]
        if self._full is None:
            lines += [
                f'the budget "{name}" counts nothing: nothing says how full the battery is (UPower)'
                for name, keeper in self.keepers.items()
                if keeper.budget.battery
            ]
        now = wall(self._clock())
        lines += [
            why
            for keeper in self.keepers.values()
            if (why := budget_file.ended(keeper.budget, now))
        ]
        for standing in self.standings():
            if not standing.over and standing.spent > standing.budget.supply:
                share = standing.spent / max(standing.budget.supply, 1e-9)
                lines.append(
                    f'the budget "{standing.budget.name}" is exceeded ({share * 100:.0f} % used)'
                )
        return lines

    def standings(self) -> list[Standing]:
        now_s = self._clock()
        return [keeper.standing(now_s) for keeper in self.keepers.values()]

    def suspended(self, budget: Budget) -> str:
        """Why a budget has no price now, in words; "": it has one."""
        if why := budget.resource.meter.blind(self._tariff()):
            return why
        if not budget.battery:
            return ""
        if self._full is None:
            return "battery charge unknown"
        return "" if self._full.discharging else "on mains power"

    def source(self, name: str) -> str:
        """Return where a budget was set: `configuration` or `command`."""
        return "command" if name in self._set else "configuration"

    @property
    def phone(self) -> PhoneUse:
        """The use of metered networks."""
        return self._said_phone or self._configured_phone

    @property
    def phone_source(self) -> str:
        """Return where that was said: `configuration` or `command`."""
        return "configuration" if self._said_phone is None else "command"

    def prefer(self, use: PhoneUse | None) -> None:
        """Use metered networks like this from now on; None: as the configuration says."""
        self._said_phone = use
        state_file.write(self._state / _PHONE_FILE, use, _PHONE)
        self.tick()

    async def set(self, budget: Budget) -> None:
        """Set a budget, or changes one; ConfigError where it would be over already."""
        standing = self.keepers.get(budget.name)
        earlier = standing.budget if standing is not None else None
        budget = budget_file.begun(budget, wall(self._clock()), earlier)
        if budget.battery and self._battery is None:
            raise ConfigError("UPower reports no battery over D-Bus")
        if not self._settings.take(self._steady()):
            raise ConfigError("budgets were set too often: wait a minute")
        if self._unread:  # never written over
            self._open_file()
        await asyncio.to_thread(self._usage.write, self._clock(), mark=True)
        if budget.name not in self._set and len(self._set) >= MOST:
            raise ConfigError(f"there are {MOST} budgets already: remove one first")
        self._set[budget.name] = budget
        budget_file.write(self._file, self._set)
        self._keep(budget)
        await self._read_battery()
        self.tick()
        supply = price_text.amount(self.keepers[budget.name].budget.supply, budget.resource)
        _log.info("a budget was set", name=budget.name, supply=supply, until=budget.until)

    def _open_file(self) -> None:
        self._set, aside = budget_file.opened(self._file)
        self._unread = False
        if aside:
            _log.warning("budgets are not in force", why=aside)

    def remove(self, name: str) -> None:
        """Take a budget back; NotFoundError where there is none, ConfigError where a file has it."""
        if name not in self._set:
            if name in self._configured:
                raise ConfigError(f'"{name}" is in the configuration file; take it out there')
            raise NotFoundError(f'there is no budget "{name}"; `cedos budget` lists them')
        del self._set[name]
        budget_file.write(self._file, self._set)
        del self.keepers[name]
        if name in self._configured:
            self._keep(self._configured[name])
        else:  # names come without end
            self._known.pop(name, None)
            if isinstance(supplies := self._known.get("supplies"), dict):
                supplies.pop(name, None)
        self.tick()

    def offered(self, options: Sequence[tuple[str, float, float, int]], chosen: int) -> None:
        """Take a choice that came up: per way its network, seconds, joules and bytes."""
        now_s = self._clock()
        for keeper in self.keepers.values():
            if keeper.has_ended(now_s):
                continue
            found = [
                Option(seconds, self.amount(keeper.budget, joules, [(network, float(size))]))
                for network, seconds, joules, size in options
            ]
            keeper.offered(now_s, found, found[chosen])

    def amount(
        self, budget: Budget, energy_j: float, carried: Iterable[tuple[str, float]]
    ) -> float:
        """Return the units of a budget that these joules, and bytes by network, are."""
        meter = budget.resource.meter
        return meter.amount(energy_j, carried, budget.networks, self._tariff())

    async def run(self) -> None:
        """Look at everything once a second until it is cancelled; keep what was counted."""
        battery_at_s = written_at_s = 0.0
        try:
            while True:
                now_s = self._steady()
                if now_s - battery_at_s >= _BATTERY_S:
                    battery_at_s = now_s
                    await self._read_battery()
                self.tick()
                if self._begun:  # what a period begins with is to be known exactly
                    self._begun = False
                    await asyncio.to_thread(self._usage.write, self._clock(), mark=True)
                # (What a new interface has carried until it is first written, a crash would lose.)
                fresh = self._usage.fresh and not self._usage.problem
                if fresh or now_s - written_at_s >= _WRITE_S:
                    written_at_s = now_s
                    await self.keep()
                await aligned_sleep(_TICK_S)
        finally:
            self.write()

    async def keep(self) -> None:
        """Keep what was counted and learned, without waiting for the disk."""
        await asyncio.to_thread(self._store, self._learned(), self._clock())

    def write(self) -> None:
        self._store(self._learned(), self._clock())

    def _learned(self) -> dict[str, Any]:
        self._known |= {name: keeper.state() for name, keeper in self.keepers.items()}
        return dict(self._known)

    def _store(self, learned: dict[str, Any], now_s: float) -> None:
        self._usage.write(now_s)
        state_file.write(self._state / _FILE, learned, _WHAT)

    def tick(self) -> None:
        """Take what was used until now, and prices it."""
        now_s = self._clock()
        self._notice_jump(now_s)
        for keeper in self.keepers.values():
            self._begun = keeper.roll(now_s) or self._begun
            if keeper.budget.battery:
                if self._full is not None and self._full.energy_j is not None:
                    keeper.observe(now_s, keeper.budget.supply - self._full.energy_j)
                continue
            spent = self._metering.spent(keeper.budget, keeper.period.begins_s)
            keeper.observe(now_s, spent)
        self._price(now_s)
        counted = self._hard_ones(now_s)
        if counted.uses or self._hard:
            self._hard = bool(counted.uses)
            self._post(counted)

    def _hard_ones(self, now_s: float) -> BudgetsCounted:
        uses = tuple(
            HardBudgetUse(
                keeper.budget,
                self._metering.spent(keeper.budget, keeper.period.begins_s),
                keeper.period.begins_s,
                keeper.period.ends_s,
                f"{wall(keeper.period.ends_s):%Y-%m-%d %H:%M}",
                keeper.has_ended(now_s),
            )
            for keeper in self.keepers.values()
            if keeper.budget.hard
        )
        return BudgetsCounted(uses, self._metering.carried() if uses else {})

    async def _read_battery(self) -> None:
        if self._battery is None:
            return
        before, self._full = self._full, await self._battery.read()
        now = self._full
        answered = bool(self._battery.answered)
        read = BatteryRead(answered)
        if now is not None:
            read = BatteryRead(answered, round(now.level, 2), now.discharging)
        if read != self._told:
            self._told = read
            self._post(read)
        if now is None or now.energy_j is None or not now.discharging:
            return
        for name, keeper in list(self.keepers.items()):
            # What it holds when it begins to be used up is the supply; so too after a daemon's start,
            # unless an earlier one has begun this very discharge, and where it holds more than then: it
            # was charged between two readings, in sleep say.
            more = now.energy_j > keeper.budget.supply
            begins = before is None or not before.discharging or more
            if keeper.budget.battery and begins:
                supply = max(now.energy_j, self._earlier_supply(name) if before is None else 0.0)
                shown = wall(self._clock()).isoformat(timespec="seconds")
                self._known.setdefault("supplies", {})[name] = [keeper.period.ends_s, supply]
                since = keeper.budget.since or ("" if keeper.has_ended(self._clock()) else shown)
                budget = replace(keeper.budget, supply=supply, since=since)
                keeper.replace_budget(budget, self._clock())

    def _earlier_supply(self, name: str) -> float:
        supplies = self._known.get("supplies")
        kept = supplies.get(name) if isinstance(supplies, dict) else None
        match kept:
            case [ends_s, float(supply)] if ends_s == self.keepers[name].period.ends_s:
                return supply
        return 0.0

    def _notice_jump(self, now_s: float) -> None:
        difference_s = now_s - self._steady()
        jumped_s = difference_s - self._difference_s
        if abs(jumped_s) >= _JUMP_S:
            _log.info("the clock was set", by_s=jumped_s)
            self._usage.on_clock_jump(jumped_s)
            self._stamp_anew(jumped_s, self._difference_s, now_s)
            self._difference_s = difference_s

    def _stamp_anew(self, by_s: float, booted_s: float, now_s: float) -> None:
        """Correct the beginnings of budgets that begin in this boot after the clock was set."""
        written = False
        for name, keeper in self.keepers.items():
            budget = keeper.budget
            if budget.every is not None or not budget.since:
                continue
            begins_s, ends_s = keeper.period.begins_s + by_s, keeper.period.ends_s
            # (One that is over by the new clock begins as before once it is not any more.)
            if keeper.period.begins_s < booted_s or not 0.0 < begins_s < ends_s:
                continue
            shown = wall(begins_s)
            if end_wrong(shown):
                continue
            since = shown.isoformat()
            keeper.stamped_anew(replace(budget, since=since), now_s)
            for known in (self._set, self._configured):
                if name in known and known[name].since:
                    known[name] = replace(known[name], since=since)
                    written = True
        if written:
            self._keep_beginnings()
            try:
                budget_file.write(self._file, self._set)
            except ConfigError as error:
                _log.warning("a budget's beginning is not kept", why=str(error))

    def _keep_beginnings(self) -> None:
        try:
            news = budget_file.keep_beginnings(self._configured.values(), self._state)
            self._begun = self._begun or news
        except ConfigError as error:
            _log.warning("when budgets began is not kept", why=str(error))

    def _keep(self, budget: Budget) -> None:
        now_s = self._clock()
        if (keeper := self.keepers.get(budget.name)) is not None:
            if budget.battery:
                budget = replace(budget, supply=keeper.budget.supply)
            keeper.replace_budget(budget, now_s)
            return
        known = self._known.get(budget.name)
        known = known if isinstance(known, dict) else None
        self.keepers[budget.name] = Keeper(budget, self._make, now_s, state=known)

    def _price(self, now_s: float) -> None:
        quoted = []
        for keeper in self.keepers.values():
            budget = keeper.budget
            if not keeper.has_ended(now_s) and not self.suspended(budget):
                quoted.append((keeper, budget, keeper.quote(now_s)))
        self.prices = prices(
            [(budget.resource, budget.networks, quote) for _, budget, quote in quoted],
            self._metered(),
        )
        rates = tuple(quote.rate for *_, quote in quoted)
        urgent = len(rates) != len(self._rates) or any(
            not 1 / _MATTERS < new / old < _MATTERS
            for new, old in zip(rates, self._rates, strict=True)
        )
        if urgent:
            self._rates = rates
        self._post(ObjectiveChanged(self._objective(now_s), urgent))

    def _objective(self, now_s: float) -> Objective:
        if self._curves is not None:
            battery, plan = self._full, self.keepers.get(budget_file.PLAN)
            level = battery.level if battery is not None and battery.discharging else None
            share = plan.spent / plan.budget.supply if plan is not None else None
            return self._curves.objective(level, share)
        base = self._base
        if isinstance(base, WeightedCost):
            base = base.for_phone(self.phone)
        if self.prices == FREE or base.name == "max-s-per-e":
            return base
        standings = [
            keeper.standing(now_s)
            for keeper in self.keepers.values()
            if not self.suspended(keeper.budget)  # those have no part in any price
        ]
        note = price_text.note(self.prices, standings, self._networks(), now_s)
        if isinstance(base, WeightedCost):
            # A supply is no wish to use the phone beside Wi-Fi.
            priced = self.prices.data.keys() >= set(self._metered())
            priced = priced and self.phone is not PhoneUse.WITHOUT_WIFI
            return replace(
                base,
                s_per_j=0.0 if self.prices.energy else base.s_per_j,
                s_per_metered_byte=0.0 if priced else base.s_per_metered_byte,
                noticeable_s=0.0 if priced else base.noticeable_s,
                name="budgets"
                if note
                else base.name,  # those of networks that are away price nothing
                note=note,
                prices=self.prices,
            )
        return WeightedCost(name="budgets", note=note, prices=self.prices)

    def _tariff(self) -> Tariff:
        return Tariff(self._money_per_mb, self._metered())

    def _metered(self) -> tuple[str, ...]:
        return tuple(network.name for network in self._networks() if network.metered)
