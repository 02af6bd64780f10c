"""Learns what places are like beyond the model, and how often a transfer collapses.

Both come from the held-out errors: what the model gets wrong at groups that it has not seen.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesRegressor

from predictors.place import KNOTS, Prior
from predictors.training.examples import Floats, Settings
from predictors.training.trees import tree_of
from predictors.tree import Forest

_LARGEST = 0.7
_LEAST_PAIRS = 20
_LEAST_SD = 0.01
_SD_PER_MAD = 1.4826
_HAZARD_TREES = 12
_HAZARD_ROWS = 30


def places_of(
    off: Floats,
    log_sizes: Floats,
    groups: NDArray[Any],
    instants: NDArray[Any],
    names: Sequence[str],
) -> Prior:
    """The prior of `predictors.place` from held-out errors.

    What two instants of one group have in common is habit; what only the rows of one instant share is
    chance, however many they are. So the habits' covariance is that of errors at different instants.

    `off`: logarithms of real over predicted time, shape (rows, strategies), NaN where not measured.
    `log_sizes`: logarithms of the sizes in bytes.
    `groups`: rows of one group are of one place.
    `instants`: rows of one instant started together.
    """
    nearest = np.abs(log_sizes[:, None] - np.array(KNOTS)).argmin(axis=1)
    whole = np.isfinite(off).all(axis=1)
    count, knots = off.shape[1], len(KNOTS)
    products = np.zeros((knots * count, knots * count))
    pairs = np.zeros_like(products)
    for group in np.unique(groups):
        here = whole & (groups == group)
        of_instant = np.array(
            [
                [_habit(off[here & (instants == at) & (nearest == j)]) for j in range(knots)]
                for at in np.unique(instants[here])
            ]
        )  # (instants, knots, strategies)
        if len(of_instant) < 2:
            continue
        flat = of_instant.transpose(0, 2, 1).reshape(len(of_instant), -1)
        known = np.isfinite(flat).astype(np.float64)
        value = np.nan_to_num(flat)
        products += np.outer(value.sum(axis=0), value.sum(axis=0)) - value.T @ value
        pairs += np.outer(known.sum(axis=0), known.sum(axis=0)) - known.T @ known
    if pairs.min(initial=np.inf) < _LEAST_PAIRS:
        return Prior.usual(names)
    covariance = products / pairs
    # A few dozen places tell little of so many numbers: half of each comes from what all sizes share.
    blocks = covariance.reshape(count, knots, count, knots)
    shared = np.broadcast_to(blocks.mean(axis=(1, 3))[:, None, :, None], blocks.shape)
    covariance = _floored(0.5 * (blocks + shared).reshape(covariance.shape), _LEAST_SD**2)
    spread = _SD_PER_MAD * np.median(np.abs(off[whole] - np.median(off[whole], axis=0)), axis=0)
    noise = np.maximum(spread**2, _LEAST_SD**2)
    return Prior(
        tuple(names),
        tuple(tuple(float(f"{v:.4g}") for v in row) for row in covariance),
        tuple(float(f"{v:.4g}") for v in noise),
    )


def _habit(rows: Floats) -> Floats:
    """The middle of some rows by strategy, NaN without any: one that stood still is an accident."""
    if not len(rows):
        return np.full(rows.shape[1], np.nan)
    found: Floats = np.clip(np.median(rows, axis=0), -_LARGEST, _LARGEST)
    return found


def hazard_of(inputs: Floats, collapsed: NDArray[np.bool_], settings: Settings) -> Forest:
    """How probable it is that each strategy collapses.

    `collapsed`: whether each strategy took twice its predicted time and a second more, at groups
    held out; shape (rows, strategies).
    """
    grown = ExtraTreesRegressor(
        _HAZARD_TREES,
        min_samples_leaf=min(_HAZARD_ROWS, max(len(inputs) // 4, 1)),
        max_features=settings.inputs_share,
        random_state=settings.seed,
    )
    target = collapsed.astype(np.float64)
    grown.fit(inputs, target if target.shape[1] > 1 else target[:, 0])
    return Forest.average([tree_of(tree, 4) for tree in grown.estimators_])


def _floored(matrix: Floats, least: float) -> Floats:
    """The nearest matrix that is a covariance of at least this variance in every direction."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2.0)
    found: Floats = (vectors * np.maximum(values, least)) @ vectors.T
    return found
