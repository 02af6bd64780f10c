"""Hand reports of prefetching programs to the controller, and tell the programs radios and prices."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from cedos.api.messages import NetworkMessage
from cedos.api.programs import (
    PrefetchingAnswer,
    PriceMessage,
    RadioMessage,
)
from cedos.controller.budgets.keepers import BudgetKeepers
from cedos.controller.events import PrefetchingChanged
from cedos.controller.hint import PrefetchReport
from cedos.daemon.budgets.metering import Metering
from cedos.daemon.driver import ControllerDriver
from cedos.model import NetworkKind
from cedos.selector.budgets.controller import PROHIBITIVE, steps
from cedos.selector.energy import Radio

# The programs of one user that count, of the 16 of all. Further ones are answered all the same.
_OF_USER: Final = 8


class PrefetchingPrograms:
    """The answers to programs that prefetch, and which user runs each of them."""

    def __init__(
        self,
        driver: ControllerDriver,
        metering: Metering,
        radios: Mapping[NetworkKind, Radio],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._driver = driver
        self._metering = metering
        self._radios = {kind: msgspec.to_builtins(radio) for kind, radio in radios.items()}
        self._clock = clock
        self._owners: dict[tuple[int, str], int] = {}

    def on_request(
        self, report: PrefetchReport, known: Sequence[NetworkMessage], uid: int
    ) -> PrefetchingAnswer:
        """Take what a program of this user tells; return what it needs to know."""
        programs = self._driver.controller.prefetching.programs(self._driver.now_s())
        self._owners = {key: owner for key, owner in self._owners.items() if key in programs}
        key = (report.pid, report.program)
        owners = [owner for other, owner in self._owners.items() if other != key]
        # (A number of another user's process, which a program may claim, is refused.)
        if self._owners.get(key, uid) == uid and owners.count(uid) < _OF_USER:
            self._driver.post(PrefetchingChanged(report))
            self._owners[key] = uid
        prices = price_messages(self._driver.controller.budgets, self._clock())
        return PrefetchingAnswer(
            networks=list(known), radios=self._radio_messages(known), prices=prices
        )

    def _radio_messages(self, known: Sequence[NetworkMessage]) -> dict[str, RadioMessage]:
        """Return the radios of the reported networks; the links may show others by now."""
        now_s = self._driver.now_s()
        return {
            network.name: RadioMessage(
                radio=self._radios[network.kind],
                shares=self._metering.shares(network.name, now_s),
                idle_s=self._metering.idle_s(network.name, now_s),
            )
            for network in known
        }


def price_messages(budgets: BudgetKeepers, unix_s: float) -> list[PriceMessage]:
    """Return the prices of all budgets that have one."""
    found = []
    for keeper, quote in budgets.quotes(unix_s):
        budget = keeper.budget
        spent_up = quote.rate >= PROHIBITIVE
        left = budget.supply - keeper.spent
        found.append(
            PriceMessage(
                resource=budget.resource.value,
                networks=budget.networks,
                s_per_unit=None if spent_up else quote.rate,
                steps=() if spent_up else tuple(steps(quote, left)),
            )
        )
    return found
