"""The budgets of a trial and their prices, by either controller (dissertation, 3.2.2.4)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from cedos.model import Resource
from cedos.selector.budgets.controller import Controller, MakeController
from cedos.selector.budgets.odyssey import Odyssey
from cedos.selector.budgets.pacer import Pacer
from cedos.selector.budgets.prices import FREE, Prices, prices
from cedos.selector.prefetch.choices import choices
from cedos.selector.prefetch.path import Path
from cedos.selector.prefetch.queue import Queue

_WITH_HEADERS = 1.08

ControllerName = Literal["odyssey", "pacer"]
_MAKE: dict[str, MakeController] = {"odyssey": Odyssey, "pacer": Pacer}


@dataclass(slots=True)
class Budgets:
    """Up to two budgets over a trial.

    Args:
        energy_j: joules for it; None: as many as you like.
        data_bytes: metered bytes, likewise.
        controller: what moves the prices.
    """

    duration_s: float
    energy_j: float | None = None
    data_bytes: float | None = None
    controller: ControllerName = "pacer"
    _kept: dict[Resource, tuple[float, Controller]] = field(default_factory=dict)
    _used: dict[Resource, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        supplies = {Resource.ENERGY: self.energy_j, Resource.DATA: self.data_bytes}
        for resource, supply in supplies.items():
            if supply is not None:
                made = _MAKE[self.controller](supply, 0.0, self.duration_s)
                self._kept[resource] = (supply, made)

    def __bool__(self) -> bool:
        return bool(self._kept)

    def observe(self, now_s: float, energy_j: float, data_bytes: float) -> None:
        """So much has been used since the beginning, all of it for what was hinted."""
        before, self._used = self._used, {Resource.ENERGY: energy_j, Resource.DATA: data_bytes}
        for resource, (supply, controller) in self._kept.items():
            controller.foreseen(max(self._used[resource] - before.get(resource, 0.0), 0.0))
            controller.observe(now_s, supply - self._used[resource])

    def breaks(self, data_bytes: float) -> bool:
        """Whether so many more metered bytes, and their headers, would break the budget."""
        if self.data_bytes is None:
            return False
        used = self._used.get(Resource.DATA, 0.0)
        return used + _WITH_HEADERS * data_bytes > self.data_bytes

    def waiting(self, queue: Queue, now_s: float, paths: Sequence[Path]) -> None:
        """What could be prefetched, for the controllers to see what is still to be bought."""
        if not self._kept:
            return
        for resource, each in choices(queue, now_s, paths, self.prices(now_s)).items():
            if resource in self._kept:
                self._kept[resource][1].waiting([options for _, options in each])

    def prices(self, now_s: float) -> Prices:
        """The prices now; without budgets everything is free."""
        if not self._kept:
            return FREE
        quoted = [
            (resource, ("cellular",) if resource is Resource.DATA else (), one.quote(now_s))
            for resource, (_, one) in self._kept.items()
        ]
        return prices(quoted, ("cellular",))
