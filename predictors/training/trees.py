"""Grows trees and forests with scikit-learn and makes plain lists of them."""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesRegressor, RandomForestRegressor
from sklearn.tree import DecisionTreeRegressor

from predictors.training.examples import Floats, Grown, Settings, walked
from predictors.tree import Forest, Tree

DIGITS = 5
"""Decimals of what a leaf holds, a logarithm of time: far below the noise of a repeated transfer."""

_LARGEST = np.finfo(np.float64).max


def joint(inputs: Floats, targets: Floats, names: Sequence[str], settings: Settings) -> Grown:
    """Extremely randomised trees that hold all strategies in each leaf.

    A leaf says the median of its rows: times have heavy tails, and a mean is at the mercy of one
    transfer that stood still. Where no row knows all strategies, each has trees of its own.
    """
    whole = np.isfinite(targets).all(axis=1)

    def grow(x: Floats, y: Floats) -> Forest:
        grown = ExtraTreesRegressor(
            settings.trees or 30,
            min_samples_leaf=settings.min_leaf or 8,
            max_features=settings.inputs_share,
            random_state=settings.seed,
        ).fit(x, y if y.shape[1] > 1 else y[:, 0])
        leaves = grown.apply(x).T
        return Forest.average(
            [
                _medians(tree_of(tree, DIGITS), leaf, y)
                for tree, leaf in zip(grown.estimators_, leaves, strict=True)
            ]
        )

    if whole.all():
        return _grown(((tuple(names), grow(inputs, targets)),))
    if whole.any():
        first = _grown(((tuple(names), grow(inputs[whole], targets[whole])),))
        filled = _filled(targets, first.predict(inputs), np.asarray(whole))
        return _grown(((tuple(names), grow(inputs, filled)),))
    return _grown(_apart(inputs, targets, names, grow))


def _filled(targets: Floats, expected: Floats, whole: NDArray[np.bool_]) -> Floats:
    """The targets with what was not measured as it is to be expected by what was.

    Of a transfer that a program made, only the time by one strategy is known. The others' are those of
    a model of the whole rows, moved as far as their errors go along with the one that is known.
    """
    off = targets - expected
    together = off[whole].T @ off[whole]
    along = together / np.diag(together)
    known = np.isfinite(targets)
    moves = np.nan_to_num(off) @ along.T / np.maximum(known.sum(axis=1, keepdims=True), 1)
    return np.where(known, targets, expected + moves)


def single(inputs: Floats, targets: Floats, names: Sequence[str], settings: Settings) -> Grown:
    """Delphi's four: one regression tree of the best splits for each strategy (section 6)."""

    def grow(x: Floats, y: Floats) -> Forest:
        tree = DecisionTreeRegressor(
            min_samples_leaf=settings.min_leaf or 20, random_state=settings.seed
        )
        return Forest.average([tree_of(tree.fit(x, y), DIGITS)])

    return _grown(_apart(inputs, targets, names, grow))


def forest(inputs: Floats, targets: Floats, names: Sequence[str], settings: Settings) -> Grown:

    def grow(x: Floats, y: Floats) -> Forest:
        grown = RandomForestRegressor(
            settings.trees or 10,
            min_samples_leaf=settings.min_leaf or 8,
            max_features=settings.inputs_share,
            random_state=settings.seed,
        ).fit(x, y[:, 0])
        return Forest.average([tree_of(tree, DIGITS) for tree in grown.estimators_])

    return _grown(_apart(inputs, targets, names, grow))


def _apart(
    inputs: Floats,
    targets: Floats,
    names: Sequence[str],
    grow: Callable[[Floats, Floats], Forest],
) -> tuple[tuple[tuple[str, ...], Forest], ...]:
    parts = []
    for name, target in zip(names, targets.T, strict=True):
        known = np.isfinite(target)
        parts.append(((name,), grow(inputs[known], target[known, None])))
    return tuple(parts)


def _medians(tree: Tree, leaf: NDArray[np.intp], targets: Floats) -> Tree:
    """The tree with medians in its leaves; `leaf` is the node in which each row of `targets` ended."""
    nodes, count = np.unique(leaf, return_counts=True)
    end = np.cumsum(count)
    low, high = end - count + (count - 1) // 2, end - count + count // 2
    of_leaf = np.column_stack(
        [0.5 * (each[low] + each[high]) for each in (y[np.lexsort((y, leaf))] for y in targets.T)]
    )
    value = list(tree.value)
    for node, medians in zip(nodes.tolist(), np.round(of_leaf, DIGITS).tolist(), strict=True):
        value[node] = array("d", medians).tobytes()
    return replace(tree, value=tuple(value))


def _grown(parts: tuple[tuple[tuple[str, ...], Forest], ...]) -> Grown:
    return Grown(parts, lambda inputs: walked(parts, inputs))


def tree_of(grown: DecisionTreeRegressor, digits: int | None = None) -> Tree:
    """scikit-learn's tree as ours.

    Args:
        grown: a fitted tree of one or more outputs.
        digits: decimals of the leaves, and two more significant digits of thresholds; None: all.
    """
    nodes = grown.tree_
    leaf = nodes.children_left < 0
    values = nodes.value[:, :, 0]
    # An infinite one parts the missing from all others; JSON knows no infinity.
    thresholds = np.clip(nodes.threshold, -_LARGEST, _LARGEST).tolist()
    if digits is not None:
        values = np.round(values, digits)
        thresholds = [float(f"{threshold:.{digits + 2}g}") for threshold in thresholds]
    return Tree.of(
        feature=np.where(leaf, -1, nodes.feature).tolist(),
        threshold=[0.0 if end else each for end, each in zip(leaf, thresholds, strict=True)],
        left=np.where(leaf, 0, nodes.children_left).tolist(),
        right=np.where(leaf, 0, nodes.children_right).tolist(),
        missing_left=np.where(leaf, False, nodes.missing_go_to_left).astype(int).tolist(),
        value=[each.tolist() if end else [] for end, each in zip(leaf, values, strict=True)],
    )
