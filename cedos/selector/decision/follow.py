"""Exponents that follow what the host has left: beta the battery, gamma the data plan.

Delphi (section 7.1): "beta can increase as the battery level decreases", and gamma "as the amount of
data plan consumed is approaching the budget, and fixed at a large number once the cellular usage
exceeds the budget"; on mains power with an unlimited plan only speed counts.
"""

from dataclasses import dataclass
from typing import NamedTuple

from cedos.selector.objective import MaxSPerE

PROHIBITIVE = 10.0
"""Gamma once the plan is used up: a free network then wins at any speed."""


class Exponents(NamedTuple):
    alpha: float
    beta: float
    gamma: float


@dataclass(frozen=True, slots=True)
class Curves:
    """Between which values the exponents move, on a straight line.

    Attributes:
        alpha: of speed; stays.
        beta_full: of energy, on mains power and down to the battery level `battery_full`.
        beta_empty: from the level `battery_empty` down.
        battery_full: share of a full battery (0 to 1).
        battery_empty: the same; less than `battery_full`.
        gamma_unused: of money, up to the share `plan_easy` of the data plan.
        gamma_used: at the end of the plan; beyond it stands `PROHIBITIVE`.
        plan_easy: share of the plan (0 to 1) that may be used without a thought.
    """

    alpha: float = 1.0
    beta_full: float = 0.0
    beta_empty: float = 2.0
    battery_full: float = 0.8
    battery_empty: float = 0.1
    gamma_unused: float = 0.0
    gamma_used: float = 1.0
    plan_easy: float = 0.5

    def exponents(self, battery: float | None, plan: float | None) -> Exponents:
        """The exponents now.

        Args:
            battery: the level (0 to 1) of a battery that is being used up; None: mains power.
            plan: the share of the data plan that is used, above 1 where it is exceeded; None: there
                is no limit.
        """
        beta, gamma = self.beta_full, self.gamma_unused
        if battery is not None:
            empty = _between(self.battery_full, self.battery_empty, battery)
            beta += empty * (self.beta_empty - self.beta_full)
        if plan is not None:
            used = _between(self.plan_easy, 1.0, plan)
            gamma += used * (self.gamma_used - self.gamma_unused)
            if plan >= 1.0:
                gamma = max(gamma, PROHIBITIVE)
        return Exponents(self.alpha, beta, gamma)

    def objective(self, battery: float | None, plan: float | None) -> MaxSPerE:
        """Delphi's objective with the exponents of now; its note says in words what they follow."""
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
    """How far (0 to 1) a value has come from `start` to `end`; these may be equal."""
    if start == end:
        return float(value >= end)
    return min(max((value - start) / (end - start), 0.0), 1.0)
