"""The selection of helpers: the paper's, its two baselines, and ours by the one decision's cost.

The paper (CBSP, "Helper Selection") orders the offers and takes the first h whose rates add up to rho,
which the requestor wants. It prefers a lower price, then the larger A_i. Ours takes the set whose cost is
lowest: seconds for what is wanted, with money at what a second less is worth here.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from cedos.selector.objective import Objective, Outcome, WeightedCost
from cedos.selector.sharing.offers import HelperOffer


@dataclass(frozen=True, slots=True)
class HelperChoice:
    """The helpers to use, and sigma, the sum of their rates in bit/s."""

    helpers: tuple[HelperOffer, ...]

    @property
    def rate_bps(self) -> float:
        return sum(each.rate_bps for each in self.helpers)


HelperStrategy = Callable[[Sequence[HelperOffer], float], HelperChoice]
"""From offers, and the rate wanted in bit/s, to a choice. With too few offers it takes what there is."""


def by_price(offers: Sequence[HelperOffer], wanted_bps: float) -> HelperChoice:
    """Choose as CBSP does: the lower price first, then the most data before the helper is gone."""
    return _first(
        sorted(offers, key=lambda it: (it.price, -it.deliverable_bits, -it.rate_bps, it.helper)),
        wanted_bps,
    )


def high_bandwidth_first(offers: Sequence[HelperOffer], wanted_bps: float) -> HelperChoice:
    """Choose the highest rates, one of the paper's baselines (its reference 40)."""
    return _first(sorted(offers, key=lambda it: (-it.rate_bps, it.helper)), wanted_bps)


def long_encounter_first(offers: Sequence[HelperOffer], wanted_bps: float) -> HelperChoice:
    """Choose the longest encounters, the paper's other baseline (its reference 28)."""
    return _first(
        sorted(offers, key=lambda it: (-it.encounter_s, -it.rate_bps, it.helper)), wanted_bps
    )


def _first(ordered: Iterable[HelperOffer], wanted_bps: float) -> HelperChoice:
    taken: list[HelperOffer] = []
    sum_bps = 0.0
    for offer in ordered:
        if sum_bps >= wanted_bps:
            break
        taken.append(offer)
        sum_bps += offer.rate_bps
    return HelperChoice(tuple(taken))


_PRICE_BYTES: Final = 1e15  # a price is in millionths for 10^9 bytes


@dataclass(frozen=True, slots=True)
class LeastCost:
    """Our strategy: the set of helpers whose outcome costs least.

    Attributes:
        objective: the daemon's, whose budgets may price money.
        s_per_money: seconds of waiting that one unit of the currency is worth without a budget.
        horizon_s: the time ahead that counts. A helper that leaves earlier carries for a part of it.
        pause_s: what the leaving of a helper costs the transfer.
    """

    objective: Objective = field(default_factory=WeightedCost)
    s_per_money: float = 60.0
    horizon_s: float = 60.0
    pause_s: float = 0.5

    def __call__(self, offers: Sequence[HelperOffer], wanted_bps: float) -> HelperChoice:
        """Add the helper that lowers the cost most, until none does; or choose as the paper if better."""
        taken: list[HelperOffer] = []
        left = sorted((it for it in offers if it.rate_bps), key=lambda it: it.helper)
        cost = float("inf")
        while left:
            found, which = min(
                (self.cost((*taken, it), wanted_bps), i) for i, it in enumerate(left)
            )
            if found >= cost:
                break
            cost = found
            taken.append(left.pop(which))
        greedy = HelperChoice(tuple(taken))
        papers = (each(offers, wanted_bps) for each in (by_price, high_bandwidth_first))
        return min((greedy, *papers), key=lambda it: self.cost(it.helpers, wanted_bps))

    def cost(self, helpers: Sequence[HelperOffer], wanted_bps: float) -> float:
        """Return what it costs to carry `horizon_s` of the wanted rate over these helpers."""
        size_bytes = wanted_bps * self.horizon_s / 8
        shares = [it.rate_bps * min(it.available_s / self.horizon_s, 1.0) for it in helpers]
        sum_bps = sum(shares)
        if not sum_bps:
            return float("inf")
        leaving = sum(it.available_s < self.horizon_s for it in helpers)
        # A rate above the wanted one gains nothing. Data is shared out in proportion to the rates.
        time_s = size_bytes * 8 / min(sum_bps, wanted_bps) + leaving * self.pause_s
        price = sum(share * it.price for share, it in zip(shares, helpers, strict=True)) / sum_bps
        money = size_bytes * price / _PRICE_BYTES
        outcome = Outcome(time_s, 0.0, 0.0, size_bytes, money)
        return self.objective.cost(outcome) + self.s_per_money * money


STRATEGIES: Final[Mapping[str, HelperStrategy]] = {
    "price": by_price,
    "cost": LeastCost(),
    "bandwidth": high_bandwidth_first,
    "encounter": long_encounter_first,
}
"""The strategies by the names that a person gives."""
