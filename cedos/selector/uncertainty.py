"""Completion times in short, and what the selector asks of predictors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from predictors.base import Distribution

# The interval that records show is the middle 90 %.
_LOW, _HIGH = 0.05, 0.95


class CompletionModel(Protocol):
    """Predictors of completion times: columns of a data set in, a distribution per strategy out."""

    @property
    def features(self) -> Sequence[str]:
        """The columns it looks at; each may be missing."""
        ...

    def predict(self, features: Mapping[str, float], /) -> Mapping[str, Distribution]:
        """Seconds to completion by the predictors' strategy names."""
        ...


@dataclass(frozen=True, slots=True)
class Spread:
    """A completion time in short: expected value and the bounds of the 90 % interval, in seconds."""

    mean_s: float
    low_s: float
    high_s: float


def spread_of(distribution: Distribution) -> Spread:
    """A distribution in short."""
    return Spread(distribution.mean, distribution.quantile(_LOW), distribution.quantile(_HIGH))
