"""Learns how wrong a model is, from its predictions for groups that it had not seen.

Why by a small forest, and not by situations: `docs/decisions/completion-errors.md`.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesRegressor

from predictors.error import middles, redistributed
from predictors.held_out import LEAST_SIZE, HeldOutErrors, Shape
from predictors.training.examples import Floats, Settings, dealt
from predictors.training.trees import DIGITS, tree_of
from predictors.tree import Forest

_TREES = 6
_LEAF_ROWS = 30
# A transfer that stood still is as bad as one that took twenty times as long.
_LARGEST = 3.0
_LARGEST_OVER_SIZE = 50.0
_SHARES = (0.5, 0.8)
"""Errors in the lower half, the next 30 % and the upper fifth of expected sizes differ in shape: where
much is expected to go wrong, mostly nothing does, and then everything."""

_BORROWED = 1.0 / 3.0


def errors_of(
    inputs: Floats,
    off: Floats,
    censored: NDArray[np.bool_],
    groups: NDArray[Any],
    names: tuple[str, ...],
    settings: Settings,
) -> HeldOutErrors:
    """Sizes and shapes of held-out errors.

    Places of one group err alike, so sizes learned from rows of a group would suit that group's own
    errors too well, and the intervals came out too narrow. The shapes are therefore those of errors
    over sizes that were learned from other groups.

    `inputs`: shape (rows, inputs).
    `off`: logarithms of real over predicted time of models that had not seen the row's group, shape
    (rows, strategies); NaN where not measured.
    `censored`: where only the lower end of the real time is known.
    `groups`: rows of one group are never on both sides of a split.
    """
    known = np.isfinite(off).any(axis=1)
    inputs, off, censored, groups = inputs[known], off[known], censored[known], groups[known]
    folds = min(settings.folds, len(np.unique(groups)))
    everything = np.arange(len(off))
    sizes = np.empty_like(off)
    for train, test in dealt(groups, folds) if folds > 1 else ((everything, everything),):
        grown = _grown(inputs[train], off[train], settings)
        sizes[test] = grown.predict(inputs[test]).reshape(len(test), -1)
    sizes = np.maximum(sizes, LEAST_SIZE)
    limits = np.unique(np.quantile(sizes, _SHARES))
    classes = np.searchsorted(limits, sizes, side="right")
    over = np.clip(off / sizes, -_LARGEST_OVER_SIZE, _LARGEST_OVER_SIZE)
    shapes = [
        _shape(np.where(classes == number, over, np.nan), over, censored, names)
        for number in range(len(limits) + 1)
    ]
    trees = [tree_of(tree, DIGITS) for tree in _grown(inputs, off, settings).estimators_]
    return HeldOutErrors(
        Forest.average(trees), tuple(float(f"{limit:.6g}") for limit in limits), tuple(shapes)
    )


def _grown(inputs: Floats, off: Floats, settings: Settings) -> ExtraTreesRegressor:
    """Expects the size of every strategy's error; where one was not measured, that of the others."""
    size = np.minimum(np.abs(off), _LARGEST)
    size = np.where(np.isfinite(size), size, np.nanmean(size, axis=1, keepdims=True))
    grown = ExtraTreesRegressor(
        _TREES,
        min_samples_leaf=min(_LEAF_ROWS, max(len(inputs) // 4, 1)),
        max_features=settings.inputs_share,
        random_state=settings.seed,
    )
    grown.fit(inputs, size if size.shape[1] > 1 else size[:, 0])
    return grown


def _shape(
    here: Floats, everywhere: Floats, censored: NDArray[np.bool_], names: tuple[str, ...]
) -> Shape:
    """The middles of equal slices of the errors over their sizes, by strategy.

    One network that dies makes expected times differ more than a class's few rows can prove. So a
    strategy's errors are its own and, with `_BORROWED` of their weight, the others'.
    """
    found = {}
    strategies = [
        _weighted(here[:, k], censored[:, k]) or _weighted(everywhere[:, k], censored[:, k])
        for k in range(len(names))
    ]
    for own, name in enumerate(names):
        pooled = [
            (value, weight if k == own else weight * _BORROWED)
            for k, strategy in enumerate(strategies)
            for value, weight in strategy
        ]
        found[name] = tuple(float(f"{each:.5g}") for each in middles(pooled))
    return found


def _weighted(over: Floats, censored: NDArray[np.bool_]) -> list[tuple[float, float]]:
    """The known errors with their weights, those of weight 0 left out."""
    known = np.isfinite(over)
    values = over[known].tolist()
    weights = redistributed(values, censored[known].tolist())
    return [(value, weight) for value, weight in zip(values, weights, strict=True) if weight]
