"""How well a network's transfers were predicted, in one sentence for people."""

from typing import Final

from cedos.selector.rounded import rounded
from predictors.calibration import Calibration

_LEAST: Final = 5
"""Fewer transfers say nothing."""


def sentence(name: str, held: Calibration | None) -> str:
    """Empty: there is nothing to say yet."""
    if held is None or held.n < _LEAST or not held.expected_over_actual_median > 0.0:
        return ""
    times = 1.0 / held.expected_over_actual_median
    inside = round(held.coverage90 * held.n)
    how = "" if 0.95 <= times < 1.05 else f"{rounded(times)} times "
    return (
        f"{name}: transfers took {how}as long as expected (median of {held.n});"
        f" {inside} of {held.n} were within the 90 % interval"
    )
