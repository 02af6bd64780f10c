"""How a decision takes the uncertainty of completion times: Meatballs' methods (dissertation, 4.3).

What `selector.uncertainty`'s evaluators do for quantities of any kind is done here for the strategies of
a transfer, whose times predictors tell as distributions:

- brute force: what is expected, over all that may be;
- error bounds: the same for single strategies; sending twice is worth it if the most that it can save
  exceeds the least that it can cost, by 95 % prediction intervals (4.3.2);
- Bayesian: brute force over what the times are when predictors favour what they favour now (`posterior`);
- trusting: predictions are the truth, so that sending twice never pays.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from cedos.selector.objective import Objective, Outcome
from cedos.selector.uncertainty.error_bounds import prediction_interval
from predictors.base import Distribution

Method = Literal["brute-force", "error-bounds", "bayesian", "trusting"]
BRUTE_FORCE: Method = "brute-force"
ERROR_BOUNDS: Method = "error-bounds"
BAYESIAN: Method = "bayesian"
TRUSTING: Method = "trusting"

WORDS: Mapping[Method, str] = {
    BRUTE_FORCE: "weighed by brute force",
    ERROR_BOUNDS: "weighed by error bounds, generous to sending twice",
    BAYESIAN: "weighed by what came of such predictions before (Bayesian)",
    TRUSTING: "predictions are trusted as if they were certain",
}
"""What people are told of a method."""


def taken(method: Method, predicted: Mapping[str, Distribution]) -> Mapping[str, Distribution]:
    """The times of strategies as the method takes them."""
    if method != TRUSTING:
        return predicted
    return {name: Distribution((time.quantile(0.5),)) for name, time in predicted.items()}


def bounded_cost(
    objective: Objective,
    alone: tuple[Outcome, Distribution],
    others: Sequence[tuple[Outcome, Distribution, float]],
    cost: float,
) -> float | None:
    """What sending twice is reckoned to cost by error bounds; None: the bounds do not overlap.

    Args:
        objective: makes one number of an outcome.
        alone: the best single strategy's outcome and time.
        others: the same of the networks that are used beside, each with its watts.
        cost: of the best single strategy.
    """
    outcome, time = alone
    low_s, _, high_s = prediction_interval(time.samples)
    lows_s = [prediction_interval(each.samples)[0] for _, each, _ in others]
    highs_s = [prediction_interval(each.samples)[2] for _, each, _ in others]
    if max([low_s, *lows_s]) >= min([high_s, *highs_s]):
        return None
    # Most is saved where the best one is at its worst and another at its best.
    both = outcome._replace(time_s=min(lows_s))
    for (more, of, watts), least_s in zip(others, lows_s, strict=True):
        # The least that it takes: its radio is on until its own earliest end.
        both = both._replace(
            energy_j=both.energy_j + more.energy_j - watts * max(of.mean - least_s, 0.0),
            metered_bytes=both.metered_bytes + more.metered_bytes,
            money=both.money + more.money,
            data_s=both.data_s + more.data_s,
        )
    return cost + objective.cost(both) - objective.cost(outcome._replace(time_s=high_s))
