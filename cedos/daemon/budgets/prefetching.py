"""Pace budgets for what programs still prefetch, and tell the programs the prices."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from cedos.api.messages import NetworkMessage
from cedos.api.programs import (
    PrefetchingAnswer,
    PrefetchingRequest,
    PriceMessage,
    ProgramMessage,
    RadioMessage,
    TakingMessage,
)
from cedos.budget_kinds import Resource
from cedos.daemon.aligned_sleep import aligned_sleep
from cedos.daemon.budgets.host_budgets import HostBudgets
from cedos.daemon.budgets.metering import Metering
from cedos.model import Budget, NetworkKind
from cedos.selector.budgets.controller import PROHIBITIVE, Option, steps
from cedos.selector.energy import Radio

# A program that has not asked for this time has ended. Programs ask once a second.
_SILENT_S = 5.0

_UPDATE_S = 1.0
# Bytes on the wire per byte of an item, as the interfaces count them.
_WITH_HEADERS = 1.06

# The share of an item's size that a flow must have carried, as flows carry headers too.
_MOSTLY = 0.8

# Programs' guesses reserve at most this share of what is left. A hint of a film must not make a
# network dear for all.
_MOST_CLAIMED = 0.5

# The factor by which received bytes fade each second if no end of their flow is seen.
_KEPT = 0.997

# A request takes up to 1.1 MB of memory.
_PROGRAMS = 16

# The ways of all programs' items that one update works through for all budgets.
MOST_WAYS = 4_000


_Item = TypeVar("_Item")


@dataclass(slots=True)
class _PrefetchingProgram:
    request: PrefetchingRequest
    heard_s: float


class Prefetching:
    """Between programs that prefetch and the budgets."""

    def __init__(
        self,
        budgets: HostBudgets,
        metering: Metering,
        radios: Mapping[NetworkKind, Radio],
        *,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._budgets = budgets
        self._metering = metering
        self._radios = {kind: msgspec.to_builtins(radio) for kind, radio in radios.items()}
        self._clock, self._steady = clock, steady
        self._programs: dict[tuple[int, str], _PrefetchingProgram] = {}
        self._waited: set[str] = set()
        self._received: dict[str, float] = {}

    def account(self, network: str, size_bytes: int) -> bool:
        """Return whether a flow that has ended carried what was prefetched; that accounts for its bytes.

        Which flow it was is not told, only how many bytes came over which network, and up to a second
        late: one of the same size may be taken for it, which comes to the same.
        """
        left = self._received.get(network, 0.0)
        if left < _MOSTLY * size_bytes:
            return False
        self._received[network] = max(left - size_bytes, 0.0)
        return True

    def on_request(
        self, request: PrefetchingRequest, known: Sequence[NetworkMessage]
    ) -> PrefetchingAnswer:
        """Take what a program tells; return what it needs to know."""
        key = (request.pid, request.program)
        if key in self._programs or len(self._programs) < _PROGRAMS:
            self._programs[key] = _PrefetchingProgram(request, self._steady())
        networks = {each.name for each in known}
        for name, received in zip(request.networks, request.used_bytes, strict=False):
            if name in networks:
                self._received[name] = self._received.get(name, 0.0) + received
        begun = list(_within(request.started, lambda each: each.ways, self._share(1)))
        for keeper in self._budgets.keepers.values():
            for started in begun:
                options = [self._option(keeper.budget, request, way) for way in started.ways]
                keeper.credited(options, options[started.chosen])
            keeper.controller.foreseen(self._used(keeper.budget, request))
        return PrefetchingAnswer(
            networks=list(known), radios=self._radio_messages(known), prices=self._prices()
        )

    def programs(self) -> list[ProgramMessage]:
        """Return those that prefetch now, the last one heard of first."""
        now_s = self._steady()
        self._forget(now_s)
        return [
            ProgramMessage(
                program=each.request.program,
                pid=each.request.pid,
                age_s=max(now_s - each.heard_s, 0.0),
                counts=each.request.counts,
                items=each.request.items,
            )
            for each in sorted(self._programs.values(), key=lambda each: -each.heard_s)
        ]

    async def run(self) -> None:
        """Forget programs that have ended, and what they had open, until cancelled."""
        while True:
            await aligned_sleep(_UPDATE_S)
            self.update()

    def update(self) -> None:
        """Tell budgets what is open if that has changed without a report."""
        self._forget(self._steady())
        self._received = {
            name: _KEPT * each for name, each in self._received.items() if each >= 1.0
        }
        for name in self._budgets.keepers.keys() | self._waited:
            self._tell(name)

    def _forget(self, now_s: float) -> None:
        for key, each in list(self._programs.items()):
            if now_s - each.heard_s > _SILENT_S:
                del self._programs[key]

    def _tell(self, name: str) -> None:
        keeper = self._budgets.keepers.get(name)
        open_ones: list[list[Option]] = []
        if keeper is not None:
            free = _MOST_CLAIMED * max(keeper.budget.supply - keeper.spent, 0.0)
            most = self._share(len(self._programs))
            for each in self._programs.values():
                for ways in _within(each.request.waiting, lambda ways: ways, most):
                    options = [self._option(keeper.budget, each.request, way) for way in ways]
                    least = min((option.amount for option in options), default=free)
                    if least < free:
                        free -= least
                        open_ones.append(options)
        if keeper is not None and (open_ones or name in self._waited):
            keeper.controller.waiting(open_ones)
        if open_ones:
            self._waited.add(name)
        else:
            self._waited.discard(name)

    def _share(self, programs: int) -> int:
        """Return how many ways of each program one budget works through."""
        return MOST_WAYS // max(len(self._budgets.keepers) * programs, 1)

    def _option(self, budget: Budget, request: PrefetchingRequest, way: TakingMessage) -> Option:
        """Return a way as this budget sees it: its own units, and everything else in seconds."""
        prices, resource = self._budgets.prices, budget.resource
        seconds = way.time_s
        if resource is not Resource.ENERGY:
            seconds += prices.energy_rate() * way.energy_j
        if resource is not Resource.DATA:
            seconds += sum(
                prices.data_rate(name) * sent
                for name, sent in zip(request.networks, way.sent, strict=True)
            )
        carried = zip(request.networks, way.sent, strict=True)
        return Option(seconds, self._budgets.amount(budget, way.energy_j, carried))

    def _used(self, budget: Budget, request: PrefetchingRequest) -> float:
        sent = [_WITH_HEADERS * each for each in request.used_bytes]
        carried = zip(request.networks if sent else [], sent, strict=True)
        return self._budgets.amount(budget, request.used_j, carried)

    def _radio_messages(self, known: Sequence[NetworkMessage]) -> dict[str, RadioMessage]:
        """Return the radios of the reported networks; the links may show others by now."""
        now_s = self._steady()
        return {
            network.name: RadioMessage(
                radio=self._radios[network.kind],
                shares=self._metering.shares(network.name, now_s),
                idle_s=self._metering.idle_s(network.name, now_s),
            )
            for network in known
        }

    def _prices(self) -> list[PriceMessage]:
        now_s = self._clock()
        found = []
        for keeper in self._budgets.keepers.values():
            budget = keeper.budget
            if keeper.has_ended(now_s) or self._budgets.suspended(budget):
                continue
            quote = keeper.quote(now_s)
            spent_up = quote.rate >= PROHIBITIVE
            left = budget.supply - keeper.spent
            if budget.increment is not None:  # more can be bought
                left = max(left, 0.0) + budget.increment.amount * budget.increment.most
            found.append(
                PriceMessage(
                    resource=budget.resource.value,
                    networks=budget.networks,
                    s_per_unit=None if spent_up else quote.rate,
                    steps=() if spent_up else tuple(steps(quote, left)),
                )
            )
        return found


def _within(
    items: Iterable[_Item], ways: Callable[[_Item], Sequence[object]], most: int
) -> Iterator[_Item]:
    """Yield the first items, which have `most` ways together; an item counts as one more."""
    for each in items:
        most -= len(ways(each)) + 1
        if most < 0:
            return
        yield each
