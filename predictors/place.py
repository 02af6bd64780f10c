"""A place's habit: its deviation from a general model, in a few numbers with their uncertainty.

The logarithm of real over predicted time is a place's own habit plus chance. The habit has one
value per strategy and size (knots on the logarithmic size axis, straight lines between). All values
are correlated: a transfer over Wi-Fi tells also of MPTCP that begins on Wi-Fi and of larger
transfers. How strongly is the prior, learned from places held out of training. So only the strategy
that carried a transfer needs to be measured, and the others learn from it.

A Kalman filter keeps the estimate. Old transfers count less, and in the end nothing. A sum of
one-sided surprises (Page's test, two-sided) notices that a place has changed, and makes the
estimate uncertain again.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, isfinite, log, sqrt
from typing import Any

KNOTS = (log(3e3), log(100e3), log(3e6))
"""The sizes of the habits' values, in logarithms of bytes; beyond the ends the last value holds."""

MEMORY_TRANSFERS = 150.0
"""A transfer counts 1/e after that many more of its place: the window, with a soft edge."""

MEMORY_S = 14 * 86_400.0
"""And after so many seconds: a place seen last a month ago is nearly new again."""

# Transfers within so many seconds share their chance, so that five at once are worth little more
# than one.
_CHANCE_S = 30.0
# Innovations beyond this many standard deviations are doubted in proportion.
_DOUBT = 2.0
# Page's test: drift that is tolerated, and the sum that raises the alarm, in standard deviations.
_DRIFT = 0.6
_ALARM = 7.0
_RENEWED = 16.0
# Adaptive conformal inference: how far one transfer moves the width of the intervals.
_WIDTH_STEP = 0.08
_MISS = 0.1
_WIDTH = (0.5, 3.0)


@dataclass(frozen=True, slots=True)
class Prior:
    """The prior of a place before its first transfer.

    Attributes:
        covariance: of the habits, row by row; habit k * len(KNOTS) + j is strategy k at knot j.
        noise: variance of one transfer around its place's habit, per strategy.
    """

    strategies: tuple[str, ...]
    covariance: tuple[tuple[float, ...], ...]
    noise: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "strategies": list(self.strategies),
            "covariance": [list(row) for row in self.covariance],
            "noise": list(self.noise),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], strategies: Sequence[str]) -> "Prior":
        """Rebuild a prior for a model of these strategies.

        Raises:
            ValueError: it is none, or one for other strategies.
        """
        try:
            covariance = tuple(tuple(float(v) for v in row) for row in data["covariance"])
            noise = tuple(float(each) for each in data["noise"])
            names = tuple(data["strategies"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a prior of places: {error!r}") from error
        size = len(KNOTS) * len(names)
        if names != tuple(strategies) or len(noise) != len(names):
            raise ValueError(f"a prior of places for {', '.join(names)}")
        if len(covariance) != size or any(len(row) != size for row in covariance):
            raise ValueError(f"a prior of places without its {size} x {size} covariance")
        if not all(isfinite(v) for row in covariance for v in row) or any(
            covariance[k][k] < 0.0 for k in range(size)
        ):
            raise ValueError("a prior of places that is no covariance")
        if not all(isfinite(each) and each > 0.0 for each in noise):
            raise ValueError("a prior of places whose noise is not positive")
        return cls(names, covariance, noise)

    @classmethod
    def usual(cls, strategies: Sequence[str]) -> "Prior":
        """For a model without one: habits of 15 %, alike where strategies share their primary."""

        def alike(a: str, b: str) -> float:
            if a == b:
                return 1.0
            return 0.7 if a.removeprefix("mptcp_") == b.removeprefix("mptcp_") else 0.2

        count = len(KNOTS)
        covariance = tuple(
            tuple(
                0.15**2 * alike(a, b) * exp(-abs(KNOTS[i] - KNOTS[j]) / 7.0)
                for b in strategies
                for j in range(count)
            )
            for a in strategies
            for i in range(count)
        )
        return cls(tuple(strategies), covariance, (0.15**2,) * len(strategies))


class Place:
    """The belief about one place; `at_s` may be any clock's seconds, or None where there is none."""

    def __init__(self, prior: Prior) -> None:
        self._prior = prior
        size = len(prior.covariance)
        self.mean = [0.0] * size
        self.covariance = [list(row) for row in prior.covariance]
        self.surprise = [[0.0, 0.0] for _ in prior.strategies]
        self.width = 1.0
        self.transfers = 0
        self.changes = 0
        self.crowd = 0.0
        self.at_s: float | None = None

    def shifts(self, size_bytes: float) -> list[float]:
        """By strategy, the expected logarithm of real over predicted time at a size."""
        j, share = knot(size_bytes)
        mean, count = self.mean, len(KNOTS)
        if share == 0.0:
            return mean[j::count]
        return [
            a + share * (b - a) for a, b in zip(mean[j::count], mean[j + 1 :: count], strict=True)
        ]

    def learn(
        self, strategy: int, size_bytes: float, off: float, at_s: float | None, covered: bool
    ) -> None:
        """Learn from one transfer.

        `off`: logarithm of its real over its predicted time, before this place's shift.
        `at_s`: when it ended; a clock that went backwards counts as standing still.
        `covered`: whether its time lay in the interval that was predicted here.
        """
        self._fade(at_s)
        j, share = knot(size_bytes)
        at = strategy * len(KNOTS) + j
        weights = [(at, 1.0 - share), (at + 1, share)] if share else [(at, 1.0)]
        covariance = self.covariance
        gain = [sum([w * row[k] for k, w in weights]) for row in covariance]
        noise = self._prior.noise[strategy] * (1.0 + self.crowd)
        if at_s is not None:
            self.crowd += 1.0
        doubt = sum([w * gain[k] for k, w in weights])
        innovation = off - sum([w * self.mean[k] for k, w in weights])
        standard = innovation / sqrt(doubt + noise)
        if abs(standard) > _DOUBT:
            # Times have heavy tails: one transfer that stood still does not make a place.
            noise *= (standard / _DOUBT) ** 2
        total = doubt + noise
        step = innovation / total
        for k, each in enumerate(gain):
            self.mean[k] += each * step
            row, factor = covariance[k], each / total
            for i, other in enumerate(gain):
                row[i] -= factor * other
        self.transfers += 1
        self.width *= exp(_WIDTH_STEP * ((0.0 if covered else 1.0) - _MISS))
        self.width = min(max(self.width, _WIDTH[0]), _WIDTH[1])
        self._watch(strategy, min(max(standard, -3.0), 3.0))

    def _watch(self, strategy: int, standard: float) -> None:
        sums = self.surprise[strategy]
        sums[0] = max(0.0, sums[0] + standard - _DRIFT)
        sums[1] = max(0.0, sums[1] - standard - _DRIFT)
        if max(sums) > _ALARM:
            self.changes += 1
            # Surprised for so long: the place is less like others than the prior believes.
            self.covariance = [[_RENEWED * v for v in row] for row in self._prior.covariance]
            self.surprise = [[0.0, 0.0] for _ in self.surprise]

    def _fade(self, at_s: float | None) -> None:
        elapsed_s = 0.0
        if at_s is not None:
            if self.at_s is not None:
                elapsed_s = max(at_s - self.at_s, 0.0)
            self.at_s = at_s
            self.crowd *= exp(-elapsed_s / _CHANCE_S)
        keep = exp(-1.0 / MEMORY_TRANSFERS - elapsed_s / MEMORY_S)
        self.mean = [each * keep for each in self.mean]
        old, new = keep * keep, 1.0 - keep * keep
        self.covariance = [
            [old * v + new * p for v, p in zip(row, prior, strict=True)]
            for row, prior in zip(self.covariance, self._prior.covariance, strict=True)
        ]

    def to_dict(self) -> dict[str, Any]:
        return {
            "mean": self.mean,
            "covariance": self.covariance,
            "surprise": self.surprise,
            "width": self.width,
            "transfers": self.transfers,
            "changes": self.changes,
            "crowd": self.crowd,
            "at_s": self.at_s,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], prior: Prior) -> "Place":
        """Rebuild a belief; ValueError where it is none of this prior's."""
        place = cls(prior)
        try:
            place.mean = [float(each) for each in data["mean"]]
            place.covariance = [[float(v) for v in row] for row in data["covariance"]]
            place.surprise = [[float(v) for v in pair] for pair in data["surprise"]]
            place.width = min(max(float(data["width"]), _WIDTH[0]), _WIDTH[1])
            place.transfers, place.changes = int(data["transfers"]), int(data["changes"])
            place.crowd = max(float(data["crowd"]), 0.0)
            place.at_s = None if data["at_s"] is None else float(data["at_s"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a place's state: {error!r}") from error
        size = len(prior.covariance)
        shapes = [len(place.mean), len(place.covariance), *map(len, place.covariance)]
        pairs = [
            len(prior.strategies) == len(place.surprise),
            *(len(p) == 2 for p in place.surprise),
        ]
        if shapes != [size] * (size + 2) or not all(pairs):
            raise ValueError("a place's state of another shape")
        numbers = [
            *place.mean,
            *(v for row in place.covariance for v in row),
            place.width,
            place.crowd,
        ]
        if not all(isfinite(each) for each in numbers):
            raise ValueError("a place's state with numbers that are none")
        return place


def knot(size_bytes: float) -> tuple[int, float]:
    """Return the knot below a size, and the share of the way to the next one (0 beyond the ends)."""
    at = log(max(size_bytes, 1.0))
    if at <= KNOTS[0]:
        return 0, 0.0
    if at >= KNOTS[-1]:
        return len(KNOTS) - 1, 0.0
    j = bisect_right(KNOTS, at) - 1
    return j, (at - KNOTS[j]) / (KNOTS[j + 1] - KNOTS[j])
