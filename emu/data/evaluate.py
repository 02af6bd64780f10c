"""Decision quality, prediction error and coverage of a model on a transfer data set.

Without a model, every row is judged by a model that was trained on the other groups only: a place
never seen. The decision is the daemon's own (`cedos.selector`); Delphi judged its selector in the
same way, on recorded completion times (section 7.3).

Models that may judge a row: those that have not seen its group, or Delphi's random splits.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import GroupKFold

from cedos.errors import ConfigError, DataSetError
from cedos.selector.objective import MaxS, MaxSPerE, Objective
from emu.data.choices import (
    PolicyOutcome,
    can_be_redundant,
    cedos_choices,
    costs,
    energies_j,
    policy_outcome,
    rules,
)
from emu.data.datasets import DataSet, measured_together
from emu.statistics import SLACK, Bootstrap, Floats, mean, quantile, ratio, share
from predictors.base import Distribution
from predictors.completion import CompletionModel
from predictors.inputs import NETWORKS
from predictors.training.examples import USUAL, Examples, Settings
from predictors.training.train import fit

Rows = NDArray[np.bool_]
# Both rates are current, as in the data sets themselves.
FRESH = "fresh"
Progress = Callable[[float, str], None]
_MOST_FOLDS = 25
_RANDOM_FOLDS = 10


def examples_of(data: DataSet, groups: NDArray[Any]) -> Examples:
    starts = data.numbers.get("start_s", np.arange(len(data)))
    instants = np.char.add(np.char.add(data.texts["place"], " "), starts.astype(np.str_))
    return Examples(data.columns, data.times_s, data.censored, groups, instants)


def models_by_group(
    data: DataSet,
    examples: Examples,
    settings: Settings,
    progress: Progress = lambda share, what: None,
    *,
    most_folds: int = _MOST_FOLDS,
) -> list[CompletionModel]:
    """Return for each row a model trained on the other groups, dealt into at most so many folds.

    DataSetError: too few groups, or too little to learn from.
    """
    folds = min(len(np.unique(examples.groups)), most_folds)
    if folds < 3:
        raise DataSetError(
            f"{data.source}: leaving groups out needs at least three of them, it has {folds} "
            f"(in {len(data)} rows with all times); random rows need none, nor does a given model"
        )
    parts = GroupKFold(folds).split(np.empty((len(data), 1)), groups=examples.groups)
    return _trained(data, examples, list(parts), settings, progress)


def models_at_random(
    data: DataSet,
    examples: Examples,
    train_share: float,
    settings: Settings,
    progress: Progress = lambda share, what: None,
) -> list[CompletionModel]:
    """Return for each row a model trained on a random share of the others, the same places among them.

    Delphi's split is 0.1: a tenth to learn from (section 6.1). 0.9 is the usual one. Each row is judged
    once, by one of ten models. ConfigError: the share is not from 0.1 to 0.9. DataSetError: too little
    to learn from.
    """
    if not 1 / _RANDOM_FOLDS <= train_share <= 1 - 1 / _RANDOM_FOLDS:
        raise ConfigError(f"train_share is {train_share:g}; a share from 0.1 to 0.9 is needed")
    part = np.random.default_rng(settings.seed).permutation(len(data)) % _RANDOM_FOLDS
    used = round(train_share * _RANDOM_FOLDS)
    parts = []
    for number in range(_RANDOM_FOLDS):
        ahead = (part - number) % _RANDOM_FOLDS
        parts.append((np.nonzero((ahead > 0) & (ahead <= used))[0], np.nonzero(part == number)[0]))
    return _trained(data, examples, parts, settings, progress)


def _trained(
    data: DataSet,
    examples: Examples,
    parts: list[tuple[NDArray[Any], NDArray[Any]]],
    settings: Settings,
    progress: Progress,
) -> list[CompletionModel]:
    models: list[CompletionModel | None] = [None] * len(data)
    for number, (train, test) in enumerate(parts):
        progress(number / len(parts), f"{settings.kind}: trained {number} of {len(parts)} times")
        try:
            trained = fit(examples.take(train), settings)
        except ValueError as error:
            raise DataSetError(f"{data.source}: {error}") from error
        for index in test.tolist():
            models[index] = trained
    return [each for each in models if each is not None]


def by_age(data: DataSet) -> dict[str, Rows]:
    """Name -> rows: `fresh`; whose rate is old; and of Wi-Fi's old ones, by what is known since.

    Rows of which there are none are left out.
    """
    wifi, cellular = (_numbers(data, f"{network}_rate_age_s") > 0.0 for network in NETWORKS)
    recent = np.isfinite(data.numbers.get("wifi_recent_s", np.full(len(data), np.nan)))
    found = {
        FRESH: ~wifi & ~cellular,
        "wifi old": wifi & ~cellular,
        "wifi old, small transfer known": wifi & ~cellular & recent,
        "wifi old, no small transfer known": wifi & ~cellular & ~recent,
        "cellular old": cellular & ~wifi,
        "both old": wifi & cellular,
    }
    return {name: rows for name, rows in found.items() if rows.any()}


def singles(data: DataSet) -> DataSet:
    """Return the same rows with the networks alone as strategies: nothing hides a wrong belief of one."""
    return data.without({name for name in data.numbers if name.startswith("t_mptcp_")})


def _numbers(data: DataSet, column: str) -> NDArray[np.float64]:
    return np.nan_to_num(data.numbers.get(column, np.zeros(len(data))))


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Outcomes of a policy's choices, one entry per row.

    `cost` is in the objective's unit (for Max(S) the time), `best_cost` and `best_time_s` are those
    of the oracle's choices, `extra_bytes` what was carried beyond the transfer's own.
    """

    cost: Floats
    best_cost: Floats
    time_s: Floats
    best_time_s: Floats
    matches: NDArray[np.bool_]
    extra_bytes: Floats
    size_bytes: Floats


def judged(outcomes: Outcomes, bootstrap: Bootstrap) -> dict[str, Any]:
    """Return the figures of one policy under one objective.

    Within 10 %, regret and match are about the objective's own cost, which for Max(S) is the time;
    `mean_s_over_oracle` is the sum of times over the sum of the oracle's.
    """
    regret = outcomes.cost / outcomes.best_cost - 1.0
    return {
        **bootstrap.figure("within10_share", mean(regret <= 0.1 * SLACK)),
        **bootstrap.figure("oracle_match", mean(outcomes.matches)),
        **bootstrap.figure("regret_mean", mean(regret)),
        **bootstrap.figure("regret_p95", quantile(regret, 0.95)),
        **bootstrap.figure("mean_s", mean(outcomes.time_s)),
        **bootstrap.figure("mean_s_over_oracle", ratio(outcomes.time_s, outcomes.best_time_s)),
        **bootstrap.figure("extra_bytes_share", ratio(outcomes.extra_bytes, outcomes.size_bytes)),
    }


_FAST = "max_s"


OBJECTIVES: Mapping[str, Objective] = {_FAST: MaxS(), "max_s_per_e": MaxSPerE()}


# The name of the completion-time model among the predictors.
MODEL = "completion"


def _quietly(share: float, what: str) -> None:
    pass


def evaluate(
    data: DataSet,  # the rows; those without the time of some strategy are left out
    # Judged as it is; None: trained for each part of the data on all the others.
    model: CompletionModel | None = None,
    *,
    # What is left out together, and resampled together for intervals: `group`, `place`, or `row` (a
    # random split, as in Delphi's section 6.1: places are known then).
    group_by: str = "group",
    settings: Settings = USUAL,  # how models are trained
    progress: Progress = _quietly,  # told of the share done
) -> dict[str, Any]:
    """Judge a model, or, without one, the way of training it.

    Returns:
        `policies`, the figures of `judged` by objective and policy; `ages` where the data tell how old
        rates are: choices between the networks alone.

    Raises:
        DataSetError: too few rows or groups.
    """
    complete = measured_together(data)
    left_out = int((~complete).sum())
    data = data.take(complete)
    groups = np.arange(len(data)) if group_by == "row" else data.texts[group_by]
    examples = examples_of(data, groups)
    rows = [examples.row(index) for index in range(len(data))]
    models = (
        [model] * len(data)
        if model is not None
        else models_by_group(data, examples, settings, progress)
    )
    predicted = [each.predict(row) for row, each in zip(rows, models, strict=True)]
    judge = _Judge(data, groups)
    policies: dict[str, dict[str, PolicyOutcome]] = {}
    for name, objective in OBJECTIVES.items():
        of: dict[str, PolicyOutcome] = {}
        of["cedos"] = judge.outcome(cedos_choices(rows, models, objective, data.strategies))
        if can_be_redundant(data):
            of["cedos-hedged"] = judge.outcome(
                cedos_choices(rows, models, objective, data.strategies, hedged=True)
            )
        of |= {rule: judge.outcome(choice.tolist()) for rule, choice in rules(data).items()}
        policies[name] = of
    found: dict[str, Any] = {
        "rows": len(data),
        "places": len(np.unique(data.texts["place"])),
        "groups": len(np.unique(groups)),
        "rows_left_out": left_out,
        "policies": judge.figures(policies),
        "prediction": {MODEL: prediction(data, predicted, Bootstrap(groups))},
    }
    if any(f"{network}_rate_age_s" in data.numbers for network in NETWORKS):
        found["ages"] = _ages(data, rows, models, predicted, groups)
    progress(1.0, "done")
    return found


def prediction(
    data: DataSet, predicted: list[dict[str, Distribution]], bootstrap: Bootstrap
) -> dict[str, dict[str, Any]]:
    """Per strategy the median of |predicted median / time - 1|, and how many 90 % intervals cover."""
    return {
        name: {
            **bootstrap.figure("median_rel_error", quantile(off, 0.5)),
            **bootstrap.figure("coverage90", share(covered, np.ones(len(data), dtype=np.bool_))),
        }
        for name, (off, covered) in errors(data, predicted).items()
    }


def errors(
    data: DataSet, predicted: Sequence[Mapping[str, Distribution]]
) -> dict[str, tuple[Floats, NDArray[np.bool_]]]:
    """Return |predicted median / time - 1| of each row and strategy, and whether the interval covers it.

    A censored time is covered where the interval reaches beyond the limit, and a prediction beyond
    it is no error.
    """
    found = {}
    for name in data.strategies:
        if not all(name in each for each in predicted):
            continue
        time_s, censored = data.times_s[name], data.censored[name]
        low, middle, high = (
            np.array([each[name].quantile(q) for each in predicted]) for q in (0.05, 0.5, 0.95)
        )
        off = np.abs(np.where(censored, np.minimum(middle, time_s), middle) / time_s - 1.0)
        found[name] = off, (time_s <= high) & ((low <= time_s) | censored)
    return found


def _ages(
    data: DataSet,
    rows: Sequence[Mapping[str, float]],
    models: Sequence[CompletionModel],
    predicted: list[dict[str, Distribution]],
    groups: NDArray[Any],
) -> dict[str, Any]:
    """Choices between the networks alone, Max(S), and predictions, by the age of what is known."""
    alone = singles(data)
    judge, objective = _Judge(alone, groups), OBJECTIVES[_FAST]
    of = {
        name: judge.outcome(cedos_choices(rows, models, objective, alone.strategies, hedged=hedged))
        for name, hedged in (("cedos", False), ("cedos-hedged", True))
    }
    found = {}
    for name, only in by_age(data).items():
        (indices,) = only.nonzero()
        judged_here = judge.figures({_FAST: of}, only)
        found[name] = {
            "rows": len(indices),
            "policies": {policy: figures[_FAST] for policy, figures in judged_here.items()},
            "prediction": prediction(
                alone.take(indices), [predicted[k] for k in indices], Bootstrap(groups[indices])
            ),
        }
    return found


class _Judge:
    """Turns choices into figures: against the oracle, which has no copies and knows all times."""

    def __init__(self, data: DataSet, groups: NDArray[Any]) -> None:
        self._data, self._groups = data, groups
        self.energy_j = energies_j(data)
        self._best: dict[str, PolicyOutcome] = {}
        self._best_cost: dict[str, Floats] = {}
        for name, objective in OBJECTIVES.items():
            fixed = [self.outcome([each] * len(data)) for each in data.strategies]
            cost = np.column_stack([costs(data, each, objective) for each in fixed])
            best = cost.argmin(axis=1)
            self._best[name] = self.outcome([data.strategies[k] for k in best.tolist()])
            self._best_cost[name] = cost.min(axis=1)

    def outcome(self, names: Sequence[str]) -> PolicyOutcome:
        return policy_outcome(self._data, names, self.energy_j)

    def figures(
        self,
        policies: Mapping[str, Mapping[str, PolicyOutcome]],
        only: NDArray[np.bool_] | None = None,
    ) -> dict[str, dict[str, Any]]:
        """Policy -> objective -> figures, of `only` some rows."""
        only = np.ones(len(self._data), dtype=np.bool_) if only is None else only
        if not only.any():
            return {}
        bootstrap = Bootstrap(self._groups[only])
        size_bytes = self._data.numbers["size_bytes"]
        found: dict[str, dict[str, Any]] = {}
        for objective, of in policies.items():
            best = self._best[objective]
            for name, outcome in {"oracle": best, **of}.items():
                cost = costs(self._data, outcome, OBJECTIVES[objective])
                found.setdefault(name, {})[objective] = judged(
                    Outcomes(
                        cost[only],
                        self._best_cost[objective][only],
                        outcome.time_s[only],
                        best.time_s[only],
                        (outcome.names == best.names)[only],
                        outcome.extra_bytes[only],
                        size_bytes[only],
                    ),
                    bootstrap,
                )
        return found
