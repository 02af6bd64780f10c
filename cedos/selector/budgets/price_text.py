"""Today's prices in words, for `cedos explain`."""

from collections.abc import Iterable, Sequence
from math import ceil

from cedos.budget_kinds import Resource
from cedos.model import Budget, Network
from cedos.plain_text import rounded
from cedos.selector.budgets.controller import PROHIBITIVE
from cedos.selector.budgets.keeper import Standing
from cedos.selector.budgets.prices import Prices

_MB = 1e6


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
        lines.append(worth + _because(of, now_s))
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
            lines.append(worth + _because(of, now_s))
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
        return f"{rounded(seconds * 1000)} ms"
    for limit, divisor, unit in ((99.5, 1, "s"), (5970, 60, "minutes"), (172_000, 3600, "hours")):
        if seconds < limit:
            return f"{rounded(seconds / divisor)} {unit}"
    return f"{seconds / 86_400:.0f} days"


def amount(value: float, resource: Resource) -> str:
    """Return an amount with three digits that matter."""
    symbols = resource.unit.symbols
    if not symbols:
        return rounded(value, 4)
    for symbol in symbols[:-1]:
        if abs(value) < 999.5:
            return f"{value:.3g} {symbol}"
        value /= 1000.0
    return f"{value:.3g} {symbols[-1]}"


def _because(standings: Sequence[Standing], now_s: float) -> str:
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
