"""Fits completion models with scikit-learn: arrays in, a model of plain lists out.

Why these trees with these settings: `docs/decisions/completion-trees.md`.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from predictors.completion import CompletionModel
from predictors.inputs import COLUMNS, STRATEGIES
from predictors.rules import RULES, Rule
from predictors.training.boosting import boosting
from predictors.training.errors import errors_of
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
from predictors.training.places import hazard_of, places_of
from predictors.training.svr import svr
from predictors.training.trees import forest, joint, single

Grow = Callable[[Floats, Floats, Sequence[str], Settings], Grown]


def _rule(
    rule: str, inputs: Floats, targets: Floats, names: Sequence[str], settings: Settings
) -> Grown:
    """A naive rule learns nothing but its errors."""
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
"""All families, the naive rules included."""


def fit(examples: Examples, settings: Settings = USUAL) -> CompletionModel:
    """Grows a model on all rows, and learns its errors from rows of groups held out.

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
