"""Learns how wrong a model is, from its predictions for groups that it had not seen."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.tree import DecisionTreeRegressor

from predictors.base import Distribution
from predictors.completion import Errors
from predictors.error import middles, redistributed
from predictors.train_examples import Floats, Settings, dealt
from predictors.train_trees import DIGITS, tree_of
from predictors.tree import Forest

_LEAST_LOG_SPREAD = 1e-3
_BORROWED = 1.0 / 3.0
_LARGEST = 25.0


def errors_of(
    inputs: Floats,
    off: Floats,
    censored: NDArray[np.bool_],
    groups: NDArray[Any],
    names: tuple[str, ...],
    settings: Settings,
) -> Errors:
    """Distributions of held-out errors by situation, as wide as held-out groups show they must be.

    Situations are chosen where errors are small, and places of one group err alike, so intervals
    from such bins come out too narrow (82 to 87 % instead of 90 % on the reference). How much too
    narrow is measured by holding groups out once more, and mended by one factor per strategy.
    """
    folds = min(settings.folds, len(np.unique(groups)))
    needed = np.full(off.shape, np.nan)
    for train, test in dealt(groups, folds):
        situations = _situations(inputs[train], off[train], settings)
        logs = _logs(situations, inputs[train], off[train], censored[train])
        where = np.array([int(situations.predict(row)[0]) for row in inputs[test].tolist()])
        for k in range(off.shape[1]):
            low, middle, high = (
                np.array([Distribution(tuple(of[k])).quantile(q) for of in logs])[where]
                for q in (0.05, 0.5, 0.95)
            )
            distance = off[test, k] - middle
            reach = np.maximum(
                np.where(distance > 0.0, high - middle, middle - low), _LEAST_LOG_SPREAD
            )
            # Of a censored error only its lower end is known: nothing below can be missed.
            missed = np.where(censored[test, k] & (distance < 0.0), 0.0, np.abs(distance))
            needed[test, k] = missed / reach
    factors = np.nanquantile(needed, 0.9, axis=0)
    situations = _situations(inputs, off, settings)
    ratios = []
    for of in _logs(situations, inputs, off, censored):
        widened = {}
        for k, name in enumerate(names):
            middle = Distribution(tuple(of[k])).quantile(0.5)
            # From a handful of rows the factor may be anything: no error is beyond all numbers.
            wide = [
                min(max(middle + factors[k] * (each - middle), -_LARGEST), _LARGEST)
                for each in of[k]
            ]
            widened[name] = tuple(float(f"{each:.6g}") for each in np.exp(wide))
        ratios.append(widened)
    return Errors(situations.trees[0], tuple(ratios))


def _situations(inputs: Floats, off: Floats, settings: Settings) -> Forest:
    """Tells situations by how large the errors are; leaves hold their numbers."""
    size = np.minimum(np.abs(off), 3.0)
    size = np.where(np.isfinite(size), size, np.nanmean(size, axis=1, keepdims=True))
    grown = DecisionTreeRegressor(
        min_samples_leaf=settings.situation_rows, max_leaf_nodes=settings.situations, random_state=0
    )
    tree = tree_of(grown.fit(inputs, size), DIGITS)
    numbers = iter(range(len(tree.feature)))
    value = [[float(next(numbers))] if leaf else [] for leaf in tree.value]
    return Forest((replace(tree, value=value),))


def _logs(
    situations: Forest, inputs: Floats, off: Floats, censored: NDArray[np.bool_]
) -> list[list[list[float]]]:
    """Per situation and strategy, the middles of equal slices of the logarithmic errors.

    One network that dies makes a situation's expected times differ more than its few rows can
    prove. So a strategy's distribution is drawn from its own errors and, with `_BORROWED` of their
    weight, from the other strategies' in the same situation, moved to its own median.
    """
    where = np.array([int(situations.predict(row)[0]) for row in inputs.tolist()])
    found = []
    for number in range(where.max() + 1):
        rows = where == number
        strategies = [
            _weighted(off[rows, k], censored[rows, k]) or _weighted(off[:, k], censored[:, k])
            for k in range(off.shape[1])
        ]
        medians = [middles(strategy, 1)[0] for strategy in strategies]
        of = []
        for own, own_median in enumerate(medians):
            pooled = [
                (value - median + own_median, weight if k == own else weight * _BORROWED)
                for k, (strategy, median) in enumerate(zip(strategies, medians, strict=True))
                for value, weight in strategy
            ]
            of.append(middles(pooled))
        found.append(of)
    return found


def _weighted(off: Floats, censored: NDArray[np.bool_]) -> list[tuple[float, float]]:
    """The known errors with their weights, those of weight 0 left out."""
    known = np.isfinite(off)
    values = off[known].tolist()
    weights = redistributed(values, censored[known].tolist())
    return [(value, weight) for value, weight in zip(values, weights, strict=True) if weight]
