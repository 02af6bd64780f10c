"""The cost of a computation: a linear function of its parameters, fitted to how it went before.

Seconds or joules (dissertation, 4.4.2: application compute time, application energy usage); the
application names the parameters and tells their values with each observation.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from math import isfinite, nan

import numpy as np

from predictors.base import Distribution, Measurement
from predictors.error import ErrorHistory, steady

VALUE = "value"

# A value outside these bounds is no measurement.
_LEAST, _LARGEST = 1e-12, 1e12

_RUNS = 100
_FADING = 0.97
# By how much of its value a run misses the line, and by how much of it the prior may be wrong.
_SCATTER, _UNSURE = 0.1, 0.5

# The least prediction, as a share of the smallest observed value. A line may cross zero.
_LEAST_SHARE = 0.05


class ComputePredictor:
    """Predicts one quantity of a computation; itself a `Predictor`.

    Args:
        name: the quantity's, in its measurements: relative to what the line says, so that one history
            of errors serves all values of the parameters.
        typical: what is predicted before the first run.
    """

    def __init__(
        self, parameters: Sequence[str], name: str = "compute", typical: float = 1.0
    ) -> None:
        self.name = name
        self.features: Sequence[str] = (*parameters, "at_s")
        self._parameters = tuple(parameters)
        self._typical = typical
        self.errors = self.history()  # how wrong its predictions were
        self._runs: deque[tuple[tuple[float, ...], float]] = deque(maxlen=_RUNS)
        self._line: tuple[float, ...] | None = None

    @staticmethod
    def history() -> ErrorHistory:
        """Return an empty history of its errors, which age does not widen.

        A processor does not wander as a radio does; how much the load of a shared one changes from run
        to run is in the errors already.
        """
        return ErrorHistory(growth=steady)

    def observe(
        self, parameters: Mapping[str, float], value: float, at_s: float
    ) -> list[Measurement]:
        """Learn from a run: its parameters, and what it took (seconds, joules).

        A run with an unknown parameter, or without a positive value, is left out.
        """
        point = self._point(parameters)
        if point is None or not _LEAST <= value <= _LARGEST:
            return []
        off = 1.0
        if self._runs:
            off = value / self.point(parameters)
            self.errors.add(off, 1.0, at_s)
        self._runs.append((point, value))
        self._line = None
        return [Measurement(self.name, off, 1.0, at_s)]

    def point(self, parameters: Mapping[str, float]) -> float:
        """Return the expected value; an unknown parameter counts as its average."""
        if not self._runs:
            return self._typical
        if self._line is None:
            self._line = _line(self._runs)
        means = [
            sum([point[k] for point, _ in self._runs]) / len(self._runs)
            for k in range(len(self._parameters))
        ]
        known = [parameters.get(name, nan) for name in self._parameters]
        at = [x if abs(x) <= _LARGEST else mean for x, mean in zip(known, means, strict=True)]
        found = self._line[0] + sum([b * x for b, x in zip(self._line[1:], at, strict=True)])
        least = _LEAST_SHARE * min(value for _, value in self._runs)
        return max(found, least) if isfinite(found) else least

    def predict(self, features: Mapping[str, float], /) -> dict[str, Distribution]:
        """Predict a run with these parameters, begun at `at_s` (default: right after the last)."""
        now_s = features.get("at_s", nan)
        return {VALUE: self.errors.distribution(now_s).scaled(self.point(features))}

    def _point(self, parameters: Mapping[str, float]) -> tuple[float, ...] | None:
        point = tuple([parameters.get(name, nan) for name in self._parameters])
        return point if all(abs(each) <= _LARGEST for each in point) else None


def _line(runs: Sequence[tuple[tuple[float, ...], float]]) -> tuple[float, ...]:
    """Constant and slopes of the least squares of *relative* errors, newer runs first.

    Relative ones, because it is by these that predictions are judged, and because long runs would
    rule otherwise. Until the runs tell it, a constant and every parameter are each taken to cause an
    equal share: two runs of nearly the same length, a little noise apart, say nothing of longer ones.
    """
    size = len(runs[0][0]) + 1
    scales = [sum([abs(point[k]) for point, _ in runs]) / len(runs) or 1.0 for k in range(size - 1)]
    level = sum([value for _, value in runs]) / len(runs)
    matrix = [[0.0] * size for _ in range(size)]
    right = [0.0] * size
    for age, (point, value) in enumerate(reversed(runs)):
        row = [1.0, *(x / scale for x, scale in zip(point, scales, strict=True))]
        weight = _FADING**age * (level / value) ** 2
        for i, left in enumerate(row):
            right[i] += weight * left * value / level
            for j, other in enumerate(row):
                matrix[i][j] += weight * left * other
    for i in range(size):
        matrix[i][i] += (_SCATTER / _UNSURE) ** 2
        right[i] += (_SCATTER / _UNSURE) ** 2 / size
    found: list[float] = np.linalg.solve(matrix, right).tolist()
    return (
        level * found[0],
        *(level * b / scale for b, scale in zip(found[1:], scales, strict=True)),
    )
