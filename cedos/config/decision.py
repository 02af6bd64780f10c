"""`[decision]` and `[follow]`: what is best."""

from typing import Annotated, Literal

from msgspec import Meta

from cedos.config.section import Exponent, Interval, Rate, Section, Share


class DecisionConfig(Section, frozen=True, kw_only=True):
    """The one decision: what is best, and what makes a change worth while.

    `alpha`, `beta`, `gamma` are Delphi's exponents of speed, energy and metered bytes; the two
    rates are prices in seconds per joule and per metered megabyte for the objective `balanced`;
    `method` is how the uncertainty of predictions is taken (`cedos.selector.uncertainty`).
    """

    objective: Literal["balanced", "max-s", "max-s-per-e"] = "balanced"
    alpha: Exponent = 1.0
    beta: Exponent = 1.0
    gamma: Exponent = 0.0
    follow: bool = False
    seconds_per_joule: Rate = 0.01
    seconds_per_metered_mb: Rate = 0.2
    noticeable_s: Annotated[float, Meta(ge=0, le=60)] = 0.1
    switch_cost_s: Annotated[float, Meta(ge=0, le=60)] = 0.1
    hysteresis: Annotated[float, Meta(ge=0, le=1)] = 0.1
    reevaluate_interval_s: Interval = 1.0
    idle_interval_s: Interval = 5.0
    redundant: bool = False
    method: Literal["brute-force", "error-bounds", "bayesian", "trusting"] = "brute-force"

    def __post_init__(self) -> None:
        if self.follow and self.objective != "max-s-per-e":
            raise ValueError(
                f'follow moves the exponents of objective = "max-s-per-e"; "{self.objective}" has none'
            )


class FollowConfig(Section, frozen=True, kw_only=True):
    """Which way the exponents go (`cedos.selector.decision.follow.Curves` has the same fields)."""

    beta_full: Exponent = 0.0
    beta_empty: Exponent = 2.0
    battery_full: Share = 0.8
    battery_empty: Share = 0.1
    gamma_unused: Exponent = 0.0
    gamma_used: Exponent = 1.0
    plan_easy: Share = 0.5

    def __post_init__(self) -> None:
        if self.battery_empty >= self.battery_full:
            raise ValueError(
                f"battery_empty ({self.battery_empty:g}) must be less than"
                f" battery_full ({self.battery_full:g})"
            )
