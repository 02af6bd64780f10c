"""Families of learners: trees and forests, gradient boosting, and support vector machines.

scikit-learn fits them; the results are plain lists. Boosting works on histograms, one sum of small
trees for each strategy. Support vector regression is as Delphi compared it with its trees (section
6.1).
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import (
    ExtraTreesRegressor,
    HistGradientBoostingRegressor,
    RandomForestRegressor,
)
from sklearn.model_selection import KFold
from sklearn.svm import SVR
from sklearn.tree import DecisionTreeRegressor
from threadpoolctl import threadpool_limits

from predictors.inputs import INPUTS
from predictors.regressor import MISSING, Forest, Machine, Machines, Tree
from predictors.training.examples import Floats, Grown, Settings, walk_rows

# The decimals of a leaf's value, a logarithm of time. They are far below the noise of a repeated
# transfer.
DIGITS = 5

_LARGEST = np.finfo(np.float64).max

# The fewest rows of a leaf of `joint`, and about the most leaves of its trees: with more rows the leaves
# grow, not the model.
_LEAST_LEAF = 8
_MOST_LEAVES = 1500


def joint(inputs: Floats, targets: Floats, names: Sequence[str], settings: Settings) -> Grown:
    """Extremely randomised trees that hold all strategies in each leaf.

    A leaf has the median of its rows: times have heavy tails, and one transfer that stood still would
    rule a mean. If no row knows all strategies, each strategy has trees of its own.
    """
    whole = np.isfinite(targets).all(axis=1)

    def grow(x: Floats, y: Floats) -> Forest:
        grown = ExtraTreesRegressor(
            settings.trees or 30,
            min_samples_leaf=settings.min_leaf or max(_LEAST_LEAF, len(x) // _MOST_LEAVES),
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

    # All rows know all strategies: one forest. Some do: they teach how to fill the gaps of the others.
    # None does: a forest for each strategy.
    if whole.all():
        return _combine(((tuple(names), grow(inputs, targets)),))
    if whole.any():
        first = _combine(((tuple(names), grow(inputs[whole], targets[whole])),))
        filled = _fill(targets, first.predict(inputs), np.asarray(whole))
        return _combine(((tuple(names), grow(inputs, filled)),))
    return _combine(_grow_apart(inputs, targets, names, grow))


def _fill(targets: Floats, expected: Floats, whole: NDArray[np.bool_]) -> Floats:
    """Return the targets, with missing ones replaced by their expectation.

    Of a program's transfer only one strategy's time is known. For the others, take the times that a
    model of the complete rows expects, and correct them by the error of the known one, as far as errors
    correlate.
    """
    # A regression of each strategy's error on each other one's, from the complete rows. With several
    # known strategies, the mean of what they suggest.
    off = targets - expected
    together = off[whole].T @ off[whole]
    along = together / np.diag(together)
    known = np.isfinite(targets)
    moves = np.nan_to_num(off) @ along.T / np.maximum(known.sum(axis=1, keepdims=True), 1)
    return np.where(known, targets, expected + moves)


def single(inputs: Floats, targets: Floats, names: Sequence[str], settings: Settings) -> Grown:
    """Grow Delphi's four: one regression tree of the best splits for each strategy (section 6)."""

    def grow(x: Floats, y: Floats) -> Forest:
        tree = DecisionTreeRegressor(
            min_samples_leaf=settings.min_leaf or 20, random_state=settings.seed
        )
        return Forest.average([tree_of(tree.fit(x, y), DIGITS)])

    return _combine(_grow_apart(inputs, targets, names, grow))


def forest(inputs: Floats, targets: Floats, names: Sequence[str], settings: Settings) -> Grown:

    def grow(x: Floats, y: Floats) -> Forest:
        grown = RandomForestRegressor(
            settings.trees or 10,
            min_samples_leaf=settings.min_leaf or 8,
            max_features=settings.inputs_share,
            random_state=settings.seed,
        ).fit(x, y[:, 0])
        return Forest.average([tree_of(tree, DIGITS) for tree in grown.estimators_])

    return _combine(_grow_apart(inputs, targets, names, grow))


def _grow_apart(
    inputs: Floats, targets: Floats, names: Sequence[str], grow: Callable[[Floats, Floats], Forest]
) -> tuple[tuple[tuple[str, ...], Forest], ...]:
    parts = []
    for name, target in zip(names, targets.T, strict=True):
        known = np.isfinite(target)
        parts.append(((name,), grow(inputs[known], target[known, None])))
    return tuple(parts)


def _medians(tree: Tree, leaf: NDArray[np.intp], targets: Floats) -> Tree:
    """Return the tree with medians in its leaves; `leaf` is the node at which each row ends.

    The rows are sorted by leaf and value, so each leaf is a run, and its median lies in the middle.
    """
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


def _combine(parts: tuple[tuple[tuple[str, ...], Forest], ...]) -> Grown:
    return Grown(parts, lambda inputs: walk_rows(parts, inputs))


def tree_of(grown: DecisionTreeRegressor, digits: int | None = None) -> Tree:
    """Return scikit-learn's tree as ours.

    Args:
        grown: a fitted tree of one or more outputs.
        digits: decimals of the leaves, and two more significant digits of thresholds; None: all.
    """
    nodes = grown.tree_
    leaf = nodes.children_left < 0
    values = nodes.value[:, :, 0]
    # A split of missing from known values has an infinite threshold; JSON knows no infinity.
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


_LARGEST = np.finfo(np.float64).max
_NOTHING: list[float] = []


def boosting(inputs: Floats, targets: Floats, names: Sequence[str], settings: Settings) -> Grown:
    """Grow trees that each correct the sum of those before, by its absolute error.

    Times have heavy tails; the absolute error keeps one transfer that stood still from bending all
    others like it.
    """
    parts, machines = [], []
    for name, target in zip(names, targets.T, strict=True):
        known = np.isfinite(target)
        # A column with a single value cannot be cut into bins.
        usable = np.array([len(np.unique(each[np.isfinite(each)])) > 1 for each in inputs[known].T])
        machine = HistGradientBoostingRegressor(
            loss="absolute_error",
            learning_rate=0.1,
            max_iter=settings.trees or 80,
            max_leaf_nodes=15,
            min_samples_leaf=settings.min_leaf or 20,
            l2_regularization=1.0,
            max_features=settings.inputs_share,
            early_stopping=False,
            random_state=settings.seed,
        )
        # A few thousand rows gain nothing from more threads, which wait for each other by spinning:
        # on a busy machine that took a hundred times as long.
        with threadpool_limits(1, user_api="openmp"):
            machine.fit(inputs[known][:, usable], target[known])
        machines.append((machine, usable))
        parts.append(((name,), forest_of(machine, np.nonzero(usable)[0].tolist())))

    def predict(rows: Floats) -> Floats:
        with threadpool_limits(1, user_api="openmp"):
            return np.column_stack(
                [machine.predict(rows[:, usable]) for machine, usable in machines]
            )

    return Grown(tuple(parts), predict)


def forest_of(machine: HistGradientBoostingRegressor, columns: Sequence[int]) -> Forest:
    """Return scikit-learn's boosted trees as ours; `columns` are the inputs that it was given."""
    # Boosting adds its trees to a constant, which becomes a tree of one leaf.
    start = float(np.ravel(machine._baseline_prediction)[0])
    trees = [Tree.of([-1], [0.0], [0], [0], [False], [[start]])]
    for (grown,) in machine._predictors:
        nodes = grown.nodes
        leaf = nodes["is_leaf"].astype(bool)
        threshold = np.clip(nodes["num_threshold"], -_LARGEST, _LARGEST)
        trees.append(
            Tree.of(
                feature=[
                    -1 if end else columns[int(each)]
                    for end, each in zip(leaf, nodes["feature_idx"], strict=True)
                ],
                # Not rounded: a threshold may be one of the values that it parts.
                threshold=[
                    0.0 if end else each for end, each in zip(leaf, threshold.tolist(), strict=True)
                ],
                left=np.where(leaf, 0, nodes["left"]).astype(int).tolist(),
                right=np.where(leaf, 0, nodes["right"]).astype(int).tolist(),
                missing_left=np.where(leaf, 0, nodes["missing_go_to_left"]).astype(int).tolist(),
                value=[
                    [round(each, DIGITS + 1)] if end else _NOTHING
                    for end, each in zip(leaf, nodes["value"].tolist(), strict=True)
                ],
            )
        )
    return Forest(tuple(trees))


_NUMBERS_OF_INPUTS = (4, 8, 12, 20)
_LEAST_MISSING = 0.02

# The rows by which the number of inputs is chosen. Fitting takes the square of the rows.
_ROWS_TO_CHOOSE_BY = 800


def svr(inputs: Floats, targets: Floats, names: Sequence[str], settings: Settings) -> Grown:
    """Fit a machine with a radial basis kernel for each strategy, over its most correlated inputs.

    The paper ranks indicators by their correlation over all its data and takes the N of the smallest
    testing error; here both look at the training rows only, N by cross-validation among 4, 8, 12, 20.
    """
    made = []
    for target in targets.T:
        known = np.isfinite(target)
        made.append(_Fitted(inputs[known], target[known], settings.seed))
    part = Machines(tuple(each.machine() for each in made))

    def predict(rows: Floats) -> Floats:
        return np.column_stack([each.predict(rows) for each in made])

    return Grown(((tuple(names), part),), predict)


class _Fitted:
    def __init__(self, inputs: Floats, target: Floats, seed: int) -> None:
        self._columns: list[tuple[int, bool]] = []
        self._fill: list[float] = []
        # 1. The columns of the table: each input with its gaps filled, and a flag if gaps are frequent
        # enough.
        flat = []
        for k, column in enumerate(inputs.T):
            known = np.isfinite(column)
            if known.any():
                fill = float(np.median(column[known]))
                self._columns.append((k, False))
                self._fill.append(fill)
                flat.append(np.where(known, column, fill))
            if _LEAST_MISSING < 1.0 - known.mean() < 1.0:
                self._columns.append((k, True))
                self._fill.append(0.0)
                flat.append((~known).astype(np.float64))
        # 2. Standardise, since distances in the kernel have one scale.
        table = np.column_stack(flat)
        self._mean, scale = table.mean(axis=0), table.std(axis=0)
        self._scale = np.where(scale > 0.0, scale, 1.0)
        table = (table - self._mean) / self._scale
        # 3. Choose the number of inputs by cross-validation on some of the rows, then fit to all of them.
        ranked = _by_correlation(table, target)
        some = np.random.default_rng(seed).permutation(len(target))[:_ROWS_TO_CHOOSE_BY]
        folds = KFold(min(4, len(some)))
        off = []
        for count in _NUMBERS_OF_INPUTS:
            used, y = table[some][:, ranked[:count]], target[some]
            errors = [
                np.abs(_machine().fit(used[train], y[train]).predict(used[test]) - y[test])
                for train, test in folds.split(used)
            ]
            off.append(float(np.median(np.concatenate(errors))))
        self._used = ranked[: _NUMBERS_OF_INPUTS[int(np.argmin(off))]]
        self._svr = _machine().fit(table[:, self._used], target)

    def predict(self, inputs: Floats) -> Floats:
        flat = []
        for k in self._used:
            (column, flag), fill = self._columns[k], self._fill[k]
            missing = ~np.isfinite(inputs[:, column])
            value = (
                missing.astype(np.float64) if flag else np.where(missing, fill, inputs[:, column])
            )
            flat.append((value - self._mean[k]) / self._scale[k])
        found: Floats = self._svr.predict(np.column_stack(flat))
        return found

    def machine(self) -> Machine:
        used, fitted = self._used.tolist(), self._svr
        return Machine(
            inputs=tuple(
                f"{MISSING if flag else ''}{INPUTS[column]}"
                for column, flag in (self._columns[k] for k in used)
            ),
            fill=tuple(self._fill[k] for k in used),
            mean=tuple(self._mean[used].tolist()),
            scale=tuple(self._scale[used].tolist()),
            gamma=float(fitted._gamma),
            vectors=tuple(tuple(row) for row in np.round(fitted.support_vectors_, 5).tolist()),
            weights=tuple(fitted.dual_coef_[0].tolist()),
            intercept=float(fitted.intercept_[0]),
        )


def _machine() -> SVR:
    return SVR(kernel="rbf", C=1.0, epsilon=0.05, gamma="scale")


def _by_correlation(table: Floats, target: Floats) -> NDArray[np.intp]:
    """Return the indices of the columns, the most correlated with the target's ranks first."""
    # Ranks of the target instead of its values: heavy tails would rule the correlation otherwise.
    ranks = np.argsort(np.argsort(target)).astype(np.float64)
    ranks -= ranks.mean()
    with np.errstate(invalid="ignore", divide="ignore"):
        strength = np.abs(ranks @ table) / np.sqrt((table**2).sum(axis=0) * (ranks**2).sum())
    order: NDArray[np.intp] = np.argsort(-np.nan_to_num(strength), kind="stable")
    return order
