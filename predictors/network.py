"""Bandwidth and latency of one network, from the times of exchanges of different sizes.

The time is a straight line over the size: it begins at the latency, and its slope is one over the
bandwidth (dissertation, 4.4.2). If the sizes of the last exchanges differ enough, the line is fitted to
these. If not, the surprise of an exchange (its actual less its expected time) is divided between latency
and bandwidth, by the part of the expected time that each has. Each result goes through a flip-flop
filter, and its errors are kept.

The flip-flop filter runs two exponential averages side by side. A control chart says which of them
counts: the agile one while the newest value lies within three standard deviations of the recent
ones, else the stable one (dissertation, 4.4.2; the gains are those of its authors' implementation).
"""

from collections import deque
from collections.abc import Mapping, Sequence
from math import isfinite, nan

from predictors.base import Distribution, Measurement
from predictors.error import SLICES, ErrorHistory

# The share that each average keeps of itself when a value comes in.
_AGILE, _STABLE = 0.1, 0.9

# The same of the chart's centre line and of the mean step from one value to the next.
_CENTER, _RANGE = 0.1, 0.9

# The mean difference of two normal values in standard deviations (a control chart of single
# values).
_STEP_OVER_SIGMA = 1.128


class FlipFlop:
    """The flip-flop filter of one quantity (see the module)."""

    def __init__(self) -> None:
        self._agile = self._stable = self._center = self._last = 0.0
        self._step: float | None = None
        self._calm = True
        self.count = 0

    @property
    def estimate(self) -> float | None:
        if not self.count:
            return None
        return self._agile if self._calm else self._stable

    def observe(self, value: float) -> None:
        if not isfinite(value):
            return
        self.count += 1
        if self.count == 1:
            self._agile = self._stable = self._center = self._last = value
            return
        step = abs(value - self._last)
        self._last = value
        self._agile = _AGILE * self._agile + (1.0 - _AGILE) * value
        self._stable = _STABLE * self._stable + (1.0 - _STABLE) * value
        # The first step has nothing to be judged by.
        limit = 3.0 * (step if self._step is None else self._step) / _STEP_OVER_SIGMA
        # Within the control limits the agile average counts, outside them the stable one.
        self._calm = abs(value - self._center) <= limit
        if self._step is None:
            self._step = step
        # A step outside the limits must not widen them.
        elif self._calm:
            self._step = _RANGE * self._step + (1.0 - _RANGE) * step
        self._center = _CENTER * self._center + (1.0 - _CENTER) * value


BANDWIDTH, LATENCY = "bandwidth", "latency"
TIME = "time_s"

# The prediction before any measurement: a network that is neither good nor bad.
_TYPICAL_S, _TYPICAL_BPS = 0.05, 10e6

# The last exchanges through which the line is fitted, and the weight of each relative to the next newer.
_EXCHANGES = 16
_FADING = 0.85
# A slope of this many standard errors is not noise.
_SIGNIFICANT = 3.0
# A network with a smaller share of the possible causes learns nothing from a surprise.
_PART = 0.2
# No correction makes a part of the time shorter than this share of it.
_LEAST = 0.1
_MOST_BYTES, _LONGEST_S, _LARGEST = 1e15, 1e6, 1e15
_LEAST_VALUE = {LATENCY: 1e-5, BANDWIDTH: 1e3}


class NetworkPredictor:
    """A predictor of the time of an exchange over one network; a `Predictor`.

    Each `observe...` returns measurements of two quantities, `NAME.bandwidth` (bit/s) and `NAME.latency`
    (s), for evaluators that keep errors of their own (`cedos.selector.uncertainty`).

    Args:
        name: the network's, the first part of its quantities' names.
    """

    features: Sequence[str] = ("size_bytes", "at_s")

    def __init__(self, name: str = "network") -> None:
        self.name = name
        # How wrong its predictions of `bandwidth` and of `latency` were.
        self.errors: Mapping[str, ErrorHistory] = {
            BANDWIDTH: ErrorHistory(),
            LATENCY: ErrorHistory(),
        }
        self._filters = {BANDWIDTH: FlipFlop(), LATENCY: FlipFlop()}
        self._exchanges: deque[tuple[float, float]] = deque(maxlen=_EXCHANGES)

    @property
    def latency_s(self) -> float | None:
        """The seconds before the first byte comes; None: nothing was measured."""
        return self._filters[LATENCY].estimate

    @property
    def bandwidth_bps(self) -> float | None:
        """The rate at which the bytes come then, bit/s; None: nothing was measured."""
        return self._filters[BANDWIDTH].estimate

    def point_s(self, size_bytes: float) -> float:
        """Return the expected time of an exchange, s; an unknown network counts as a typical one."""
        latency_s, bandwidth_bps = self._latency_and_bandwidth()
        return latency_s + 8.0 * max(size_bytes, 0.0) / bandwidth_bps

    def observe(self, size_bytes: float, time_s: float, at_s: float) -> list[Measurement]:
        """Record an exchange: bytes carried, seconds from the first sent to the last received.

        What is no measurement (not finite, not positive, longer than the longest) is left out.
        """
        if not (0.0 <= size_bytes <= _MOST_BYTES and _LEAST_VALUE[LATENCY] < time_s <= _LONGEST_S):
            return []
        # The surprise is what the prediction missed. Its variance is shared out by the squares of both
        # parts.
        latency_s, bandwidth_bps = self._latency_and_bandwidth()
        carrying_s = 8.0 * size_bytes / bandwidth_bps
        surprise_s = time_s - latency_s - carrying_s
        share = latency_s**2 / (latency_s**2 + carrying_s**2)
        self._exchanges.append((size_bytes, time_s))
        # With a line, latency and bandwidth follow from it. Without one, each takes its share of the
        # surprise, unless it is too small a cause to have learned anything.
        line = _line(self._exchanges)
        measured = {}
        if share >= _PART:
            measured[LATENCY] = self._err(LATENCY, latency_s, surprise_s, share, at_s)
            if line is None:
                self._smooth(LATENCY, max(latency_s + share * surprise_s, _LEAST * latency_s))
        if 1.0 - share >= _PART:
            longer = self._err(BANDWIDTH, carrying_s, surprise_s, 1.0 - share, at_s)
            measured[BANDWIDTH] = bandwidth_bps / longer
            if line is None:
                carried_s = max(carrying_s + (1.0 - share) * surprise_s, _LEAST * carrying_s)
                self._smooth(BANDWIDTH, 8.0 * size_bytes / carried_s)
        # `_err` gave factors: turn that of the latency into seconds.
        if LATENCY in measured:
            measured[LATENCY] *= latency_s
        if line is not None:
            self._smooth(LATENCY, line[0])
            self._smooth(BANDWIDTH, line[1])
            # The line itself is a prediction, not a measurement.
            measured = {LATENCY: nan, BANDWIDTH: nan} | measured
        return [self._measurement_of(name, value, at_s) for name, value in measured.items()]

    def observe_rtt(self, rtt_s: float, at_s: float) -> list[Measurement]:
        """Record a round trip that carried next to nothing, s."""
        return self._learn(LATENCY, rtt_s, at_s)

    def observe_rate(self, rate_bps: float, at_s: float) -> list[Measurement]:
        """Record a rate at which the network was full, bit/s."""
        return self._learn(BANDWIDTH, rate_bps, at_s)

    def reset(self, at_s: float) -> None:
        """Forget everything, as at another access point; until the next measurement little is certain."""
        self._filters = {BANDWIDTH: FlipFlop(), LATENCY: FlipFlop()}
        self._exchanges.clear()
        for errors in self.errors.values():
            errors.reset(at_s)

    def predict(self, features: Mapping[str, float], /) -> dict[str, Distribution]:
        """Return the time of an exchange of `size_bytes`.

        It begins at `at_s`, or, without one, right after the last exchange.
        """
        now_s = features.get("at_s", nan)
        size_bytes = max(features["size_bytes"], 0.0)
        latency_s, bandwidth_bps = self._latency_and_bandwidth()
        # All combinations of past errors of both parts, gathered into equal slices.
        latencies = self.errors[LATENCY].distribution(now_s).scale(latency_s)
        carrying_s = 8.0 * size_bytes / bandwidth_bps
        rates = self.errors[BANDWIDTH].distribution(now_s)
        times = sorted(
            [late + carrying_s / ratio for ratio in rates.samples for late in latencies.samples]
        )
        each = len(times) // SLICES or 1
        return {
            TIME: Distribution(
                tuple([sum(times[k : k + each]) / each for k in range(0, len(times), each)])
            )
        }

    def _latency_and_bandwidth(self) -> tuple[float, float]:
        latency_s, bandwidth_bps = self.latency_s, self.bandwidth_bps
        return (
            _TYPICAL_S if latency_s is None else latency_s,
            _TYPICAL_BPS if bandwidth_bps is None else bandwidth_bps,
        )

    def _learn(self, name: str, value: float, at_s: float) -> list[Measurement]:
        if not _LEAST_VALUE[name] <= value <= _LARGEST:
            return []
        before = self._filters[name].estimate
        if before is not None:
            self.errors[name].add(value, before, at_s)
        self._smooth(name, value)
        return [self._measurement_of(name, value, at_s)]

    def _smooth(self, name: str, value: float) -> None:
        self._filters[name].observe(max(value, _LEAST_VALUE[name]))

    def _measurement_of(self, name: str, value: float, at_s: float) -> Measurement:
        latency_s, bandwidth_bps = self._latency_and_bandwidth()
        prediction = latency_s if name == LATENCY else bandwidth_bps
        return Measurement(f"{self.name}.{name}", value, prediction, at_s)

    def _err(self, name: str, part_s: float, surprise_s: float, share: float, at_s: float) -> float:
        """Record the error of one part of an exchange's time; return the factor of the part.

        Errors count as independent of one another, so it is their variances that must add up to the
        surprise's: each part has the root of its share.
        """
        longer: float = max(part_s + share**0.5 * surprise_s, _LEAST * part_s) / part_s
        if self._filters[name].estimate is not None:
            self.errors[name].add(longer if name == LATENCY else 1.0 / longer, 1.0, at_s)
        return longer


def _line(exchanges: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """Return latency (s) and bandwidth (bit/s) of a line through exchanges; None: noise would rule it."""
    count = len(exchanges)
    if count < 3:
        return None
    # A weighted least-squares line: time = latency + size / bandwidth.
    weights = [_FADING ** (count - 1 - k) for k in range(count)]
    total = sum(weights)
    size = sum([w * s for w, (s, _) in zip(weights, exchanges, strict=True)]) / total
    time = sum([w * t for w, (_, t) in zip(weights, exchanges, strict=True)]) / total
    spread = sum([w * (s - size) ** 2 for w, (s, _) in zip(weights, exchanges, strict=True)])
    # Exchanges of one size cannot tell latency from bandwidth.
    if spread <= 1e-6 * size * size * total:
        return None
    slope = (
        sum([w * (s - size) * (t - time) for w, (s, t) in zip(weights, exchanges, strict=True)])
        / spread
    )
    start = time - slope * size
    if slope <= 0.0 or start <= 0.0:
        return None
    # The slope counts only if it is well beyond its standard error.
    left = sum(
        [w * (t - start - slope * s) ** 2 for w, (s, t) in zip(weights, exchanges, strict=True)]
    )
    freedom = max(total**2 / sum([w * w for w in weights]) - 2.0, 1.0)
    error = (left / total * count / freedom / spread) ** 0.5
    if slope < _SIGNIFICANT * error:
        return None
    return start, 8.0 / slope
