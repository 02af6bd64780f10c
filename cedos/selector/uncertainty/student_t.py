"""Quantiles of Student's t distribution, without scipy: for prediction intervals from few samples."""

from functools import lru_cache
from math import exp, inf, lgamma, log

_HALVINGS = 200
_TERMS = 400


def cdf(t: float, freedom: float) -> float:
    """The probability of at most `t` with `freedom` degrees of freedom (positive, not always whole)."""
    x = freedom / (freedom + t * t)
    tail = 0.5 * _incomplete_beta(0.5 * freedom, 0.5, x)
    return 1.0 - tail if t > 0.0 else tail


@lru_cache(maxsize=1024)
def quantile(q: float, freedom: float) -> float:
    """The value not exceeded with probability `q`.

    Args:
        q: 0 to 1, both excluded.
        freedom: degrees of freedom, positive.

    Raises:
        ValueError: outside of these.
    """
    if not (0.0 < q < 1.0 and 0.0 < freedom < inf):
        raise ValueError(f"no quantile {q} of Student's t with {freedom} degrees of freedom")
    if q < 0.5:
        return -quantile(1.0 - q, freedom)
    if q == 0.5:
        return 0.0

    low, high = 0.0, 1.0
    while cdf(high, freedom) < q and high < 1e150:
        low, high = high, high * 2.0
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        if middle in {low, high}:
            break
        if cdf(middle, freedom) < q:
            low = middle
        else:
            high = middle
    return high


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (Lentz)."""
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - _incomplete_beta(b, a, 1.0 - x)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log(1.0 - x)) / a
    c, d = 1.0, 1.0 / _away(1.0 - (a + b) * x / (a + 1.0))
    found = d
    for m in range(1, _TERMS):
        for factor in (
            m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0)),
        ):
            d = 1.0 / _away(1.0 + factor * d)
            c = _away(1.0 + factor / c)
            found *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return front * found


def _away(value: float) -> float:
    return value if abs(value) > 1e-300 else 1e-300
