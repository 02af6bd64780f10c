"""Completion times in short, and what the selector asks of predictors."""

from collections.abc import Mapping, Sequence
from math import exp, log, prod
from statistics import NormalDist
from typing import Final, NamedTuple, Protocol

from predictors.base import Distribution

# The interval that records show is the middle 90 %.
_LOW, _HIGH = 0.05, 0.95
# Its ends are so many times as far from the median (their logarithms) as errors held out say: a daemon
# knows less of a moment than its training data do (docs/decisions/live-contexts.md).
_WIDENING = 1.3
INTERVAL_SIGMAS: Final = _WIDENING * (NormalDist().inv_cdf(_HIGH) - NormalDist().inv_cdf(_LOW))
"""From one end of such an interval to the other where a time's logarithm is normal."""

# A product of more seconds than these may leave the range of numbers.
_FEW = 20


class CompletionModel(Protocol):
    """Predictors of completion times: columns of a data set in, a distribution per strategy out."""

    @property
    def features(self) -> Sequence[str]: ...

    def predict(self, features: Mapping[str, float], /) -> Mapping[str, Distribution]: ...


class Spread(NamedTuple):
    """A completion time in short, in seconds: expected value, 90 % interval, geometric mean.

    The geometric mean is the value to rank by where ratios count (Delphi's objectives, regret): the
    expected time of a network that is probably well, and may hang, is ruled by the rare case.
    """

    mean_s: float
    low_s: float
    high_s: float
    usual_s: float


def spread_of(distribution: Distribution) -> Spread:
    samples = distribution.samples
    count = len(samples)
    # For few samples one product is a third of the work of their logarithms.
    if count <= _FEW:
        usual_s = prod(samples) ** (1.0 / count)
    else:
        usual_s = exp(sum([log(sample) for sample in samples]) / count)
    return Spread(sum(samples) / count, *interval_of(distribution), usual_s)


def interval_of(distribution: Distribution) -> tuple[float, float]:
    """What nine in ten live transfers should end within, s. Means and choices do not depend on it."""
    median = distribution.quantile(0.5)
    low, high = distribution.quantile(_LOW), distribution.quantile(_HIGH)
    return median * (low / median) ** _WIDENING, median * (high / median) ** _WIDENING
