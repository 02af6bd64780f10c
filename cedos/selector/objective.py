"""Objectives: turn the outcome of a strategy into one number; the lowest wins.

`WeightedCost` is our own currency, seconds. `MaxS` and `MaxSPerE` are
Delphi's objective functions (section 7.1), turned upside down.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol

from cedos.model import PhoneUse
from cedos.selector.budgets.prices import FREE, Prices


class MeteredPrice(NamedTuple):
    """The seconds that a metered megabyte must save, and those that any use must save beside them."""

    s_per_mb: float
    noticeable_s: float


# The price of a metered byte by the phone's use. At 1 s a megabyte, Wi-Fi of 8 Mbit/s and more
# carries bulk data alone (docs/decisions/phone.md).
METERED: Final[Mapping[PhoneUse, MeteredPrice]] = {
    PhoneUse.WITHOUT_WIFI: MeteredPrice(60.0, 1.0),
    PhoneUse.TO_SAVE_TIME: MeteredPrice(1.0, 0.1),
    PhoneUse.FREELY: MeteredPrice(0.0, 0.0),
}


# The seconds of waiting that one unit of money is worth where no budget prices it. Assumed.
S_PER_MONEY: Final = 60.0


class Outcome(NamedTuple):
    """The expected cost of a strategy: seconds, joules, metered bytes and money for a size.

    `data_s` is what its bytes are worth by the objective's `prices`, in seconds.
    """

    time_s: float
    energy_j: float
    metered_bytes: float
    size_bytes: float
    money: float = 0.0
    data_s: float = 0.0


class Objective(Protocol):
    """A ranking of strategies. A cost must not fall when any of the outcome's costs rises."""

    @property
    def name(self) -> str:
        """The name in records and evaluations."""

    @property
    def note(self) -> str:
        """A note for people, such as what the exponents follow; or ""."""

    @property
    def relative(self) -> bool:
        """True if ratios of outcomes count and not their differences: times are then usual ones."""

    @property
    def prices(self) -> Prices:
        """The budgets' prices of bytes, joules and money; `FREE` if the objective ignores them."""

    def cost(self, outcome: Outcome, /) -> float:
        """Return the strategy's cost in the objective's own unit; lower is better."""


@dataclass(frozen=True, slots=True)
class WeightedCost:
    """Seconds, with joules and metered bytes turned into seconds at conversion rates.

    IMP's conversion rates (dissertation, 3.2.2.4): two that stay, and those that budgets move.
    `noticeable_s` is what a metered network must save beside them to be used at all. The time counts for
    each of the `programs` that wait for it.
    """

    s_per_j: float = 0.0
    s_per_metered_byte: float = 0.0
    name: str = "balanced"
    note: str = ""
    relative: bool = False
    prices: Prices = FREE
    noticeable_s: float = 0.0
    programs: int = 1

    def for_phone(self, use: PhoneUse) -> "WeightedCost":
        """Return the objective with the prices of this use of metered networks."""
        price = METERED[use]
        return replace(
            self, s_per_metered_byte=price.s_per_mb / 1e6, noticeable_s=price.noticeable_s
        )

    def cost(self, outcome: Outcome) -> float:
        cost = self.programs * outcome.time_s
        # What is not used is free at any price, also at an infinite one.
        if outcome.energy_j:
            cost += self.s_per_j * outcome.energy_j
        if outcome.metered_bytes:
            cost += self.s_per_metered_byte * outcome.metered_bytes + self.noticeable_s
        prices = self.prices
        if prices is FREE:
            return cost
        duration_s = outcome.time_s
        return (
            cost
            + outcome.data_s
            + prices.energy_s(outcome.energy_j, duration_s)
            + prices.money_s(outcome.money, duration_s)
        )


@dataclass(frozen=True, slots=True)
class MaxS:
    """Delphi's Max(S): the highest average throughput, that is the shortest time."""

    name: str = "max-s"
    note: str = ""
    relative: bool = True
    prices: Prices = FREE

    def cost(self, outcome: Outcome) -> float:
        """Return seconds, the usual ones (`Spread.usual_s`)."""
        return outcome.time_s


@dataclass(frozen=True, slots=True)
class MaxSPerE:
    """Delphi's S^a / (E^b * M^c): throughput over joules per byte and money per byte (equation 5).

    The paper leaves M = 0 open, where every free network would be infinitely good and none better
    than the other; a price of `free_per_mb` keeps them in the order of S^a / E^b.
    """

    alpha: float = 1.0
    beta: float = 1.0
    gamma: float = 0.0
    free_per_mb: float = 1e-9
    name: str = "max-s-per-e"
    note: str = ""
    relative: bool = True
    prices: Prices = FREE

    def cost(self, outcome: Outcome) -> float:
        """Return one over the paper's objective function, all of it per megabyte."""
        # Throughput is one over time, so the inverse of the paper's function is a product of powers.
        size_mb = max(outcome.size_bytes, 1.0) / 1e6
        cost = math.pow(outcome.time_s / size_mb, self.alpha)
        cost *= math.pow(outcome.energy_j / size_mb, self.beta)
        if self.gamma:
            cost *= math.pow(outcome.money / size_mb + self.free_per_mb, self.gamma)
        return cost
