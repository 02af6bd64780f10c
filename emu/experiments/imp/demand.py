"""A host in a trial: its budgets, what it knows of networks, and which one serves a demand.

Rates are those of the shared predictor (`predictors.network`), fed with what the trace carried in each
second of a contact. A contact that has just begun is taken for an average one. All strategies are told
the same.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from cedos.budget_kinds import Resource
from cedos.selector.budgets.controller import MakeController, PriceController
from cedos.selector.budgets.odyssey import Odyssey
from cedos.selector.budgets.pacer import Pacer
from cedos.selector.budgets.prices import FREE, Prices, prices
from cedos.selector.energy import Radio
from cedos.selector.prefetch.outlook import Outlook, Path
from cedos.selector.prefetch.queue import Queue, choices
from emu.experiments.replayed_network import ReplayedNetwork
from predictors.network import NetworkPredictor

EVERY_S = 1.0
# The seconds over which a network's usual rate is averaged. Some fetches last as long.
_USUAL_S = 5.0

_LEAST_BPS = 10_000.0


class Knowledge:
    """Observations of the networks, one in `EVERY_S`.

    Args:
        outlook: is told what networks are like, and asked for averages.
    """

    def __init__(self, networks: Mapping[str, ReplayedNetwork], outlook: Outlook) -> None:
        self.outlook = outlook
        self._networks = networks
        self._predictors = {name: NetworkPredictor(name) for name in networks}
        self._updated_s: float | None = None

    def update(self, at_s: float) -> None:
        """Take what was carried until an instant of the replay."""
        elapsed_s = 0.0 if self._updated_s is None else at_s - self._updated_s
        self._updated_s = at_s
        for name, network in self._networks.items():
            since_s = network.attached_since_s(at_s)
            if since_s is None:
                self._predictors[name].reset(at_s)
                self.outlook.observe(name, elapsed_s, present=False)
                continue
            usual_bps = None
            if at_s - since_s >= EVERY_S:
                trace = network.access.down
                rate_bps = trace.rate_bps(at_s - EVERY_S, at_s)
                self._predictors[name].observe_rate(max(rate_bps, _LEAST_BPS), at_s)
                usual_bps = trace.rate_bps(max(at_s - _USUAL_S, since_s), at_s)
            self.outlook.observe(name, elapsed_s, True, usual_bps, network.rtt_s)

    def rate_bps(self, name: str) -> float:
        known = self._predictors[name].bandwidth_bps
        if known is not None:
            return known
        average = self.outlook.of(name)
        return 1.0 / average.s_per_bit if average is not None and average.s_per_bit else _LEAST_BPS


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
    _kept: dict[Resource, tuple[float, PriceController]] = field(default_factory=dict)
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
        """Note the use since the beginning, all of it for hinted items."""
        before, self._used = self._used, {Resource.ENERGY: energy_j, Resource.DATA: data_bytes}
        for resource, (supply, controller) in self._kept.items():
            controller.foreseen(max(self._used[resource] - before.get(resource, 0.0), 0.0))
            controller.observe(now_s, supply - self._used[resource])

    def breaks(self, data_bytes: float) -> bool:
        """Return whether so many more metered bytes, and their headers, would break the budget."""
        if self.data_bytes is None:
            return False
        used = self._used.get(Resource.DATA, 0.0)
        return used + _WITH_HEADERS * data_bytes > self.data_bytes

    def waiting(self, queue: Queue, now_s: float, paths: Sequence[Path]) -> None:
        """Tell the controllers what could be prefetched, so that they see what is still to be bought."""
        if not self._kept:
            return
        for resource, each in choices(queue, now_s, paths, self.prices(now_s)).items():
            if resource in self._kept:
                self._kept[resource][1].waiting([options for _, options in each])

    def prices(self, now_s: float) -> Prices:
        """Return the prices now; without budgets everything is free."""
        if not self._kept:
            return FREE
        quoted = [
            (resource, ("cellular",) if resource is Resource.DATA else (), one.quote(now_s))
            for resource, (_, one) in self._kept.items()
        ]
        return prices(quoted, ("cellular",))


METERED = ("cellular",)
# A demand fetch moves to a network that is expected to take less than this fraction (1 / 2) of the
# time.
_SLOWER = 2.0


@dataclass(frozen=True, slots=True)
class Offer:
    """A network that is there, as a demand finds it."""

    name: str
    rate_bps: float  # towards the host, expected
    rtt_s: float  # its round-trip time
    radio: Radio
    idle_s: float | None  # seconds since it was last used; None: never

    def cost_s(self, size_bytes: float, prices: Prices) -> float:
        """Return a demand's cost over it: seconds, joules and metered bytes, as any decision's."""
        time_s = 8.0 * size_bytes / self.rate_bps + self.rtt_s
        energy_j = self.radio.transfer_j(bytes_down=size_bytes, seconds=time_s, idle_s=self.idle_s)
        cost_s = time_s + energy_j * prices.energy_rate(energy_j, time_s)
        return cost_s + size_bytes * prices.data_rate(self.name, size_bytes, time_s)


def best(offers: Iterable[Offer], size_bytes: float, prices: Prices, *, breaks: bool) -> str | None:
    """Return the network of the lowest cost that may serve the demand.

    `breaks`: whether so much would break a cap on data: it waits for a free network then.
    """
    costs_s = _costs_s(offers, size_bytes, prices, breaks=breaks)
    return min(costs_s, key=costs_s.__getitem__) if costs_s else None


def moves(
    offers: Sequence[Offer], network: str, left_bytes: float, prices: Prices, *, breaks: bool
) -> bool:
    """Return whether what is under way over a network would be done much sooner over another one."""
    here_s = [offer.cost_s(left_bytes, prices) for offer in offers if offer.name == network]
    elsewhere_s = _costs_s(offers, left_bytes, prices, breaks=breaks)
    elsewhere_s.pop(network, None)
    return bool(here_s and elsewhere_s) and _SLOWER * min(elsewhere_s.values()) < here_s[0]


def _costs_s(
    offers: Iterable[Offer], size_bytes: float, prices: Prices, *, breaks: bool
) -> dict[str, float]:
    return {
        offer.name: offer.cost_s(size_bytes, prices)
        for offer in offers
        if not (breaks and offer.name in METERED)
    }
