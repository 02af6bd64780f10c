"""Decision quality, prediction error and coverage of a model on a transfer data set.

Without a model, every row is judged by a model that was trained on the other groups only: a place
never seen. The decision is the daemon's own (`cedos.selector`); Delphi judged its selector in the
same way, on recorded completion times (section 7.3).
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import GroupKFold

from cedos.errors import DataSetError
from cedos.selector.energy import transfer_energy_j
from cedos.selector.objective import MaxS, MaxSPerE, Objective, Outcome
from emu.data.choices import cedos_choice, rules
from emu.data.datasets import DataSet
from emu.data.figures import Bootstrap, Floats, Outcomes, judged, quantile, share
from predictors.base import Distribution
from predictors.completion import CompletionModel
from predictors.train import fit
from predictors.train_examples import USUAL, Examples, Settings

OBJECTIVES: Mapping[str, Objective] = {"max_s": MaxS(), "max_s_per_e": MaxSPerE()}
MODEL = "completion"
"""The name of the completion-time model among the predictors."""

_MOST_FOLDS = 25
_STEADY = 2.0

Progress = Callable[[float, str], None]


def evaluate(
    data: DataSet,
    model: CompletionModel | None = None,
    *,
    group_by: str = "group",
    settings: Settings = USUAL,
    progress: Progress = lambda share, what: None,
) -> dict[str, Any]:
    """Judges a model, or, without one, the way of training it.

    Args:
        data: the rows; those without the time of some strategy are left out.
        model: judged as it is; None: trained for each part of the data on all the others.
        group_by: what is left out together, and resampled together for intervals: `group`, `place`,
            or `row` (a random split, as in Delphi's section 6.1: places are known then).
        settings: how models are trained.
        progress: told of the share done.

    Returns:
        What DESIGN says `evaluate` writes, and `steady`: the same policies on the rows where both
        networks alone took at most twice as long or as short as naively expected.

    Raises:
        DataSetError: too few rows or groups.
    """
    complete = np.logical_and.reduce([np.isfinite(time_s) for time_s in data.times_s.values()])
    if not complete.any():
        raise DataSetError(f"{data.source}: no row holds the times of all its strategies")
    left_out = int((~complete).sum())
    data = data.take(complete)
    groups = np.arange(len(data)) if group_by == "row" else data.texts[group_by]
    examples = examples_of(data, groups)
    rows = [examples.row(index) for index in range(len(data))]
    models = _models(data, examples, model, settings, progress)
    by_rule = {name: choice.tolist() for name, choice in rules(data).items()}
    chosen: dict[str, dict[str, list[str]]] = {}
    for name, objective in OBJECTIVES.items():
        of_cedos = [
            cedos_choice(row, each, objective, data.strategies)
            for row, each in zip(rows, models, strict=True)
        ]
        chosen[name] = {"cedos": of_cedos, **by_rule}
    costs = {name: _costs(data, objective) for name, objective in OBJECTIVES.items()}
    steady = _steady(data, rows, models)
    predicted = [each.predict(row) for row, each in zip(rows, models, strict=True)]
    progress(1.0, "done")
    return {
        "rows": len(data),
        "places": len(np.unique(data.texts["place"])),
        "groups": len(np.unique(groups)),
        "rows_left_out": left_out,
        "policies": _policies(data, chosen, costs, groups),
        "steady": {
            "rows": int(steady.sum()),
            "policies": _policies(data, chosen, costs, groups, steady),
        },
        "prediction": {MODEL: prediction(data, predicted, Bootstrap(groups))},
    }


def examples_of(data: DataSet, groups: NDArray[Any]) -> Examples:
    """A data set as what predictors learn from."""
    starts = data.numbers.get("start_s", np.arange(len(data)))
    instants = np.char.add(np.char.add(data.texts["place"], " "), starts.astype(np.str_))
    return Examples(data.columns, data.times_s, data.censored, groups, instants)


def prediction(
    data: DataSet, predicted: list[dict[str, Distribution]], bootstrap: Bootstrap
) -> dict[str, dict[str, Any]]:
    """Per strategy the median of |predicted median / time - 1|, and how many 90 % intervals cover.

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
        covered = (time_s <= high) & ((low <= time_s) | censored)
        found[name] = {
            **bootstrap.figure("median_rel_error", quantile(off, 0.5)),
            **bootstrap.figure("coverage90", share(covered, np.ones(len(data), dtype=np.bool_))),
        }
    return found


def _models(
    data: DataSet,
    examples: Examples,
    model: CompletionModel | None,
    settings: Settings,
    progress: Progress,
) -> list[CompletionModel]:
    """For each row the model that may judge it."""
    if model is not None:
        return [model] * len(data)
    folds = min(len(np.unique(examples.groups)), _MOST_FOLDS)
    if folds < 3:
        raise DataSetError(
            f"{data.source}: leaving groups out needs at least three of them, it has {folds}"
        )
    models: list[CompletionModel | None] = [None] * len(data)
    parts = GroupKFold(folds).split(np.empty((len(data), 1)), groups=examples.groups)
    for number, (train, test) in enumerate(parts):
        progress(number / folds, f"trained {number} of {folds} times")
        trained = fit(examples.take(train), settings)
        for index in test:
            models[index] = trained
    return [each for each in models if each is not None]


def _costs(data: DataSet, objective: Objective) -> Floats:
    """What every strategy really cost, shape (rows, strategies)."""
    sizes = data.numbers["size_bytes"].tolist()
    ways = ["up" if up else "down" for up in data.numbers["direction_up"]]
    found = np.empty((len(data), len(data.strategies)))
    for k, (name, times_s) in enumerate(data.times_s.items()):
        for row, (size_bytes, way, time_s) in enumerate(
            zip(sizes, ways, times_s.tolist(), strict=True)
        ):
            energy_j = transfer_energy_j(name, size_bytes, way, time_s)
            found[row, k] = objective.cost(Outcome(time_s, energy_j, 0.0, size_bytes))
    return found


def _policies(
    data: DataSet,
    chosen: Mapping[str, Mapping[str, list[str]]],
    costs: Mapping[str, Floats],
    groups: NDArray[Any],
    only: NDArray[np.bool_] | None = None,
) -> dict[str, dict[str, Any]]:
    only = np.ones(len(data), dtype=np.bool_) if only is None else only
    if not only.any():
        return {}
    times_s = np.column_stack(list(data.times_s.values()))[only]
    size_bytes = data.numbers["size_bytes"][only]
    rows = np.arange(len(times_s))
    bootstrap = Bootstrap(groups[only])
    found: dict[str, dict[str, Any]] = {}
    for objective, of_policy in chosen.items():
        cost = costs[objective][only]
        best = cost.argmin(axis=1)
        picks = {
            name: np.array([data.strategies.index(each) for each in choice])[only]
            for name, choice in of_policy.items()
        }
        for name, pick in {"oracle": best, **picks}.items():
            found.setdefault(name, {})[objective] = judged(
                Outcomes(
                    cost[rows, pick],
                    cost[rows, best],
                    times_s[rows, pick],
                    times_s[rows, best],
                    pick == best,
                    np.zeros(len(rows)),
                    size_bytes,
                ),
                bootstrap,
            )
    return found


def _steady(
    data: DataSet, rows: list[dict[str, float]], models: list[CompletionModel]
) -> NDArray[np.bool_]:
    """Where each network alone took what its recent rate and round trip promised, give or take two."""
    steady = np.ones(len(data), dtype=np.bool_)
    naive = [model.naive(row) for row, model in zip(rows, models, strict=True)]
    for name in ("wifi", "cellular"):
        if name in data.strategies:
            ratio = data.times_s[name] / np.array([each[name] for each in naive])
            steady &= (ratio <= _STEADY) & (ratio >= 1.0 / _STEADY)
    return steady
