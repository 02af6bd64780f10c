"""The budgets of this host: their files, their periods by the calendar, and their use by the odometers.

The controller keeps and prices them (`cedos.controller.budgets.keepers`).
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from cedos.config import Config
from cedos.controller.budgets.keepers import BudgetKeepers
from cedos.controller.events import (
    BatteryRead,
    BudgetRemoved,
    BudgetsCounted,
    BudgetSet,
    BudgetUse,
    Event,
    PhoneUseChanged,
)
from cedos.daemon import state_file
from cedos.daemon.budgets.metering import Metering
from cedos.daemon.driver import aligned_sleep
from cedos.daemon.state_file import StateFile
from cedos.errors import ConfigError, NotFoundError
from cedos.limits import TokenBucket
from cedos.logs import get_logger
from cedos.model import Budget, PhoneUse, end_wrong
from cedos.selector.budgets.keeper import Period, period_at, wall
from cedos.selector.budgets.prices import amount
from cedos.storage import budget_file
from cedos.storage.usage import Usage

_log = get_logger(__name__)

LEARNED_FILE: Final = "pacing.json"
LEARNED: Final = "what budgets have learned"
_TICK_S = 1.0
_BATTERY_S = 10.0
_WRITE_S = 30.0
_PHONE_FILE, _PHONE = "phone.json", "what the phone is for"
# Budgets that commands have set. Each time one is set, a reading of all counters is kept for good.
MOST, MOST_AT_ONCE, AGAIN_S = 64, 64, 60.0
# A smaller change of the clock changes no budget.
_JUMP_S = 2.0


class HostBudgets:
    """Tells the controller of budgets and their use, and keeps on disk what is to survive a restart.

    Args:
        known: the controller's budgets.
        post: takes events.
        steady: seconds of a clock that does not jump, and goes on in sleep.
    """

    def __init__(
        self,
        config: Config,
        state: Path,
        usage: Usage,
        metering: Metering,
        known: BudgetKeepers,
        post: Callable[[Event], None],
        *,
        battery: Any = None,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    ) -> None:
        self._state = state
        self._usage = usage
        self._metering = metering
        self._known = known
        self._post = post
        self._battery = battery
        self._clock, self._steady = clock, steady
        self._difference_s = clock() - steady()
        self._settings = TokenBucket(1 / AGAIN_S, MOST_AT_ONCE, steady())
        self._told: BatteryRead | None = None
        self._begun = False
        self._changed, self._due = False, asyncio.Event()
        self._unread = True
        self._periods: dict[str, Period] = {}
        self._phone, self._turn = StateFile(state / _PHONE_FILE, _PHONE), asyncio.Lock()
        self._stamped = False
        self._configured = budget_file.configured_budgets(config, wall(clock()), state)
        self._keep_beginnings()
        self._set: dict[str, Budget] = {}
        try:
            self._open_file()
        except ConfigError as error:
            _log.warning("the budgets cannot be read", why=str(error))
        said = state_file.read(state / _PHONE_FILE, _PHONE)
        if said in list(PhoneUse):
            post(PhoneUseChanged(PhoneUse(said)))
        for budget in self.in_force.values():
            self._tell(budget)
        self.tick()

    @property
    def _file(self) -> Path:
        return self._state / budget_file.FILE

    @property
    def in_force(self) -> Mapping[str, Budget]:
        """Return the budgets by name, as they were configured or set."""
        return self._configured | self._set

    @property
    def problems(self) -> list[str]:
        now_s = self._clock()
        ended = (budget_file.describe_end(each, wall(now_s)) for each in self.in_force.values())
        return [
            *budget_file.kept_aside(self._file),
            *([f"{self._file} cannot be used; see the daemon's log"] if self._unread else []),
            *(each for each in (self._usage.notice, self._usage.problem, *ended) if each),
            *self._known.problems(now_s),
        ]

    def source(self, name: str) -> str:
        """Return where a budget was set: `configuration` or `command`."""
        return "command" if name in self._set else "configuration"

    @property
    def phone_source(self) -> str:
        """Return where the use of metered networks was set: `configuration` or `command`."""
        return "configuration" if self._known.wanted_phone is None else "command"

    async def prefer(self, use: PhoneUse | None) -> None:
        """Use metered networks like this from now on; None: as the configuration says."""
        self._phone.take(use)
        self._post(PhoneUseChanged(use))
        self.tick()
        await self._phone.wait_written()

    async def set(self, budget: Budget) -> None:
        """Set a budget, or change one. ConfigError: it would be over already."""
        budget = budget_file.begin_budget(
            budget, wall(self._clock()), self.in_force.get(budget.name)
        )
        if budget.battery and self._battery is None:
            raise ConfigError(
                "nothing says how full the battery is: UPower tells that over the system bus (D-Bus),"
                " which does not run here"
            )
        if not self._settings.take(self._steady()):
            raise ConfigError("budgets were set too often: wait a minute")
        if self._unread:  # never written over
            self._open_file()
        await asyncio.to_thread(self._usage.write, self._clock(), mark=True)
        async with self._turn:
            if budget.name not in self._set and len(self._set) >= MOST:
                raise ConfigError(f"there are {MOST} budgets already: remove one first")
            await self._write_set(lambda known: known | {budget.name: budget})
            self._tell(budget)
        await self._read_battery()
        self.tick()
        supply = self._known.keepers[budget.name].budget.supply
        shown = amount(supply, budget.resource)
        _log.info("a budget was set", name=budget.name, supply=shown, until=budget.until)

    def _open_file(self) -> None:
        self._set, aside = budget_file.read_or_move_aside(self._file)
        self._unread = False
        if aside:
            _log.warning("budgets are not in force", why=aside)

    async def remove(self, name: str) -> None:
        """Take a budget back; NotFoundError where there is none, ConfigError where a file has it."""
        async with self._turn:
            if name not in self._set:
                if name in self._configured:
                    raise ConfigError(f'"{name}" is in the configuration file; take it out there')
                raise NotFoundError(f'there is no budget "{name}"; `cedos budget` lists them')
            await self._write_set(lambda known: {n: b for n, b in known.items() if n != name})
            if name in self._configured:
                self._tell(self._configured[name])
            else:
                self._post(BudgetRemoved(name))
        self.tick()

    async def _write_set(self, change: Callable[[dict[str, Budget]], dict[str, Budget]]) -> None:
        """Change the budgets that were set. ConfigError: they cannot be written, and stay."""
        await asyncio.to_thread(budget_file.write, self._file, change(self._set))
        self._set = change(self._set)  # meanwhile the clock may have been set

    async def run(self) -> None:
        """Look at everything once a second until it is cancelled; keep what was counted."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._keep())
                tasks.create_task(self._phone.run())
                while True:
                    self.tick()
                    self._due.set()
                    await aligned_sleep(_TICK_S)
        finally:
            self.write()

    def keep(self) -> None:
        """Keep what was counted and learned; neither who asks nor the counting waits for the disk."""
        self._changed = True
        self._due.set()

    async def _keep(self) -> None:
        battery_at_s = written_at_s = 0.0
        while True:
            await self._due.wait()
            self._due.clear()
            now_s = self._steady()
            if now_s - battery_at_s >= _BATTERY_S:
                battery_at_s = now_s
                await self._read_battery()
            if self._stamped:
                async with self._turn:
                    await asyncio.to_thread(self._keep_stamps)
            if self._begun:  # what a period begins with is to be known exactly
                self._begun = False
                await asyncio.to_thread(self._usage.write, self._clock(), mark=True)
            # (What a new interface has carried until it is first written, a crash would lose.)
            fresh = self._usage.fresh and not self._usage.problem
            if self._changed or fresh or now_s - written_at_s >= _WRITE_S:
                self._changed = False
                written_at_s = now_s
                await asyncio.to_thread(self._store, self._known.state(), self._clock())

    def write(self) -> None:
        self._keep_stamps()
        self._phone.write()
        self._store(self._known.state(), self._clock())

    def _store(self, learned: dict[str, Any], now_s: float) -> None:
        self._usage.write(now_s)
        state_file.write(self._state / LEARNED_FILE, learned, LEARNED)

    def tick(self) -> None:
        """Tell the controller what was used until now."""
        now_s = self._clock()
        self._notice_jump(now_s)
        uses = []
        for name, budget in self.in_force.items():
            period = period_at(budget, now_s)
            self._begun = self._begun or period != self._periods[name]
            self._periods[name] = period
            spent = 0.0 if budget.battery else self._metering.measure_use(budget, period.begins_s)
            uses.append(BudgetUse(name, spent, period, f"{wall(period.ends_s):%Y-%m-%d %H:%M}"))
        self._post(BudgetsCounted(now_s, tuple(uses)))

    def _tell(self, budget: Budget, *, stamped: bool = False) -> None:
        now_s = self._clock()
        period = self._periods[budget.name] = period_at(budget, now_s)
        self._post(BudgetSet(now_s, budget, period, stamped))

    async def _read_battery(self) -> None:
        if self._battery is None:
            return
        read = await self._battery.read()
        if read != self._told:
            self._told = read
            self._post(read)

    def _notice_jump(self, now_s: float) -> None:
        difference_s = now_s - self._steady()
        jumped_s = difference_s - self._difference_s
        if abs(jumped_s) >= _JUMP_S:
            _log.info("the clock was set", by_s=jumped_s)
            self._usage.on_clock_jump(jumped_s)
            self._stamp_anew(jumped_s, self._difference_s)
            self._difference_s = difference_s

    def _stamp_anew(self, by_s: float, booted_s: float) -> None:
        """Correct the beginnings of budgets that begin in this boot after the clock was set."""
        for name, budget in self.in_force.items():
            if budget.every is not None:
                continue
            period, began = self._periods[name], bool(budget.since)
            # (One that was over by the clock before begins now.)
            begins_s = period.begins_s + by_s if began else self._clock()
            # (One that is over by the new clock begins as before once it is not any more.)
            earlier = began and period.begins_s < booted_s
            shown = wall(max(begins_s, 0.0))
            if earlier or not 0.0 < begins_s < period.ends_s or end_wrong(shown):
                continue
            stamped = replace(budget, since=shown.isoformat())
            for known in (self._set, self._configured):
                if name in known and bool(known[name].since) is began:
                    known[name] = replace(known[name], since=stamped.since)
            self._tell(stamped, stamped=began)
            self._stamped = True

    def _keep_stamps(self) -> None:
        """Write the beginnings that were corrected, if any."""
        stamped, self._stamped = self._stamped, False
        if stamped:
            self._keep_beginnings()
            try:
                budget_file.write(self._file, dict(self._set))
            except ConfigError as error:
                _log.warning("a budget's beginning is not kept", why=str(error))

    def _keep_beginnings(self) -> None:
        try:
            news = budget_file.keep_beginnings(list(self._configured.values()), self._state)
            self._begun = self._begun or news
        except ConfigError as error:
            _log.warning("when budgets began is not kept", why=str(error))
