"""`[plan]`, `[budgets.NAME]` and `[pacing]`: what there is to spend, and until when."""

from datetime import datetime
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from cedos.config import amounts
from cedos.config.section import NetworkName, Section, Size
from cedos.model import Budget, Every, Increment, Resource

S_PER_MONEY: Final = 60.0
"""What one of money is worth in seconds of waiting, where nobody says so."""


class PlanConfig(Section, frozen=True, kw_only=True):
    """The data plan of the metered networks together; `metered_bytes` None: no limit."""

    metered_bytes: Size | None = None
    reset_day: Annotated[int, Meta(ge=1, le=31)] = 1
    hard: bool = False

    def __post_init__(self) -> None:
        if self.hard and self.metered_bytes is None:
            raise ValueError("hard = true needs metered_bytes: without them there is no limit")


class BudgetConfig(Section, frozen=True, kw_only=True):
    """A budget: one of `data`, `energy`, `money` or `battery`, and until when it is to last.

    `unit`, `unit_money` and `seconds_per_money` are for data that is bought as one goes.
    """

    until: str
    data: str | None = None
    energy: str | None = None
    money: Annotated[float, Meta(ge=0, le=1e9)] | None = None
    battery: bool = False
    every: Every | None = None
    networks: list[NetworkName] = msgspec.field(default_factory=list)
    unit: str | None = None
    unit_money: Annotated[float, Meta(ge=0, le=1e9)] | None = None
    seconds_per_money: Annotated[float, Meta(ge=0, le=1e9)] | None = None
    hard: bool = False

    def __post_init__(self) -> None:
        given = [name for name in ("data", "energy", "money") if getattr(self, name) is not None]
        given += ["battery"] * self.battery
        if len(given) != 1:
            raise ValueError(
                "a budget is of one of data, energy, money or battery,"
                f" not of {' and '.join(given) or 'none'}"
            )
        if ":" in self.until and "-" not in self.until and self.every is not Every.DAY:
            raise ValueError(f'until = "{self.until}" is another time every day: every = "day"')
        self._check_unit()
        self.budget("budget", datetime(2026, 1, 1))

    def _check_unit(self) -> None:
        if self.unit is None:
            for name in ("unit_money", "seconds_per_money"):
                if getattr(self, name) is not None:
                    raise ValueError(f'{name} is for data in units: say their size, unit = "1GB"')
            return
        if self.data is None:
            raise ValueError('unit, such as "1GB", is for budgets of data')
        unit, supply = amounts.size_bytes(self.unit), amounts.size_bytes(self.data)
        if not 0 < unit <= supply:
            raise ValueError(
                f'unit = "{self.unit}": more than nothing, and no more than all of it'
                f' ("{self.data}"), would be right'
            )
        if self.unit_money is None:
            raise ValueError(f'unit = "{self.unit}" needs what such a unit costs: unit_money = 5')

    def budget(self, name: str, now: datetime) -> Budget:
        """As the daemon keeps it; `now`, what the clock on the wall shows, is for times of day."""
        resource, supply = Resource.ENERGY, 0.0
        if self.data is not None:
            resource, supply = Resource.DATA, amounts.size_bytes(self.data)
        elif self.money is not None:
            resource, supply = Resource.MONEY, self.money
        elif self.energy is not None:
            supply = amounts.joules(self.energy)
        increment = None
        if self.unit is not None and self.unit_money is not None:
            unit = amounts.size_bytes(self.unit)
            s_per_money = S_PER_MONEY if self.seconds_per_money is None else self.seconds_per_money
            increment = Increment(unit, self.unit_money, s_per_money, int(supply // unit))
        return Budget(
            name,
            resource,
            supply,
            amounts.until(self.until, now, kept=True).isoformat(),
            networks=tuple(self.networks),
            every=self.every,
            increment=increment,
            battery=self.battery,
            hard=self.hard,
        )


class PacingConfig(Section, frozen=True, kw_only=True):
    """Which controller moves the prices of budgets."""

    controller: Literal["pacer", "odyssey"] = "pacer"
