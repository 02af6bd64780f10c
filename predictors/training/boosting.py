"""Gradient boosting on histograms, one sum of small trees for each strategy."""

from collections.abc import Sequence

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor
from threadpoolctl import threadpool_limits

from predictors.training.examples import Floats, Grown, Settings
from predictors.training.trees import DIGITS
from predictors.tree import Forest, Tree

_LARGEST = np.finfo(np.float64).max
_NOTHING: list[float] = []


def boosting(inputs: Floats, targets: Floats, names: Sequence[str], settings: Settings) -> Grown:
    """Trees that each mend what the sum of those before leaves, by its absolute error.

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
    """scikit-learn's boosted trees as ours; `columns` are the inputs that it was given."""
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
