"""The Weibull distribution: survival, what is left after some time, and its fit to sessions cut short.

Without scipy, which would cost the daemon more memory than everything else in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, gamma, inf, isfinite, lgamma, log
from operator import mul

_SHAPES = (0.05, 10.0)
# Thirty years: powers of longer ones would leave the range of numbers.
_LONGEST_S = 1e9
_STEPS = 60
_CLOSE = 1e-12
_TERMS = 500


@dataclass(frozen=True, slots=True)
class Weibull:
    """Durations whose hazard falls (`shape` below 1), stays (1) or rises with time.

    Attributes:
        scale_s: 63 % of durations are shorter.
    """

    shape: float
    scale_s: float

    def survival(self, time_s: float) -> float:
        return exp(-self._power(time_s))

    def survival_after(self, age_s: float, more_s: float) -> float:
        return exp(self._power(age_s) - self._power(age_s + max(more_s, 0.0)))

    def remaining_s(self, age_s: float, q: float) -> float:
        """What is left after `age_s`, not exceeded with probability `q` (0 to below 1)."""
        end = self._power(age_s) - log(1.0 - q)
        whole_s: float = self.scale_s * end ** (1.0 / self.shape)
        return max(whole_s - max(age_s, 0.0), 0.0)

    def mean_residual_s(self, age_s: float) -> float:
        one_over = 1.0 / self.shape
        return self.scale_s * one_over * _scaled_upper_gamma(one_over, self._power(age_s))

    def _power(self, time_s: float) -> float:
        power: float = (min(max(time_s, 0.0), _LONGEST_S) / self.scale_s) ** self.shape
        return power


def fit(
    times_s: Sequence[float],
    censored: Sequence[bool],
    weights: Sequence[float] | None = None,
    near: float = 1.0,
) -> Weibull | None:
    """The most likely Weibull distribution for durations of which some are not over yet.

    Args:
        times_s: how long each lasted, or has lasted so far; positive.
        censored: whether it is known only to be longer.
        weights: what each counts; None: all the same.
        near: a shape that may be close, to be quick; the result is the same.

    Returns:
        None where no duration has ended, or all that have ended are one: nothing tells the shape.
    """
    count = [1.0] * len(times_s) if weights is None else list(weights)
    known = [
        (time_s, weight, over)
        for time_s, weight, over in zip(times_s, count, censored, strict=True)
        if isfinite(time_s) and time_s > 0.0 and weight > 0.0
    ]
    ended = sum([weight for _, weight, over in known if not over])
    if ended <= 0.0 or len({time_s for time_s, _, over in known if not over}) < 2:
        return None
    # Relative to the longest, so that no power overflows.
    longest_s = max(time_s for time_s, _, _ in known)
    logs = [log(time_s / longest_s) for time_s, _, _ in known]
    weighs = [weight for _, weight, _ in known]
    mean_log = sum([w * log(t / longest_s) for t, w, over in known if not over]) / ended
    low, high = _SHAPES
    shape = min(max(near, 2.0 * low), high / 2.0)
    for _ in range(_STEPS):
        powers = [weight * exp(shape * at) for weight, at in zip(weighs, logs, strict=True)]
        total = sum(powers)
        firsts = list(map(mul, powers, logs))
        mean = sum(firsts) / total
        # Of the log-likelihood over the shape, the scale being the most likely one: it falls.
        slope = 1.0 / shape + mean_log - mean
        bend = sum(map(mul, firsts, logs)) / total - mean * mean + 1.0 / (shape * shape)
        if slope > 0.0:
            low = shape
        else:
            high = shape
        before, shape = shape, shape + slope / bend
        if not low < shape < high:  # Newton's step is too long
            shape = (low * high) ** 0.5
        if abs(shape - before) < _CLOSE * shape:
            break
    total = sum([weight * exp(shape * at) for weight, at in zip(weighs, logs, strict=True)])
    return Weibull(shape, longest_s * (total / ended) ** (1.0 / shape))


def _scaled_upper_gamma(a: float, x: float) -> float:
    """exp(x) times the upper incomplete gamma function of `a` at `x`, both positive (x may be 0)."""
    if x <= 0.0:
        return gamma(a) if a < 170.0 else inf
    if x < a + 1.0:
        # The lower function's series, taken from the whole.
        term = total = 1.0 / a
        for n in range(1, _TERMS):
            term *= x / (a + n)
            total += term
            if term < total * 1e-15:
                break
        whole = lgamma(a) + x
        lower: float = total * x**a
        return (exp(whole) if whole < 700.0 else inf) - lower
    # A continued fraction (Lentz), whose factor exp(-x) is left out.
    tiny = 1e-300
    b = x + 1.0 - a
    c, d = 1.0 / tiny, 1.0 / b
    found = d
    for n in range(1, _TERMS):
        an = -n * (n - a)
        b += 2.0
        d = 1.0 / (an * d + b or tiny)
        c = b + an / c or tiny
        found *= c * d
        if abs(c * d - 1.0) < 1e-14:
            break
    upper: float = found * x**a
    return upper
