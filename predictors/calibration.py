"""Whether predictions hold: expected against actual times, and how often the interval had them."""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple


class Judged(NamedTuple):
    """A prediction's 5 %, 50 % and 95 % quantiles and its mean, and what came; seconds."""

    low_s: float
    median_s: float
    high_s: float
    mean_s: float
    took_s: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """How well some predictions held.

    Attributes:
        n: how many there were.
        expected_over_actual_median: median of the predicted median over the actual time.
        expected_over_actual_sum: sum of the predicted means over the sum of the actual times.
        coverage90: the share of actual times inside the 90 % interval.
    """

    n: int
    expected_over_actual_median: float
    expected_over_actual_sum: float
    coverage90: float


def calibration(judged: Iterable[Judged]) -> Calibration | None:
    """None where there is nothing to judge by; `took_s` must be positive."""
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
    """`small` (under 100 kB), `medium`, `large` (from 1 MB)."""
    if size_bytes < 100e3:
        return "small"
    return "medium" if size_bytes < 1e6 else "large"
