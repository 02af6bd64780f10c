"""Means of a few trials with their 95 % intervals, as the dissertation's error bars."""

import math
from collections.abc import Sequence
from typing import Final

# Student's t, two-sided 95 %, by degrees of freedom; the normal distribution's beyond.
_T: Final = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
_T_MANY: Final = 2.0


def interval(values: Sequence[float]) -> tuple[float, float, float] | tuple[None, None, None]:
    """Mean, and the ends of Student's interval; None where there is nothing, no width for one."""
    n = len(values)
    if n == 0:
        return None, None, None
    mean = sum(values) / n
    if n == 1:
        return mean, mean, mean
    spread = math.sqrt(sum((each - mean) ** 2 for each in values) / (n - 1))
    half = (_T[n - 2] if n - 2 < len(_T) else _T_MANY) * spread / math.sqrt(n)
    return mean, mean - half, mean + half
