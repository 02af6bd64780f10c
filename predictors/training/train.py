"""Training of completion models: arrays in, a model of plain lists out.

The regressors are fitted by a family of `learners` (why these trees with these settings:
`docs/decisions/completion-trees.md`). Predictions for groups held out of training then teach the
size and shape of errors (by a small forest: `docs/decisions/completion-errors.md`).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesRegressor

from predictors.completion import LEAST_SIZE, CompletionModel, HeldOutErrors, Shape
from predictors.error import middles, weigh_censored
from predictors.inputs import COLUMNS, RULES, STRATEGIES, Rule
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
    walk_rows,
)
from predictors.training.learners import DIGITS, boosting, forest, joint, single, svr, tree_of

_TREES = 6
_LEAF_ROWS = 30
# The largest logarithmic time ratio. A transfer that stood still counts as one that took twenty
# times as long.
_LARGEST = 3.0
_LARGEST_OVER_SIZE = 50.0
# The shares at which expected error sizes are divided: the lower half, the next 30 %, the upper
# fifth. Their errors differ in shape: where a large error is expected, most are small, and a few
# are huge.
_SHARES = (0.5, 0.8)

# The weight of other strategies' errors beside a strategy's own.
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

    The errors of one group's places are alike. If sizes were learned from a group's own rows, they would
    suit its errors too well, and intervals would be too narrow. So each group's errors are divided by
    sizes that were learned from the other groups, and the shapes are those of these quotients.

    `inputs`: shape (rows, inputs).
    `off`: logarithms of real over predicted time, shape (rows, strategies), by models that had not seen
    the row's group; NaN where not measured.
    `censored`: where only the lower end of the real time is known.
    `groups`: rows of one group are never on both sides of a split.
    """
    known = np.isfinite(off).any(axis=1)
    inputs, off, censored, groups = inputs[known], off[known], censored[known], groups[known]
    # 1. Predict the size of each row's errors from the other groups' rows.
    folds = min(settings.folds, len(np.unique(groups)))
    everything = np.arange(len(off))
    sizes = np.empty_like(off)
    for train, test in dealt(groups, folds) if folds > 1 else ((everything, everything),):
        grown = _grow(inputs[train], off[train], settings)
        sizes[test] = grown.predict(inputs[test]).reshape(len(test), -1)
    sizes = np.maximum(sizes, LEAST_SIZE)
    # 2. Divide the rows into classes by expected size; each class has its shape of errors over size.
    limits = np.unique(np.quantile(sizes, _SHARES))
    classes = np.searchsorted(limits, sizes, side="right")
    over = np.clip(off / sizes, -_LARGEST_OVER_SIZE, _LARGEST_OVER_SIZE)
    shapes = [
        _shape(np.where(classes == number, over, np.nan), over, censored, names)
        for number in range(len(limits) + 1)
    ]
    # 3. The forest that is kept learns the sizes from all rows.
    trees = [tree_of(tree, DIGITS) for tree in _grow(inputs, off, settings).estimators_]
    return HeldOutErrors(
        Forest.average(trees), tuple(float(f"{limit:.6g}") for limit in limits), tuple(shapes)
    )


def _grow(inputs: Floats, off: Floats, settings: Settings) -> ExtraTreesRegressor:
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

    A class may have too few rows to show how much a dying network changes a strategy's times. So a
    strategy also gets the errors of the others, with `_BORROWED` of their weight.
    """
    found = {}
    strategies = [
        _weigh(here[:, k], censored[:, k]) or _weigh(everywhere[:, k], censored[:, k])
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


def _weigh(over: Floats, censored: NDArray[np.bool_]) -> list[tuple[float, float]]:
    """Return the known errors with their weights, without those of weight 0."""
    known = np.isfinite(over)
    values = over[known].tolist()
    weights = weigh_censored(values, censored[known].tolist())
    return [(value, weight) for value, weight in zip(values, weights, strict=True) if weight]


Grow = Callable[[Floats, Floats, Sequence[str], Settings], Grown]


def _rule(
    rule: str, inputs: Floats, targets: Floats, names: Sequence[str], settings: Settings
) -> Grown:
    """Return a naive rule, which learns nothing but its errors."""
    parts = ((tuple(names), Rule(rule, tuple(names))),)
    return Grown(parts, partial(walk_rows, parts))


# The model families that learn. The first is shipped.
LEARNED: Mapping[str, Grow] = {
    "trees": joint,
    "tree": single,
    "forest": forest,
    "svr": svr,
    "boosting": boosting,
}

# The model families, with the naive rules.
KINDS: Mapping[str, Grow] = {**LEARNED, **{name: partial(_rule, name) for name in RULES}}


def fit(examples: Examples, settings: Settings = USUAL) -> CompletionModel:
    """Grow a model on all rows, and learn its errors from rows of held-out groups.

    A censored time counts as the limit for the regressors, which know no better. In the distribution of
    errors it counts by what larger errors show such times to have been.

    `examples`: the rows; those without any completion time or size are left out.

    Returns:
        A model whose provenance holds the settings and `held_out`, the median relative errors.

    Raises:
        ValueError: too little to learn from; says what is missing.
    """
    # 1. The rows and strategies to learn from, and the groups to hold out.
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
    # 2. The inputs, and as targets the logarithms of real over naive time.
    typical = typical_of(examples)
    inputs, naive_s = table(examples, typical, names)
    times_s = np.column_stack([examples.times_s[name] for name in names])
    with np.errstate(invalid="ignore"):
        targets = np.log(times_s / naive_s)
    censored = np.column_stack([examples.censored[name] for name in names])
    # 3. Predict each group by a model of the others: the errors are those of unknown places. A fold in
    # whose training rows a strategy is missing gives none.
    held_out = np.full_like(targets, np.nan)
    for train, test in dealt(examples.groups, folds):
        if np.isfinite(targets[train]).any(axis=0).all():
            held_out[test] = grow(inputs[train], targets[train], names, settings).predict(
                inputs[test]
            )
    off = targets - held_out
    if not np.isfinite(off).any(axis=0).all():
        raise ValueError("a strategy was measured in too few groups to learn its errors")
    # 4. The model that is kept has learned from all rows.
    return CompletionModel(
        features=tuple(
            name
            for name in COLUMNS
            if name in examples.columns and np.isfinite(examples.columns[name]).any()
        ),
        typical=typical,
        parts=grow(inputs, targets, names, settings).parts,
        errors=errors_of(inputs, off, censored, examples.groups, names, settings),
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
