"""Objectives: turn the outcome of a strategy into one number; the lowest wins.

`WeightedCost` is our own currency, seconds. `MaxS` and `MaxSPerE` are
Delphi's objective functions (section 7.1), turned upside down.

The exponents of `MaxSPerE` can follow the host's resources (`Curves`). Delphi (section 7.1): "beta
can increase as the battery level decreases", and gamma "as the amount of data plan consumed is
approaching the budget, and fixed at a large number once the cellular usage exceeds the budget"; on
mains power with an unlimited plan only speed counts.
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
    `noticeable_s` is what a metered network must save beside them to be used at all.
    """

    s_per_j: float = 0.0
    s_per_metered_byte: float = 0.0
    name: str = "balanced"
    note: str = ""
    relative: bool = False
    prices: Prices = FREE
    noticeable_s: float = 0.0

    def for_phone(self, use: PhoneUse) -> "WeightedCost":
        """Return the objective with the prices of this use of metered networks."""
        price = METERED[use]
        return replace(
            self, s_per_metered_byte=price.s_per_mb / 1e6, noticeable_s=price.noticeable_s
        )

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


# The name of the budget that the configuration's `[plan]` sets; `Curves` follow its use.
PLAN: Final = "plan"
# Gamma of a spent plan. A free network then wins at any speed.
_MOST_GAMMA = 10.0


class Exponents(NamedTuple):
    alpha: float
    beta: float
    gamma: float


@dataclass(frozen=True, slots=True)
class Curves:
    """The values between which the exponents move, on a straight line."""

    alpha: float = 1.0  # of speed; stays
    beta_full: float = 0.0  # of energy, on mains power and down to the battery level `battery_full`
    beta_empty: float = 2.0  # from the level `battery_empty` down
    battery_full: float = 0.8  # share of a full battery (0 to 1)
    battery_empty: float = 0.1  # the same; less than `battery_full`
    gamma_unused: float = 0.0  # of money, up to the share `plan_easy` of the data plan
    gamma_used: float = 1.0  # at the end of the plan; beyond it stands `PROHIBITIVE`
    plan_easy: float = 0.5  # share of the plan (0 to 1) that may be used without a thought

    def exponents(self, battery: float | None, plan: float | None) -> Exponents:
        """Return the exponents for a battery level and a used share of the data plan.

        Args:
            battery: the level (0 to 1) of a battery that is being used up; None: mains power.
            plan: the share of the data plan that is used, above 1 where it is exceeded; None: there
                is no limit.
        """
        beta, gamma = self.beta_full, self.gamma_unused
        # The emptier the battery, the more energy counts; the fuller the plan, the more money.
        if battery is not None:
            empty = _between(self.battery_full, self.battery_empty, battery)
            beta += empty * (self.beta_empty - self.beta_full)
        if plan is not None:
            used = _between(self.plan_easy, 1.0, plan)
            gamma += used * (self.gamma_used - self.gamma_unused)
            if plan >= 1.0:
                gamma = max(gamma, _MOST_GAMMA)
        return Exponents(self.alpha, beta, gamma)

    def objective(self, battery: float | None, plan: float | None) -> MaxSPerE:
        """Return Delphi's objective with the present exponents; its note says what they follow."""
        alpha, beta, gamma = self.exponents(battery, plan)
        notes = []
        if battery is not None:
            notes.append(
                f"The battery is at {battery * 100:.0f} %, so energy has exponent {beta:.2g}"
            )
        if plan is not None:
            left = (
                "The data plan is used up"
                if plan >= 1.0
                else f"{plan * 100:.0f} % of the data plan is used"
            )
            notes.append(f"{left}, so money has exponent {gamma:.2g}")
        return MaxSPerE(alpha, beta, gamma, note=". ".join(notes))


def _between(start: float, end: float, value: float) -> float:
    """Return how far (0 to 1) a value has come from `start` to `end`; these may be equal."""
    if start == end:
        return float(value >= end)
    return min(max((value - start) / (end - start), 0.0), 1.0)
