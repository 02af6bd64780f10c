"""Prices of one instant: the seconds that bytes over a network, joules and money are worth."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from cedos.budget_kinds import Resource
from cedos.selector.budgets.controller import Quote


@dataclass(frozen=True, slots=True)
class Prices:
    """Quotes by the resource that they price; several budgets may count the same bytes."""

    data: Mapping[str, tuple[Quote, ...]] = field(default_factory=dict, hash=False)
    energy: tuple[Quote, ...] = ()
    money: tuple[Quote, ...] = ()

    def data_s(self, network: str, amount: float, duration_s: float) -> float:
        return _cost_s(self.data.get(network, ()), amount, duration_s)

    def energy_s(self, amount: float, duration_s: float) -> float:
        return _cost_s(self.energy, amount, duration_s)

    def money_s(self, amount: float, duration_s: float) -> float:
        return _cost_s(self.money, amount, duration_s)

    def data_rate(self, network: str, amount: float = 0.0, duration_s: float = 1.0) -> float:
        """Return the seconds per byte over a network, with this amount contemplated."""
        return _rate(self.data.get(network, ()), amount, duration_s)

    def energy_rate(self, amount: float = 0.0, duration_s: float = 1.0) -> float:
        """Return the seconds per joule, with this amount contemplated."""
        return _rate(self.energy, amount, duration_s)


# The prices without budgets: none.
FREE: Final = Prices()


def prices(
    quoted: Iterable[tuple[Resource, tuple[str, ...], Quote]], metered: Iterable[str]
) -> Prices:
    """Return the prices of all budgets.

    `quoted`: per budget its resource, the networks it counts (none: all metered ones), its quote.
    """
    metered = tuple(metered)
    data: dict[str, tuple[Quote, ...]] = {}
    flat: dict[Resource, tuple[Quote, ...]] = {}
    for resource, networks, quote in quoted:
        if resource.meter.by_network:
            for name in networks or metered:
                data[name] = (*data.get(name, ()), quote)
        else:
            flat[resource] = (*flat.get(resource, ()), quote)
    return Prices(data, flat.get(Resource.ENERGY, ()), flat.get(Resource.MONEY, ()))


def _rate(quotes: tuple[Quote, ...], amount: float, duration_s: float) -> float:
    if amount <= 0.0:
        return sum([quote.rate for quote in quotes])
    return sum([quote.rate_for(amount, duration_s) for quote in quotes])


def _cost_s(quotes: tuple[Quote, ...], amount: float, duration_s: float) -> float:
    if not quotes or amount <= 0.0:
        return 0.0
    return amount * _rate(quotes, amount, duration_s)
