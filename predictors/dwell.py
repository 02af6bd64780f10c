"""Dwell times: how long this host stays in range of its access point.

Dwell times follow a Weibull distribution whose hazard falls with time: a host soon leaves an access
point that it met a moment ago, and stays at one where it has been for long (dissertation, 4.4.2). The
distribution of an access point is fitted to its own sessions and, with the weight of one session, to
that of all access points. That one is fitted to all sessions and to a generic prior.

The Weibull distribution is implemented here, since scipy would take more memory than the rest of the
daemon.
"""

from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, gamma, inf, isfinite, lgamma, log
from operator import mul

from predictors.base import Distribution

_SHAPES = (0.05, 10.0)
# Thirty years. Powers of longer times would leave the range of numbers.
_FOREVER_S = 1e9
_STEPS = 60
_CLOSE = 1e-12
_TERMS = 500


@dataclass(frozen=True, slots=True)
class Weibull:
    """Durations whose hazard falls (`shape` below 1), stays (1) or rises with time."""

    shape: float
    scale_s: float  # 63 % of durations are shorter

    def survival(self, time_s: float) -> float:
        return exp(-self._power(time_s))

    def survival_after(self, age_s: float, more_s: float) -> float:
        return exp(self._power(age_s) - self._power(age_s + max(more_s, 0.0)))

    def remaining_s(self, age_s: float, q: float) -> float:
        """Return the rest after `age_s`, not exceeded with probability `q` (0 to below 1)."""
        # S(age + rest) = (1 - q) S(age), solved for the rest; S is the survival function.
        end = self._power(age_s) - log(1.0 - q)
        whole_s: float = self.scale_s * end ** (1.0 / self.shape)
        return max(whole_s - max(age_s, 0.0), 0.0)

    def mean_residual_s(self, age_s: float) -> float:
        one_over = 1.0 / self.shape
        return self.scale_s * one_over * _scaled_upper_gamma(one_over, self._power(age_s))

    def _power(self, time_s: float) -> float:
        power: float = (min(max(time_s, 0.0), _FOREVER_S) / self.scale_s) ** self.shape
        return power


def fit(
    times_s: Sequence[float],  # how long each lasted, or has lasted so far; positive
    censored: Sequence[bool],  # whether it is known only to be longer
    weights: Sequence[float] | None = None,  # what each counts; None: all the same
    near: float = 1.0,  # a guess of the shape: it saves steps, and does not change the result
) -> Weibull | None:
    """Return the most likely Weibull distribution for durations, some of them unfinished.

    Returns:
        None unless at least two different durations have ended: without them nothing tells the shape.
    """
    count = [1.0] * len(times_s) if weights is None else list(weights)
    known = [
        (time_s, weight, over)
        for time_s, weight, over in zip(times_s, count, censored, strict=True)
        if isfinite(time_s) and time_s > 0.0 and weight > 0.0
    ]
    # Without two different ended durations the shape is undetermined.
    ended = sum([weight for _, weight, over in known if not over])
    if ended <= 0.0 or len({time_s for time_s, _, over in known if not over}) < 2:
        return None
    # Divide by the longest duration, so that no power overflows.
    longest_s = max(time_s for time_s, _, _ in known)
    logs = [log(time_s / longest_s) for time_s, _, _ in known]
    weighs = [weight for _, weight, _ in known]
    mean_log = sum([w * log(t / longest_s) for t, w, over in known if not over]) / ended
    # Newton's method for the shape, kept within an interval that shrinks around the root.
    low, high = _SHAPES
    shape = min(max(near, 2.0 * low), high / 2.0)
    for _ in range(_STEPS):
        powers = [weight * exp(shape * at) for weight, at in zip(weighs, logs, strict=True)]
        total = sum(powers)
        firsts = list(map(mul, powers, logs))
        mean = sum(firsts) / total
        # The derivative of the log-likelihood by the shape, with the most likely scale. It falls with the
        # shape, so its sign tells on which side the root is.
        slope = 1.0 / shape + mean_log - mean
        bend = sum(map(mul, firsts, logs)) / total - mean * mean + 1.0 / (shape * shape)
        if slope > 0.0:
            low = shape
        else:
            high = shape
        before, shape = shape, shape + slope / bend
        # If Newton's step leaves the interval, take the geometric middle of the interval instead.
        if not low < shape < high:
            shape = (low * high) ** 0.5
        if abs(shape - before) < _CLOSE * shape:
            break
    # With the shape known, the most likely scale follows directly.
    total = sum([weight * exp(shape * at) for weight, at in zip(weighs, logs, strict=True)])
    return Weibull(shape, longest_s * (total / ended) ** (1.0 / shape))


def _scaled_upper_gamma(a: float, x: float) -> float:
    """Return exp(x) times the upper incomplete gamma function of `a` at `x`, both positive."""
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


# The prior of a session: median 41 s, one of 25 longer than 5 min. It is the walk of the
# dissertation's Table 4.2.
GENERIC = Weibull(shape=0.77, scale_s=66.0)

REMAINING = "remaining_s"
SLICES = 20

# The weight of the generic prior beside the sessions of all access points, counted in sessions.
_GENERIC_WORTH = 4.0

# The weight of all access points' distribution beside an access point's own sessions, counted in
# sessions.
_OTHERS_WORTH = 1.0

_SESSIONS = 50
_ALL_SESSIONS = 200
_POINTS = 256
_LEAST_S, _LONGEST_S = 0.1, 1e8


class DwellPredictor:
    """A predictor of the rest of a session at an access point, from earlier sessions."""

    features: Sequence[str] = ("age_s",)

    def __init__(self, generic: Weibull = GENERIC) -> None:
        self._generic = generic
        self._at: OrderedDict[str, deque[tuple[float, bool]]] = OrderedDict()
        self._all: deque[tuple[float, bool]] = deque(maxlen=_ALL_SESSIONS)
        self._fitted: dict[str | None, Weibull] = {}

    def observe(self, point: str, dwell_s: float, censored: bool = False) -> None:
        """Record a session.

        `dwell_s`: how long it lasted; what is not positive and finite is no session.
        `censored`: whether it was ended from here (switched off, suspended), not by the network.
        """
        if not 0.0 < dwell_s < inf:
            return
        # Keep the last sessions of this point, of all points, and of a bounded number of points.
        session = (min(max(dwell_s, _LEAST_S), _LONGEST_S), censored)
        if point not in self._at and len(self._at) >= _POINTS:
            self._at.popitem(last=False)
        self._at.setdefault(point, deque(maxlen=_SESSIONS)).append(session)
        self._at.move_to_end(point)
        self._all.append(session)
        self._fitted.clear()

    def weibull(self, point: str | None = None) -> Weibull:
        """Return the distribution of an access point's sessions; None: of an unknown one."""
        found = self._fitted.get(point)
        if found is None:
            sessions = self._at.get(point) if point is not None else self._all
            # An access point without sessions has the distribution of all others.
            if point is not None and not sessions:
                return self.weibull()
            prior, worth = (
                (self._generic, _GENERIC_WORTH)
                if point is None
                else (self.weibull(), _OTHERS_WORTH)
            )
            found = self._fitted[point] = _fit(sessions or (), prior, worth)
        return found

    def remaining(self, point: str | None, age_s: float) -> Distribution:
        of = self.weibull(point)
        return Distribution(
            tuple([of.remaining_s(age_s, (k + 0.5) / SLICES) for k in range(SLICES)])
        )

    def survival(self, point: str | None, age_s: float, more_s: float) -> float:
        """Return the probability that a session of age `age_s` lasts for `more_s` more."""
        return self.weibull(point).survival_after(age_s, more_s)

    def mean_residual_s(self, point: str | None, age_s: float) -> float:
        return self.weibull(point).mean_residual_s(age_s)

    def predict(self, features: Mapping[str, float], /) -> dict[str, Distribution]:
        age_s = features.get("age_s", 0.0)
        left = self.remaining(None, age_s if isfinite(age_s) else 0.0)
        return {REMAINING: Distribution(tuple([max(each, 1e-3) for each in left.samples]))}


def _fit(sessions: Sequence[tuple[float, bool]], prior: Weibull, worth: float) -> Weibull:
    """Return the fit to sessions and to as many prior sessions as the prior is worth."""
    parts = 9
    # The prior as a few pseudo-sessions at its quantiles, which share its worth.
    believed = [
        prior.scale_s * (-log(1.0 - (k + 0.5) / parts)) ** (1.0 / prior.shape) for k in range(parts)
    ]
    return (
        fit(
            [*(time_s for time_s, _ in sessions), *believed],
            [*(censored for _, censored in sessions), *[False] * parts],
            [*[1.0] * len(sessions), *[worth / parts] * parts],
            near=prior.shape,
        )
        or prior
    )
