"""What simulated months say of the controllers, in figures."""

from collections.abc import Mapping, Sequence

from emu.budgets.months import Outcome

SPENT = 0.95
"""With something still to be gained, at least this share of the supply is to be spent."""


def figures(found: Mapping[str, Sequence[Outcome]]) -> dict[str, float]:
    """The figures of ours (`pacer`, without a prefix) and of Odyssey's, on the same months.

    Returns:
        `months`; `bought_over_odyssey_ratio`; and for each controller: `met_share` (months in which the
        plan was not exceeded), `most_spent_share`; `spent_share` (mean share of the supply spent, of
        the months in which what was declined would have used up what is left over),
        `spent_enough_share` (the share of these with at least 95 %), `least_spent_share`;
        `wasted_share` (of all months: more than 5 % were left over, though what was declined in the
        last quarter would have used that up); `bought_of_best_share` (seconds saved over those that
        one who knows the future could have bought, all months together).
    """
    ours, odyssey = found["pacer"], found["odyssey"]
    said = {"months": float(len(ours))}
    for prefix, outcomes in (("", ours), ("odyssey_", odyssey)):
        said |= {f"{prefix}{key}": value for key, value in _of(outcomes).items()}
    bought = [sum(outcome.bought_s for outcome in outcomes) for outcomes in (ours, odyssey)]
    return said | {"bought_over_odyssey_ratio": bought[0] / bought[1]}


def _of(outcomes: Sequence[Outcome]) -> dict[str, float]:
    wanted = [outcome.spent_share for outcome in outcomes if outcome.wanted] or [1.0]
    return {
        "met_share": _mean([float(outcome.met) for outcome in outcomes]),
        "most_spent_share": max(outcome.spent_share for outcome in outcomes),
        "spent_share": _mean(wanted),
        "spent_enough_share": _mean([float(share >= SPENT) for share in wanted]),
        "least_spent_share": min(wanted),
        "wasted_share": _mean([float(outcome.wasted) for outcome in outcomes]),
        "bought_of_best_share": sum(outcome.bought_s for outcome in outcomes)
        / sum(outcome.world.best_s for outcome in outcomes),
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
