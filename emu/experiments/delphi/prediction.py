"""Errors of predictions: Figure 4, and Figure 5 for a wrong guess of the size."""

import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, TypeVar

import numpy as np
from threadpoolctl import threadpool_limits

from emu.data import evaluate
from emu.data.datasets import DataSet, measured_together
from emu.data.folds import Progress, examples_of, models_at_random, models_by_group
from emu.statistics import Bootstrap, quantile
from predictors.completion import CompletionModel
from predictors.training.examples import Settings

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


def in_processes(
    function: Callable[..., T], jobs: Mapping[K, tuple[Any, ...]], progress: Progress
) -> dict[K, T]:
    """Return the function's results for each job's arguments, in the order of the jobs."""
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as workers:
        running = {workers.submit(_alone, function, of): key for key, of in jobs.items()}
        for done, job in enumerate(as_completed(running), 1):
            progress(done / len(jobs), str(running[job]))
        return {key: job.result() for job, key in running.items()}


def _alone(function: Callable[..., T], arguments: tuple[Any, ...]) -> T:
    with threadpool_limits(1):  # the jobs share the processors already
        return function(*arguments)


QUANTILES = tuple(round(0.02 * k, 2) for k in range(1, 50))
"""Where the error's distribution function is given."""

PAPER = {"median_rel_error": (0.02, 0.10), "split": "0.1 random", "model": "tree"}
"""The paper's medians across its four trees."""

SPLITS: Mapping[str, float | None] = {"random_10_90": 0.1, "random_90_10": 0.9, "by_group": None}


_FOLDS = 10
"""Of groups, as many as the random splits have."""


def prediction(
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
    """Return the errors of one family under one split; `share`: see `SPLITS`."""
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
    """Return the rows that hold the times of all strategies; DataSetError without any."""
    return data.take(measured_together(data))


GUESS_BYTES = 3_000.0


def size_error(
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
    """Return by strategy and true size the errors with the true and with the guessed size."""
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
