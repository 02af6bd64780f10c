"""What simulated months say of the controllers, in figures."""

from collections.abc import Mapping, Sequence

from emu.experiments.budgets.months import Outcome, months_of

SPENT = 0.95
"""With something still to be gained, at least this share of the supply is to be spent."""


def figures(found: Mapping[str, Mapping[str, Sequence[Outcome]]]) -> dict[str, float]:
    """The figures of ours (`pacer`) and of Odyssey's, on the same months, plan by plan.

    Returns:
        `months`; and with the prefixes "" (a month's data), `energy_` (a day's joules) and `money_` (data
        in units): `periods`, `bought_over_odyssey_ratio` (seconds saved, less what units are worth);
        and for each controller, Odyssey's with `odyssey_` before: `met_share` (periods in which the
        budget was not exceeded), `unavoidable_share` (of all periods, those that use without a choice
        exceeds by itself: nobody could meet them, and they count as not met), `most_spent_share`;
        `spent_share` (mean share of the supply spent, of the periods in which what was declined would
        have used up what is left over), `spent_enough_share` (the share of these with at least 95 %),
        `least_spent_share`;
        `wasted_share` (of all periods: more than 5 % were left over, though what was declined in the
        last quarter would have used that up); `bought_of_best_share` (seconds saved over those that
        one who knows the future could have bought, all periods together).
    """
    summary = {"months": float(months_of(found))}
    for plan, by in found.items():
        prefix = "" if plan == "data" else f"{plan}_"
        summary[f"{prefix}periods"] = float(len(by["pacer"]))
        for name, outcomes in by.items():
            of = prefix if name == "pacer" else f"{prefix}{name}_"
            summary |= {f"{of}{key}": value for key, value in _of(outcomes).items()}
        ours, theirs = (sum(one.gained_s for one in by[name]) for name in ("pacer", "odyssey"))
        summary[f"{prefix}bought_over_odyssey_ratio"] = ours / theirs
    return summary


def _of(outcomes: Sequence[Outcome]) -> dict[str, float]:
    wanted = [outcome.spent_share for outcome in outcomes if outcome.wanted] or [1.0]
    return {
        "met_share": _mean([float(outcome.met) for outcome in outcomes]),
        "unavoidable_share": _mean(
            [float(outcome.world.forced > outcome.world.budget.supply) for outcome in outcomes]
        ),
        "most_spent_share": max(
            outcome.spent / outcome.world.budget.supply for outcome in outcomes
        ),
        "spent_share": _mean(wanted),
        "spent_enough_share": _mean([float(share >= SPENT) for share in wanted]),
        "least_spent_share": min(wanted),
        "wasted_share": _mean([float(outcome.wasted) for outcome in outcomes]),
        "bought_of_best_share": sum(outcome.gained_s for outcome in outcomes)
        / sum(outcome.world.best_s for outcome in outcomes),
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
