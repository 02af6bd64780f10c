"""The flip-flop filter: quick while a quantity behaves, steady when it jumps about.

Two exponential averages run side by side. A control chart, as factories watch their processes by it,
says which of them speaks: the agile one while the newest value lies within three standard deviations
of the recent ones, the stable one while it does not (dissertation, 4.4.2; the gains are those of its
authors' implementation).
"""

from math import isfinite

_AGILE, _STABLE = 0.1, 0.9
"""What each average keeps of itself when a value comes in."""

_CENTER, _RANGE = 0.1, 0.9
"""The same of the chart's centre line and of the mean step from one value to the next."""

_STEP_OVER_SIGMA = 1.128
"""The mean difference of two normal values in standard deviations (a chart of single values)."""


class FlipFlop:
    def __init__(self) -> None:
        self._agile = self._stable = self._center = self._last = 0.0
        self._step: float | None = None
        self._calm = True
        self.count = 0

    @property
    def estimate(self) -> float | None:
        if not self.count:
            return None
        return self._agile if self._calm else self._stable

    def observe(self, value: float) -> None:
        if not isfinite(value):
            return
        self.count += 1
        if self.count == 1:
            self._agile = self._stable = self._center = self._last = value
            return
        step = abs(value - self._last)
        self._last = value
        self._agile = _AGILE * self._agile + (1.0 - _AGILE) * value
        self._stable = _STABLE * self._stable + (1.0 - _STABLE) * value
        # The first step has nothing to be judged by.
        limit = 3.0 * (step if self._step is None else self._step) / _STEP_OVER_SIGMA
        self._calm = abs(value - self._center) <= limit
        if self._step is None:
            self._step = step
        elif self._calm:
            self._step = _RANGE * self._step + (1.0 - _RANGE) * step
        self._center = _CENTER * self._center + (1.0 - _CENTER) * value
