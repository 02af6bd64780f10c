"""Predictions as distributions, the interface of a predictor, and the calibration of predictions.

Calibration compares expected with actual times, and counts how often these were within the interval.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import floor
from statistics import median
from typing import NamedTuple, Protocol


@dataclass(frozen=True, slots=True)
class Distribution:
    """A quantity that is not certain, as equally likely values.

    `samples` ascend and stand for the middles of as many equal slices of probability, so the k-th
    of n (from 0) is the quantile (k + 0.5) / n.
    """

    samples: tuple[float, ...]

    @property
    def mean(self) -> float:
        return sum(self.samples) / len(self.samples)

    def quantile(self, q: float) -> float:
        """Return the value not exceeded with probability `q` (0 to 1), interpolated between samples."""
        position = q * len(self.samples) - 0.5
        if position <= 0.0:
            return self.samples[0]
        below = floor(position)
        if below >= len(self.samples) - 1:
            return self.samples[-1]
        low, high = self.samples[below], self.samples[below + 1]
        return low + (position - below) * (high - low)

    def survival(self, value: float) -> float:
        return 1.0 - bisect_right(self.samples, value) / len(self.samples)

    def scale(self, factor: float) -> "Distribution":
        return Distribution(tuple([sample * factor for sample in self.samples]))

    def shift(self, delay: float) -> "Distribution":
        return Distribution(tuple([sample + delay for sample in self.samples]))

    def known_above(self, value: float) -> "Distribution":
        """Return the distribution of values above `value` (dissertation, 4.3.4).

        If no sample is above it, the result is twice `value`: once a time is longer than all that were
        expected, assume that it lasts for as long again.
        """
        above = self.samples[bisect_right(self.samples, value) :]
        return Distribution(above or (2.0 * value,))

    def left_after(self, value: float) -> "Distribution":
        """Return the rest of a time of which `value` has passed."""
        return self.known_above(value).shift(-value)


def minimum_of(a: Distribution, b: Distribution) -> Distribution:
    """Return the smaller of two independent quantities, by the product of survival functions.

    A redundant strategy's time is the minimum of its parts' times (dissertation, 4.2). The mean is
    exact: the possible values of the minimum are gathered into equal slices, and each slice has its mean.

    Returns:
        A distribution of as many samples as the longer of the two has.
    """
    # Go through the outcomes of the minimum, ascending, and fill slices of equal probability. An outcome
    # with much probability fills several; `room` is what the present slice still lacks.
    atoms = _atoms_of_minimum(a.samples, b.samples)
    count = max(len(a.samples), len(b.samples))
    samples: list[float] = []
    room, gathered = 1.0 / count, 0.0
    for value, probability in atoms:
        left = probability
        while left >= room and len(samples) < count - 1:
            samples.append((gathered + room * value) * count)
            left -= room
            room, gathered = 1.0 / count, 0.0
        gathered += left * value
        room -= left
    # By rounding, a little may be left: it belongs to the last slice.
    samples.append(gathered / (1.0 / count - room) if room < 1.0 / count else atoms[-1][0])
    return Distribution(tuple(samples))


def _atoms_of_minimum(a: Sequence[float], b: Sequence[float]) -> list[tuple[float, float]]:
    """Return value and probability of all outcomes of the minimum, ascending."""
    atoms = []
    left_a, left_b = len(a), len(b)
    scale = 1.0 / (left_a * left_b)
    survival = 1.0
    # The minimum's survival is the product of both: at each value one of the factors falls by a step.
    while left_a and left_b:
        value_a, value_b = a[-left_a], b[-left_b]
        if value_a <= value_b:
            left_a -= 1
        else:
            left_b -= 1
        after = left_a * left_b * scale
        atoms.append((min(value_a, value_b), survival - after))
        survival = after
    return atoms


class Measurement(NamedTuple):
    """A measured value of a predicted quantity, and its next prediction.

    `at_s` is when it was measured, by any clock.
    """

    quantity: str
    value: float
    prediction: float
    at_s: float


class Predictor(Protocol):
    """A predictor, from facts alone: no clock, no I/O, no randomness.

    Models are fitted by `predictors.training.train` elsewhere and at another time. What a predictor
    learns while it is used (`observe`) depends on what it predicts.
    """

    @property
    def features(self) -> Sequence[str]: ...

    def predict(self, features: Mapping[str, float], /) -> Mapping[str, Distribution]: ...


class Judged(NamedTuple):
    """A prediction's 5 %, 50 % and 95 % quantiles and its mean, and the actual time; seconds."""

    low_s: float
    median_s: float
    high_s: float
    mean_s: float
    took_s: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """The calibration of some predictions."""

    n: int  # how many there were
    expected_over_actual_median: float  # median of the predicted median over the actual time
    expected_over_actual_sum: float  # sum of the predicted means over the sum of the actual times
    coverage90: float  # the share of actual times inside the 90 % interval


def calibration(judged: Iterable[Judged]) -> Calibration | None:
    """Return the calibration of some predictions; None: there are none. `took_s` must be positive."""
    cases = list(judged)
    if not cases:
        return None
    return Calibration(
        n=len(cases),
        expected_over_actual_median=median(each.median_s / each.took_s for each in cases),
        expected_over_actual_sum=sum(each.mean_s for each in cases)
        / sum(each.took_s for each in cases),
        coverage90=sum(each.low_s <= each.took_s <= each.high_s for each in cases) / len(cases),
    )


def size_class(size_bytes: float) -> str:
    """Return the class of a size: `small` (under 100 kB), `medium`, `large` (from 1 MB)."""
    if size_bytes < 100e3:
        return "small"
    return "medium" if size_bytes < 1e6 else "large"
