"""Rows of training data, and the table of inputs made of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import GroupKFold

from predictors.completion import STAND_INS
from predictors.inputs import ALWAYS, inputs_of
from predictors.regressor import Regressor, mirror

Floats = NDArray[np.float64]

# The values of a usual network of its kind, if it was never measured.
_USUAL = {
    "wifi_rtt_s": 0.018,
    "wifi_past1_bps": 20e6,
    "cellular_rtt_s": 0.050,
    "cellular_past1_bps": 10e6,
}


@dataclass(frozen=True, slots=True)
class Examples:
    """Rows to learn from; all arrays have one entry per row."""

    # Some of `predictors.inputs.COLUMNS`, NaN where unknown; `size_bytes` must be there.
    columns: Mapping[str, Floats]
    # Completion times by strategy, NaN where not measured; at the limit where censored.
    times_s: Mapping[str, Floats]
    # By strategy, whether the transfer had not ended by then.
    censored: Mapping[str, NDArray[np.bool_]]
    # Rows of one group (a place, or trials of one path) are never on both sides of a split.
    groups: NDArray[Any]
    # Rows of one instant (a place and a start) share what happened then; None: unknown, every row is
    # taken for an instant of its own.
    instants: NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self.groups)

    def take(self, rows: NDArray[Any]) -> "Examples":
        """Return some of the rows, by index or mask."""
        return Examples(
            {name: column[rows] for name, column in self.columns.items()},
            {name: time_s[rows] for name, time_s in self.times_s.items()},
            {name: censored[rows] for name, censored in self.censored.items()},
            self.groups[rows],
            None if self.instants is None else self.instants[rows],
        )

    def row(self, index: int) -> dict[str, float]:
        """Return one row's known columns, as a model takes them."""
        values = ((name, float(column[index])) for name, column in self.columns.items())
        return {name: value for name, value in values if not np.isnan(value)}


def typical_of(examples: Examples) -> dict[str, float]:
    """Return the medians of the columns that stand in for unknown round trips and rates."""
    typical = {}
    for name in STAND_INS:
        column = examples.columns.get(name, np.empty(0))
        known = column[np.isfinite(column) & (column > 0.0)]
        typical[name] = float(f"{np.median(known):.6g}") if known.size else _USUAL[name]
    return typical


def table(
    examples: Examples, typical: Mapping[str, float], names: tuple[str, ...]
) -> tuple[Floats, Floats]:
    """Return the inputs of the regressors and naive times, row by row by the code of predictions.

    The inputs' columns are those of `INPUTS`, less the last ones that no row has.
    """
    rows = [inputs_of(examples.row(index), typical) for index in range(len(examples))]
    inputs = np.array([values for values, _ in rows], dtype=np.float64)
    # Leave out last inputs that no row has: else each random draw of inputs to split by would have some.
    while inputs.shape[1] > ALWAYS and not np.nan_to_num(inputs[:, -1]).any():
        inputs = inputs[:, :-1]
    return inputs, np.array([[naive_s[name] for name in names] for _, naive_s in rows])


def dealt(groups: NDArray[Any], folds: int) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Yield indices to train on and to test on, `folds` times, no group on both sides."""
    return iter(GroupKFold(folds).split(np.empty((len(groups), 1)), groups=groups))


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of training; the defaults were chosen by cross-validation over groups."""

    kind: str = "trees"  # the family, one of `predictors.training.train.KINDS`
    # How many of them, for families that have several; None: the family's own number.
    trees: int | None = None
    min_leaf: int | None = None  # the fewest rows of a leaf; None: the family's own
    # The share of inputs that each split of `trees` may choose from, one random threshold each
    # (extremely randomised trees).
    inputs_share: float = 0.6
    folds: int = 8  # the groups are dealt to this many folds to learn the errors from
    seed: int = 0


USUAL = Settings()


@dataclass(frozen=True, slots=True)
class Grown:
    """The result of a family's training."""

    # Regressors in plain data, each for some of the strategies, together for all of them in the order
    # of the targets' columns.
    parts: tuple[tuple[tuple[str, ...], Regressor], ...]
    # The same, many rows at once: shape (rows, inputs) to (rows, strategies).
    predict: Callable[[Floats], Floats]


def walk_rows(parts: Sequence[tuple[tuple[str, ...], Regressor]], inputs: Floats) -> Floats:
    """Return `Grown.predict` for fast regressors: row by row, by the code of later predictions."""
    rows = [mirror(row) for row in inputs.tolist()]
    return np.array([[v for _, part in parts for v in part.walk(row)] for row in rows])
