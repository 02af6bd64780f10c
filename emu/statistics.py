"""Means and resampled figures with their 95 % intervals: Student's, and one seeded bootstrap.

Two ways to resample: `Bootstrap` weights whole groups, for figures that are weighted sums or quantiles;
`resampled` draws rows, for any measure.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cedos.errors import ConfigError
from cedos.selector.uncertainty.error_bounds import quantile as student_quantile

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]
Measure = Callable[[Rows], float]

GROUP_RESAMPLES = 500
ROW_RESAMPLES = 1000
# Two costs within this factor are equal but for rounding.
SLACK = 1.0 + 1e-9


def ci95(drawn: NDArray[Any] | Sequence[float]) -> list[float]:
    """Return the ends of a 95 % interval, from what the resamples gave."""
    return [float(end) for end in np.quantile(drawn, (0.025, 0.975))]


def student_ci95(values: Sequence[float]) -> tuple[float, list[float]]:
    """Return the mean and its 95 % interval by Student's t; no width where there is one value.

    ValueError: no value.
    """
    if not values:
        raise ValueError("a mean is of at least one trial")
    mean_value = float(np.mean(values))
    if len(values) == 1:
        return mean_value, [mean_value, mean_value]
    reach = student_quantile(0.975, len(values) - 1)
    half = reach * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return mean_value, [mean_value - half, mean_value + half]


def trials_figure(
    key: str, values: Sequence[float], digits: int = 5
) -> dict[str, float | list[float]]:
    """Return `{KEY: mean, KEY_ci95: [low, high]}` by Student's t, rounded."""
    mean_value, bounds = student_ci95(values)
    return {key: round(mean_value, digits), f"{key}_ci95": [round(end, digits) for end in bounds]}


def resampled(count: int, draw: np.random.Generator, resamples: int = ROW_RESAMPLES) -> Rows:
    """Return rows drawn with replacement, shape (resamples, count)."""
    return draw.integers(0, count, (resamples, count))


def resampled_groups(
    groups: NDArray[Any], draw: np.random.Generator, resamples: int
) -> Iterator[Rows]:
    """Return all rows of as many groups as there are, drawn with replacement, once per resample."""
    rows_of = [np.flatnonzero(groups == name) for name in np.unique(groups)]
    for _ in range(resamples):
        yield np.concatenate([rows_of[i] for i in draw.integers(0, len(rows_of), len(rows_of))])


def measured(
    measures: Mapping[str, Measure],
    count: int,
    draw: np.random.Generator,
    resamples: int = ROW_RESAMPLES,
    groups: NDArray[Any] | None = None,
) -> dict[str, Any]:
    """Return `{KEY: number, KEY_ci95: [low, high]}` of each measure of rows, from the same resamples.

    With `groups`, one a row, whole groups are drawn.
    """
    samples: Iterable[Rows] = (
        resampled(count, draw, resamples)
        if groups is None
        else list(resampled_groups(groups, draw, resamples))
    )
    figures: dict[str, Any] = {}
    for key, measure in measures.items():
        figures[key] = measure(np.arange(count))
        figures[f"{key}_ci95"] = ci95([measure(rows) for rows in samples])
    return figures


class Bootstrap:
    """Resamples whole groups: rows of one group are no independent evidence."""

    def __init__(self, groups: NDArray[Any]) -> None:
        _, index = np.unique(groups, return_inverse=True)
        count = int(index.max()) + 1
        drawn = np.random.default_rng(1).multinomial(
            count, np.full(count, 1.0 / count), size=GROUP_RESAMPLES
        )
        self._weights = drawn[:, index].astype(np.float64)
        self._all = np.ones((1, len(index)))

    def figure(self, key: str, of: Callable[[Floats], Floats]) -> dict[str, Any]:
        """Return `{key: number, key_ci95: [low, high]}`.

        `of` goes from weights of the rows, shape (resamples, rows), to one number per resample; NaN
        where a resample has nothing to say.
        """
        value = float(of(self._all)[0])
        spread = of(self._weights)
        spread = spread[np.isfinite(spread)]
        return {key: value, f"{key}_ci95": ci95(spread) if spread.size else [value, value]}


def quantile(values: NDArray[Any], q: float) -> Callable[[Floats], Floats]:
    """Return a weighted quantile; rows with NaN do not count."""
    known = np.isfinite(values)
    order = np.argsort(values[known])
    ascending = values[known][order]

    def of(weights: Floats) -> Floats:
        if not ascending.size:
            return np.full(len(weights), np.nan)
        reached = np.cumsum(weights[:, known][:, order], axis=1)
        total = reached[:, -1]
        at = (reached < q * total[:, None] / SLACK).sum(axis=1)
        found: Floats = np.where(total > 0.0, ascending[np.minimum(at, len(ascending) - 1)], np.nan)
        return found

    return of


def share(values: NDArray[np.bool_], known: NDArray[np.bool_]) -> Callable[[Floats], Floats]:
    """Return the weighted share of `values` among the rows that are `known`."""
    return ratio((values & known).astype(np.float64), known.astype(np.float64))


def mean(values: NDArray[Any]) -> Callable[[Floats], Floats]:
    """Return the weighted mean."""
    return ratio(values.astype(np.float64), np.ones(len(values)))


def ratio(above: Floats, below: Floats) -> Callable[[Floats], Floats]:
    """Return the weighted sum of one over that of the other."""

    def of(weights: Floats) -> Floats:
        with np.errstate(invalid="ignore", divide="ignore"):
            found: Floats = (weights @ above) / (weights @ below)
        return found

    return of


def at_least_one(trials: int) -> None:
    if trials < 1:
        raise ConfigError(f"trials = {trials}; at least one is needed")


def beside(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float | list[float] | bool]:
    """Return one policy's cost over another's, trial by trial: the same requests and instants.

    Returns:
        `ratio` of the sums, `difference` with its interval, and whether ours is `worse` beyond it.
    """
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    _, bounds = student_ci95(differences)
    total = sum(theirs)
    return {
        "ratio": round(sum(ours) / total, 4) if total else 1.0,
        **trials_figure("difference", differences),
        "worse": bounds[0] > 0.0,
    }


def beside_simple(
    costs: Mapping[str, Sequence[float]],  # of every policy, trial by trial
    simple: Collection[str],  # the policies that do not decide
    deciding: Collection[str],  # those that do; `adaptive` is one
) -> dict[str, Any]:
    """Compare each policy that decides with all that do not, and with the best of these."""
    best = min(simple, key=lambda name: sum(costs[name]))
    return {
        policy: {
            "best_simple": best,
            "to_best_simple": beside(costs[policy], costs[best]),
            **{f"to_{name}": beside(costs[policy], costs[name]) for name in (*simple, "adaptive")},
        }
        for policy in deciding
    }


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that this share of all values does not exceed."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]
