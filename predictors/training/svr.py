"""Support vector regression as Delphi compared it with its trees (section 6.1)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import KFold
from sklearn.svm import SVR

from predictors.inputs import INPUTS
from predictors.svr import MISSING, Machine, Machines
from predictors.training.examples import Floats, Grown, Settings

_NUMBERS_OF_INPUTS = (4, 8, 12, 20)
_LEAST_MISSING = 0.02

# Fitting takes the square of the rows; how many inputs are too many shows on some of them.
_ROWS_TO_CHOOSE_BY = 800


def svr(inputs: Floats, targets: Floats, names: Sequence[str], settings: Settings) -> Grown:
    """One machine with a radial basis kernel for each strategy, over the N most correlated inputs.

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
        table = np.column_stack(flat)
        self._mean, scale = table.mean(axis=0), table.std(axis=0)
        self._scale = np.where(scale > 0.0, scale, 1.0)
        table = (table - self._mean) / self._scale
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
    """Indices of the columns, the most correlated with the target's ranks first."""
    ranks = np.argsort(np.argsort(target)).astype(np.float64)
    ranks -= ranks.mean()
    with np.errstate(invalid="ignore", divide="ignore"):
        strength = np.abs(ranks @ table) / np.sqrt((table**2).sum(axis=0) * (ranks**2).sum())
    order: NDArray[np.intp] = np.argsort(-np.nan_to_num(strength), kind="stable")
    return order
