"""Figures 2, 4 and 5: correlations of indicators, errors of predictions, a wrong guess of the size.

For Figure 4 the paper trains on a random tenth of its data and tests on the rest (section 6.1), so that
every place is known. Beside it stands the harder question, places never seen (section 7.4). For Figure 5
Delphi's profiler says 3 KB where it does not know the length (section 6.2.1): the model's answer for 3 KB
is compared with the time of the true size.
"""

import math
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from cedos.errors import DataSetError
from emu.data import evaluate
from emu.data.datasets import DataSet, measured_together
from emu.data.evaluate import Progress, examples_of, models_at_random, models_by_group
from emu.statistics import Bootstrap, Floats, ci95, quantile, resampled_groups
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


# Quantiles at which the error's distribution function is given.
QUANTILES = tuple(round(0.02 * k, 2) for k in range(1, 50))

SPLITS: Mapping[str, float | None] = {"random_10_90": 0.1, "random_90_10": 0.9, "by_group": None}


# The folds of groups, as many as the random splits have.
_FOLDS = 10


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
        `{"rows", "quantiles", "splits": {SPLIT: {KIND: {STRATEGY: {"cdf", "median_rel_error",
        "median_rel_error_ci95", "coverage90"}}}}}`; `cdf` holds the errors at `quantiles`.
    """
    data = whole(data)
    found: dict[str, Any] = {split: dict.fromkeys(kinds) for split in splits}
    jobs = {(kind, split): (data, kind, SPLITS[split]) for kind in kinds for split in splits}
    for (kind, split), figures in in_processes(_errors_of, jobs, progress).items():
        found[split][kind] = figures
    return {"rows": len(data), "quantiles": list(QUANTILES), "splits": found}


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


_LEAST_ROWS = 10
_RESAMPLES = 400


def correlations(
    data: DataSet, *, size_bytes: int = 3_000_000, direction: str = "down", places: int = 2
) -> dict[str, Any]:
    """Pearson's correlation of every indicator with the throughput, for each network.

    `size_bytes`: of which transfers; the throughput of small ones is their round-trip time.
    `direction`: of which transfers, `down` or `up`.
    `places`: the same for so many single places, those with most rows.

    Returns:
        `{"wifi": {"all": {indicator: {"r", "r_ci95", "n"}}, PLACE: {...}}, "cellular": {...}}`;
        intervals by bootstrap over places (over rows within one place).

    Raises:
        DataSetError: no such transfers.
    """
    mask = (data.numbers["size_bytes"] == size_bytes) & (
        data.numbers["direction_up"] == float(direction == "up")
    )
    chosen = data.take(mask)
    if not np.count_nonzero(mask):
        raise DataSetError(f"{data.source}: no {direction}loads of {size_bytes} bytes")
    found: dict[str, Any] = {"size_bytes": size_bytes, "direction": direction}
    names, counts = np.unique(chosen.texts["place"], return_counts=True)
    most = [str(name) for name in names[np.argsort(-counts, kind="stable")][:places]]
    for network in ("wifi", "cellular"):
        rate_bps = 8.0 * chosen.numbers["size_bytes"] / chosen.numbers[f"t_{network}_s"]
        indicators = {
            name.removeprefix(f"{network}_"): column
            for name, column in chosen.indicators.items()
            if name.startswith(f"{network}_") or name == "speed_mps"
        }
        found[network] = {"all": _of(indicators, rate_bps, chosen.texts["place"])}
        for place in most:
            here = chosen.texts["place"] == place
            inside = {name: column[here] for name, column in indicators.items()}
            rows = np.arange(np.count_nonzero(here)).astype(str)
            found[network][place] = _of(inside, rate_bps[here], rows)
    return found


def _of(indicators: dict[str, Floats], rate_bps: Floats, clusters: NDArray[Any]) -> dict[str, Any]:
    found: dict[str, dict[str, Any]] = {}
    for name, column in indicators.items():
        known = ~np.isnan(column) & ~np.isnan(rate_bps)
        count = int(np.count_nonzero(known))
        if count < _LEAST_ROWS or np.ptp(column[known]) == 0.0:
            continue
        r = float(np.corrcoef(column[known], rate_bps[known])[0, 1])
        low, high = _interval(column[known], rate_bps[known], clusters[known])
        found[name] = {"r": round(r, 4), "r_ci95": [round(low, 4), round(high, 4)], "n": count}
    return dict(sorted(found.items(), key=lambda item: -abs(item[1]["r"])))


def _interval(a: Floats, b: Floats, clusters: NDArray[Any]) -> list[float]:
    seen = [
        float(np.corrcoef(a[rows], b[rows])[0, 1])
        for rows in resampled_groups(clusters, np.random.default_rng(1), _RESAMPLES)
        if np.ptp(a[rows]) > 0.0 and np.ptp(b[rows]) > 0.0
    ]
    return ci95(seen) if seen else [math.nan, math.nan]
