"""Prices of one instant: the seconds that bytes over a network, joules and money are worth."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Final

from cedos.budget_kinds import Resource
from cedos.model import Budget, Network
from cedos.plain_text import round_figures
from cedos.selector.budgets.controller import PROHIBITIVE, Quote
from cedos.selector.budgets.keeper import Standing

_MB = 1e6


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


def note(
    prices: Prices, standings: Sequence[Standing], networks: Iterable[Network], now_s: float
) -> str:
    """Return a sentence for each price, with the budgets that cause it."""
    lines = []
    # Bytes first, by network; then joules and money.
    for network in sorted(networks, key=lambda each: each.name):
        if network.name not in prices.data:
            continue
        rate = prices.data_rate(network.name)
        of = [each for each in standings if _counts(each.budget, network)]
        worth = f"A megabyte over {network.name} {_price(rate * _MB)}"
        if rate >= PROHIBITIVE:
            worth = f"{network.name} is used only where nothing else works"
        lines.append(worth + _describe_reason(of, now_s))
    for quotes, resource in ((prices.energy, Resource.ENERGY), (prices.money, Resource.MONEY)):
        if quotes:
            unit = resource.unit.priced_name
            rate = sum(quote.rate for quote in quotes)
            of = [each for each in standings if each.budget.resource is resource]
            worth = (
                f"No {unit} may be spent where there is another way"
                if rate >= PROHIBITIVE
                else f"A {unit} {_price(rate)}"
            )
            lines.append(worth + _describe_reason(of, now_s))
    return ". ".join(lines)


def _counts(budget: Budget, network: Network) -> bool:
    if not budget.resource.meter.by_network:
        return False
    return network.name in budget.networks if budget.networks else network.metered


def _price(seconds: float) -> str:
    if seconds < 0.001:
        return "is almost free"
    return f"must save {worth_s(seconds)}"


def worth_s(seconds: float) -> str:
    """Return a price with two digits that matter."""
    if seconds < 0.001:
        return "less than 1 ms"
    if seconds < 0.1:
        return f"{round_figures(seconds * 1000)} ms"
    for limit, divisor, unit in ((99.5, 1, "s"), (5970, 60, "minutes"), (172_000, 3600, "hours")):
        if seconds < limit:
            return f"{round_figures(seconds / divisor)} {unit}"
    return f"{seconds / 86_400:.0f} days"


def amount(value: float, resource: Resource) -> str:
    """Return an amount with three digits that matter."""
    symbols = resource.unit.symbols
    if not symbols:
        return round_figures(value, 4)
    for symbol in symbols[:-1]:
        if abs(value) < 999.5:
            return f"{value:.3g} {symbol}"
        value /= 1000.0
    return f"{value:.3g} {symbols[-1]}"


def _describe_reason(standings: Sequence[Standing], now_s: float) -> str:
    lines = []
    for standing in standings:
        if standing.over:
            continue
        budget = standing.budget
        left = amount(max(standing.left, 0.0), budget.resource)
        lines.append(
            f'budget "{budget.name}": {left} of {amount(budget.supply, budget.resource)} left for'
            f" {_lasting(max(standing.period.ends_s - now_s, 0.0))}"
        )
    return f" ({'; '.join(lines)})" if lines else ""


def _lasting(seconds: float) -> str:
    for least, divisor, unit in ((172_800, 86_400, "days"), (5970, 3600, "hours")):
        if seconds >= least:
            return f"{seconds / divisor:.0f} {unit}"
    minutes = ceil(seconds / 60)
    return f"{minutes} minutes" if minutes > 1 else "a minute"
