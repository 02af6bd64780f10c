"""Delphi's Figure 5: what a guessed transfer size does to the predicted completion time.

Where the length of a transfer is not known, Delphi's profiler says 3 KB (section 6.2.1). The model is
asked with 3 KB, and its answer compared with the time that the true size took.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from emu.experiments.delphi.analyses.prediction import QUANTILES, whole
from emu.lab.data.datasets import DataSet
from emu.lab.data.folds import Progress, examples_of, models_by_group
from predictors.completion import CompletionModel
from predictors.training.examples import Settings

GUESS_BYTES = 3_000.0


def run(
    data: DataSet,
    kinds: Sequence[str] = ("tree", "trees"),
    progress: Progress = lambda share, what: None,
) -> dict[str, Any]:
    """Relative errors with the true and with the guessed size, at places never seen.

    Returns:
        `{"guess_bytes", "quantiles", "kinds": {KIND: {STRATEGY: {SIZE: {"rows", "known": [...],
        "guessed": [...], "median_known", "median_guessed"}}}}}`, errors at `quantiles`.
    """
    data = whole(data)
    examples = examples_of(data, data.texts["group"])
    found = {
        kind: by_size(data, models_by_group(data, examples, Settings(kind), progress))
        for kind in kinds
    }
    return {"guess_bytes": GUESS_BYTES, "quantiles": list(QUANTILES), "kinds": found}


def by_size(data: DataSet, models: Sequence[CompletionModel]) -> dict[str, Any]:
    """By strategy and true size, the errors with the true and with the guessed size."""
    examples = examples_of(data, data.texts["group"])
    rows = [examples.row(k) for k in range(len(data))]
    known = [model.predict(row) for row, model in zip(rows, models, strict=True)]
    guessed = [
        model.predict(row | {"size_bytes": GUESS_BYTES})
        for row, model in zip(rows, models, strict=True)
    ]
    sizes = data.numbers["size_bytes"]
    found: dict[str, Any] = {}
    for name in data.strategies:
        off = [
            np.abs(np.array([each[name].quantile(0.5) for each in of]) / data.times_s[name] - 1.0)
            for of in (known, guessed)
        ]
        found[name] = {}
        for size in np.unique(sizes):
            here = sizes == size
            found[name][str(int(size))] = {
                "rows": int(here.sum()),
                "known": [round(float(v), 5) for v in np.quantile(off[0][here], QUANTILES)],
                "guessed": [round(float(v), 5) for v in np.quantile(off[1][here], QUANTILES)],
                "median_known": float(np.median(off[0][here])),
                "median_guessed": float(np.median(off[1][here])),
            }
    return found
