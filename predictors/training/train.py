"""Training of completion models: arrays in, a model of plain lists out.

The regressors are fitted by a family of `learners` (why these trees with these settings:
`docs/decisions/completion-trees.md`). Predictions for groups held out of training then teach the
rest: the size and shape of errors (by a small forest: `docs/decisions/completion-errors.md`), the
prior of places, and the probability that a transfer collapses.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesRegressor

from predictors.completion import LEAST_SIZE, CompletionModel, HeldOutErrors, Shape
from predictors.error import middles, redistributed
from predictors.inputs import COLUMNS, RULES, STRATEGIES, Rule
from predictors.place import KNOTS, Prior
from predictors.regressor import Forest
from predictors.training.examples import (
    USUAL,
    Examples,
    Floats,
    Grown,
    Settings,
    dealt,
    table,
    typical_of,
    walked,
)
from predictors.training.learners import DIGITS, boosting, forest, joint, single, svr, tree_of

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
    """Return sizes and shapes of held-out errors.

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
    """Fit a forest to the size of every strategy's error; a missing one counts like the others."""
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
    """Return the middles of equal slices of the errors over their sizes, by strategy.

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
    """Return the known errors with their weights, without those of weight 0."""
    known = np.isfinite(over)
    values = over[known].tolist()
    weights = redistributed(values, censored[known].tolist())
    return [(value, weight) for value, weight in zip(values, weights, strict=True) if weight]


_MOST_CHANGE = 0.7
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
    """Return the prior of `predictors.place` from held-out errors.

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
    """Return the middle of some rows by strategy, NaN without any: robust against one outage."""
    if not len(rows):
        return np.full(rows.shape[1], np.nan)
    found: Floats = np.clip(np.median(rows, axis=0), -_MOST_CHANGE, _MOST_CHANGE)
    return found


def hazard_of(inputs: Floats, collapsed: NDArray[np.bool_], settings: Settings) -> Forest:
    """Fit a forest to the probability that each strategy collapses.

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
    """Return the nearest covariance matrix of at least this variance in every direction."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2.0)
    found: Floats = (vectors * np.maximum(values, least)) @ vectors.T
    return found


Grow = Callable[[Floats, Floats, Sequence[str], Settings], Grown]


def _rule(
    rule: str, inputs: Floats, targets: Floats, names: Sequence[str], settings: Settings
) -> Grown:
    """Return a naive rule, which learns nothing but its errors."""
    parts = ((tuple(names), Rule(rule, tuple(names))),)
    return Grown(parts, partial(walked, parts))


LEARNED: Mapping[str, Grow] = {
    "trees": joint,
    "tree": single,
    "forest": forest,
    "svr": svr,
    "boosting": boosting,
}
"""Families of models that learn; the first is the one that is shipped."""

KINDS: Mapping[str, Grow] = {**LEARNED, **{name: partial(_rule, name) for name in RULES}}
"""The families, with the naive rules."""


def fit(examples: Examples, settings: Settings = USUAL) -> CompletionModel:
    """Grow a model on all rows, and learns its errors from rows of groups held out.

    A censored time counts as the limit for the regressors, which know no better; in the distribution
    of errors it counts as what larger errors show such ones to be.

    `examples`: the rows; those without any completion time or size are left out.

    Returns:
        A model whose provenance holds the settings and `held_out`, the median relative errors.

    Raises:
        ValueError: too little to learn from; says what is missing.
    """
    grow = KINDS[settings.kind]
    names = tuple(
        name
        for name in STRATEGIES
        if name in examples.times_s and np.isfinite(examples.times_s[name]).any()
    )
    if not names:
        raise ValueError("no completion times to learn from")
    known = np.column_stack([np.isfinite(examples.times_s[name]) for name in names])
    examples = examples.take(np.asarray(known.any(axis=1)))
    folds = min(settings.folds, len(np.unique(examples.groups)))
    if folds < 2:
        raise ValueError("the errors are learned from groups held out: at least two are needed")
    typical = typical_of(examples)
    inputs, naive_s = table(examples, typical, names)
    times_s = np.column_stack([examples.times_s[name] for name in names])
    with np.errstate(invalid="ignore"):
        targets = np.log(times_s / naive_s)
    censored = np.column_stack([examples.censored[name] for name in names])
    held_out = np.full_like(targets, np.nan)
    for train, test in dealt(examples.groups, folds):
        if np.isfinite(targets[train]).any(axis=0).all():
            held_out[test] = grow(inputs[train], targets[train], names, settings).predict(
                inputs[test]
            )
    off = targets - held_out
    if not np.isfinite(off).any(axis=0).all():
        raise ValueError("a strategy was measured in too few groups to learn its errors")
    points_s = naive_s * np.exp(held_out)
    whole = np.isfinite(off).all(axis=1)
    collapsed = times_s > np.maximum(2.0 * points_s, points_s + 1.0)
    log_sizes = np.log(np.maximum(examples.columns["size_bytes"], 1.0))
    instants = np.arange(len(examples)) if examples.instants is None else examples.instants
    return CompletionModel(
        features=tuple(
            name
            for name in COLUMNS
            if name in examples.columns and np.isfinite(examples.columns[name]).any()
        ),
        typical=typical,
        parts=grow(inputs, targets, names, settings).parts,
        errors=errors_of(inputs, off, censored, examples.groups, names, settings),
        hazard=hazard_of(inputs[whole], collapsed[whole], settings) if whole.any() else None,
        places=places_of(off, log_sizes, examples.groups, instants, names),
        provenance={
            "kind": settings.kind,
            "rows": len(examples),
            "groups": len(np.unique(examples.groups)),
            "seed": settings.seed,
            "held_out": {
                name: round(float(np.nanmedian(np.abs(np.expm1(-off[:, k])))), 4)
                for k, name in enumerate(names)
            },
        },
    )
