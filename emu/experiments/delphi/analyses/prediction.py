"""Delphi's Figure 4: how wrong completion times are predicted, by family of models.

The paper trains on a random tenth of its data and tests on the rest (section 6.1), so that every place
is known. Beside it the harder question, places never seen, which its section 7.4 asks of the selector.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from emu.experiments.delphi.processes import in_processes
from emu.lab.data import evaluate
from emu.lab.data.datasets import DataSet, measured_together
from emu.lab.data.folds import Progress, examples_of, models_at_random, models_by_group
from emu.statistics import Bootstrap, quantile
from predictors.completion import CompletionModel
from predictors.training.examples import Settings

QUANTILES = tuple(round(0.02 * k, 2) for k in range(1, 50))
"""Where the error's distribution function is given."""

PAPER = {"median_rel_error": (0.02, 0.10), "split": "0.1 random", "model": "tree"}
"""The paper's medians across its four trees."""

SPLITS: Mapping[str, float | None] = {"random_10_90": 0.1, "random_90_10": 0.9, "by_group": None}


_FOLDS = 10
"""Of groups, as many as the random splits have."""


def run(
    data: DataSet,
    kinds: Sequence[str] = ("tree", "svr", "forest", "boosting", "trees", "last-rate", "harmonic"),
    splits: Sequence[str] = tuple(SPLITS),
    progress: Progress = lambda share, what: None,
) -> dict[str, Any]:
    """Relative errors |predicted median / time - 1| of every family, split and strategy.

    `data`: rows with the times of all their strategies; others are left out.
    `kinds`: families of models (`predictors.training.train.KINDS`).
    `splits`: names of `SPLITS`.

    Returns:
        `{"rows", "paper", "quantiles", "splits": {SPLIT: {KIND: {STRATEGY: {"cdf", "median_rel_error",
        "median_rel_error_ci95", "coverage90"}}}}}`; `cdf` holds the errors at `quantiles`.
    """
    data = whole(data)
    found: dict[str, Any] = {split: dict.fromkeys(kinds) for split in splits}
    jobs = {(kind, split): (data, kind, SPLITS[split]) for kind in kinds for split in splits}
    for (kind, split), figures in in_processes(_errors_of, jobs, progress).items():
        found[split][kind] = figures
    return {"rows": len(data), "paper": PAPER, "quantiles": list(QUANTILES), "splits": found}


def _errors_of(data: DataSet, kind: str, share: float | None) -> dict[str, Any]:
    """The errors of one family under one split; `share`: see `SPLITS`."""
    settings = Settings(kind)
    if share is None:
        grouped = examples_of(data, data.texts["group"])
        models = models_by_group(data, grouped, settings, most_folds=_FOLDS)
    else:
        # Rows are dealt at random, so the errors' intervals are learned from random rows too.
        known = examples_of(data, np.arange(len(data)))
        models = models_at_random(data, known, share, settings)
    return errors(data, models)


def errors(data: DataSet, models: Sequence[CompletionModel]) -> dict[str, Any]:
    examples = examples_of(data, data.texts["group"])
    predicted = [model.predict(examples.row(k)) for k, model in enumerate(models)]
    bootstrap = Bootstrap(data.texts["group"])
    return {
        name: {
            "cdf": [round(float(each), 5) for each in np.quantile(off, QUANTILES)],
            **bootstrap.figure("median_rel_error", quantile(off, 0.5)),
            "coverage90": float(covered.mean()),
        }
        for name, (off, covered) in evaluate.errors(data, predicted).items()
    }


def whole(data: DataSet) -> DataSet:
    """The rows that hold the times of all strategies; DataSetError without any."""
    return data.take(measured_together(data))
