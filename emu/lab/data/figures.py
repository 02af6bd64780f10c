"""The figures by which choices are judged, with intervals by bootstrap over groups."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

RESAMPLES = 500
_SLACK = 1.0 + 1e-9


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What a policy's choices came to; one entry per row.

    Attributes:
        cost: in the objective's unit; for Max(S) the completion time.
        best_cost: the oracle's.
        time_s: completion times.
        best_time_s: those of the oracle's choices.
        matches: whether the choice was the oracle's.
        extra_bytes: bytes carried beyond the transfer's own.
        size_bytes: the transfer's own.
    """

    cost: Floats
    best_cost: Floats
    time_s: Floats
    best_time_s: Floats
    matches: NDArray[np.bool_]
    extra_bytes: Floats
    size_bytes: Floats


class Bootstrap:
    """Resamples whole groups: rows of one group are no independent evidence."""

    def __init__(self, groups: NDArray[Any], resamples: int = RESAMPLES, seed: int = 1) -> None:
        _, index = np.unique(groups, return_inverse=True)
        count = int(index.max()) + 1
        drawn = np.random.default_rng(seed).multinomial(
            count, np.full(count, 1.0 / count), size=resamples
        )
        self._weights = drawn[:, index].astype(np.float64)
        self._all = np.ones((1, len(index)))

    def figure(self, key: str, of: Callable[[Floats], Floats]) -> dict[str, Any]:
        """`{key: number, key_ci95: [low, high]}`.

        Args:
            key: the figure's name.
            of: from weights of the rows, shape (resamples, rows), to one number per resample; NaN
                where a resample has nothing to say.
        """
        value = float(of(self._all)[0])
        spread = of(self._weights)
        spread = spread[np.isfinite(spread)]
        low, high = np.quantile(spread, [0.025, 0.975]) if spread.size else (value, value)
        return {key: value, f"{key}_ci95": [float(low), float(high)]}


def judged(outcomes: Outcomes, bootstrap: Bootstrap) -> dict[str, Any]:
    """The figures of one policy under one objective (DESIGN, "Bench files").

    Within 10 %, regret and match are about the objective's own cost, which for Max(S) is the time;
    `mean_s_over_oracle` is the sum of times over the sum of the oracle's.
    """
    regret = outcomes.cost / outcomes.best_cost - 1.0
    return {
        **bootstrap.figure("within10_share", mean(regret <= 0.1 * _SLACK)),
        **bootstrap.figure("oracle_match", mean(outcomes.matches)),
        **bootstrap.figure("regret_mean", mean(regret)),
        **bootstrap.figure("regret_p95", quantile(regret, 0.95)),
        **bootstrap.figure("mean_s", mean(outcomes.time_s)),
        **bootstrap.figure("mean_s_over_oracle", ratio(outcomes.time_s, outcomes.best_time_s)),
        **bootstrap.figure("extra_bytes_share", ratio(outcomes.extra_bytes, outcomes.size_bytes)),
    }


def quantile(values: NDArray[Any], q: float) -> Callable[[Floats], Floats]:
    """A weighted quantile; rows with NaN do not count."""
    known = np.isfinite(values)
    order = np.argsort(values[known])
    ascending = values[known][order]

    def of(weights: Floats) -> Floats:
        if not ascending.size:
            return np.full(len(weights), np.nan)
        reached = np.cumsum(weights[:, known][:, order], axis=1)
        total = reached[:, -1]
        at = (reached < q * total[:, None] / _SLACK).sum(axis=1)
        found: Floats = np.where(total > 0.0, ascending[np.minimum(at, len(ascending) - 1)], np.nan)
        return found

    return of


def share(values: NDArray[np.bool_], known: NDArray[np.bool_]) -> Callable[[Floats], Floats]:
    """The weighted share of `values` among the rows that are `known`."""
    return ratio((values & known).astype(np.float64), known.astype(np.float64))


def mean(values: NDArray[Any]) -> Callable[[Floats], Floats]:
    """The weighted mean."""
    return ratio(values.astype(np.float64), np.ones(len(values)))


def ratio(above: Floats, below: Floats) -> Callable[[Floats], Floats]:
    """The weighted sum of one over that of the other."""

    def of(weights: Floats) -> Floats:
        with np.errstate(invalid="ignore", divide="ignore"):
            found: Floats = (weights @ above) / (weights @ below)
        return found

    return of
