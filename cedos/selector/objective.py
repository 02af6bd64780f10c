"""What is best: one number per strategy, the lowest wins.

`WeightedCost` is the house's own currency, seconds (DESIGN, "The one decision"); `MaxS` and
`MaxSPerE` are Delphi's objective functions (section 7.1), turned upside down.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from cedos.selector.budgets.prices import FREE, Prices


class Outcome(NamedTuple):
    """What a strategy is expected to cost: seconds, joules, metered bytes, money, for a size.

    `data_s` is what its bytes are worth by the objective's `prices`, in seconds.
    """

    time_s: float
    energy_j: float
    metered_bytes: float
    size_bytes: float
    money: float = 0.0
    data_s: float = 0.0


class Objective(Protocol):
    """Ranks strategies. A cost must not fall when any of the outcome's costs rises."""

    @property
    def name(self) -> str:
        """What records and evaluations call it."""

    @property
    def note(self) -> str:
        """What people should know of it beside its name, such as what its exponents follow; or ""."""

    @property
    def relative(self) -> bool:
        """Whether ratios of outcomes count and not their differences: times are then typical ones."""

    @property
    def prices(self) -> Prices:
        """What budgets say of bytes, joules and money; `FREE` where it does not look at them."""

    def cost(self, outcome: Outcome, /) -> float:
        """The strategy's cost in the objective's own unit; lower is better."""


@dataclass(frozen=True, slots=True)
class WeightedCost:
    """Seconds, with joules and metered bytes turned into seconds at conversion rates.

    IMP's conversion rates (dissertation, 3.2.2.4): two that stay, and those that budgets move.
    `noticeable_s` is what a metered network must save beside them to be used at all.
    """

    s_per_j: float = 0.0
    s_per_metered_byte: float = 0.0
    name: str = "balanced"
    note: str = ""
    relative: bool = False
    prices: Prices = FREE
    noticeable_s: float = 0.0

    def cost(self, outcome: Outcome) -> float:
        cost = outcome.time_s
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
        """Seconds, typically (`selector.uncertainty.Spread`)."""
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
        """One over the paper's objective function, all of it per megabyte."""
        size_mb = max(outcome.size_bytes, 1.0) / 1e6
        cost = math.pow(outcome.time_s / size_mb, self.alpha)
        cost *= math.pow(outcome.energy_j / size_mb, self.beta)
        if self.gamma:
            cost *= math.pow(outcome.money / size_mb + self.free_per_mb, self.gamma)
        return cost
