"""Between programs that prefetch and the budgets: these are paced for what programs still may fetch."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from cedos.budget_kinds import Resource
from cedos.controller.budgets.keepers import BudgetKeepers
from cedos.controller.decisions.decider import Decider
from cedos.controller.hint import PrefetchReport, TakingMessage
from cedos.model import Budget
from cedos.selector.budgets.controller import Option

# A program that has not reported for this time has ended. Programs report once a second.
_SILENT_S: Final = 5.0
# Bytes on the wire per byte of an item, as the interfaces count them.
_WITH_HEADERS: Final = 1.06
# The share of an item's size that a flow must have carried, as flows carry headers too.
_MOSTLY: Final = 0.8
# Programs' guesses reserve at most this share of what is left. A hint of a film must not make a
# network dear for all.
_MOST_CLAIMED: Final = 0.5
# The factor by which received bytes fade each second if no end of their flow is seen.
_KEPT: Final = 0.997
# A report takes up to 1.1 MB of memory.
_PROGRAMS: Final = 16
# The ways of all programs' items that one update works through for all budgets.
MOST_WAYS: Final = 4_000
# The least time between two updates.
_UPDATE_S: Final = 0.9

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class PrefetchingProgram:
    """A program's last report, and when it came."""

    report: PrefetchReport
    heard_s: float


class Prefetching:
    """The programs that prefetch, and what they have received that no flow was accounted for yet."""

    def __init__(self, budgets: BudgetKeepers, decider: Decider) -> None:
        self._budgets = budgets
        self._decider = decider
        self._programs: dict[tuple[int, str], PrefetchingProgram] = {}
        self._received: dict[str, float] = {}
        self._updated_s: float | None = None

    def programs(self, now_s: float) -> Mapping[tuple[int, str], PrefetchingProgram]:
        """Return those that prefetch now, by process and name."""
        known = self._programs.items()
        return {key: each for key, each in known if now_s - each.heard_s <= _SILENT_S}

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

    def on_report(self, report: PrefetchReport, now_s: float) -> None:
        """Take a program's report."""
        key = (report.pid, report.program)
        if key in self._programs or len(self._programs) < _PROGRAMS:
            self._programs[key] = PrefetchingProgram(report, now_s)
        networks = {each.name for each in (*self._decider.networks, *self._decider.helpers)}
        for name, received in zip(report.networks, report.used_bytes, strict=False):
            if name in networks:
                self._received[name] = self._received.get(name, 0.0) + received
        begun = list(_first_items(report.started, lambda each: each.ways, self._share(1)))
        for keeper in self._budgets.keepers.values():
            for started in begun:
                options = [self._option(keeper.budget, report, way) for way in started.ways]
                keeper.credit(options, options[started.chosen])
            keeper.controller.foreseen(self._measure_use(keeper.budget, report))

    def update(self, now_s: float) -> None:
        """Forget programs that have ended, and tell the budgets what is still open."""
        elapsed_s = 0.0 if self._updated_s is None else now_s - self._updated_s
        if self._updated_s is not None and elapsed_s < _UPDATE_S:
            return
        self._programs = dict(self.programs(now_s))
        self._updated_s = now_s
        kept = _KEPT**elapsed_s
        self._received = {name: kept * each for name, each in self._received.items() if each >= 1.0}
        most = self._share(len(self._programs))
        for keeper in self._budgets.keepers.values():
            open_ones: list[list[Option]] = []
            free = _MOST_CLAIMED * max(keeper.budget.supply - keeper.spent, 0.0)
            for each in self._programs.values():
                for ways in _first_items(each.report.waiting, lambda ways: ways, most):
                    options = [self._option(keeper.budget, each.report, way) for way in ways]
                    least = min((option.amount for option in options), default=free)
                    if least < free:
                        free -= least
                        open_ones.append(options)
            keeper.controller.waiting(open_ones)

    def _share(self, programs: int) -> int:
        """Return how many ways of each program one budget works through."""
        return MOST_WAYS // max(len(self._budgets.keepers) * programs, 1)

    def _option(self, budget: Budget, report: PrefetchReport, way: TakingMessage) -> Option:
        """Return a way as this budget sees it: its own units, and everything else in seconds."""
        prices, resource = self._budgets.prices, budget.resource
        seconds = way.time_s
        if resource is not Resource.ENERGY:
            seconds += prices.energy_rate() * way.energy_j
        if resource is not Resource.DATA:
            seconds += sum(
                prices.data_rate(name) * sent
                for name, sent in zip(report.networks, way.sent, strict=True)
            )
        carried = zip(report.networks, way.sent, strict=True)
        return Option(seconds, self._budgets.amount(budget, way.energy_j, carried))

    def _measure_use(self, budget: Budget, report: PrefetchReport) -> float:
        sent = [_WITH_HEADERS * each for each in report.used_bytes]
        carried = zip(report.networks if sent else [], sent, strict=True)
        return self._budgets.amount(budget, report.used_j, carried)


def _first_items(
    items: Iterable[_Item], ways: Callable[[_Item], Sequence[object]], most: int
) -> Iterator[_Item]:
    """Yield the first items, which have `most` ways together; an item counts as one more."""
    for each in items:
        most -= len(ways(each)) + 1
        if most < 0:
            return
        yield each
