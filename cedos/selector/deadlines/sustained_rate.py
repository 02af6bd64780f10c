"""What rate a network keeps up over the next seconds, minutes or hours, with how sure that is.

Means over longer windows vary less, and a long transfer needs only those: so means of four lengths are
kept, each with how far the next window of its length was from it. Before anything is known of a network
the errors are those of the real cellular traces (mean of the next seconds over that of the last ten, in
logarithms): the hundredth worst second had a hundredth of its rate, the hundredth worst minute a fifth.
"""

from collections.abc import Mapping, Sequence
from math import exp, isfinite, log, log10
from statistics import NormalDist
from typing import Final

WINDOWS_S: Final = (1.0, 10.0, 100.0, 1000.0)
TYPICAL_ERRORS: Final = (1.3, 0.65, 0.6, 0.5)
"""Standard deviations of the logarithm, measured but for the last: no trace is so long."""

_WORTH: Final = (8.0, 3.0, 1.5, 1.0)
"""How many windows the typical errors are worth beside a network's own."""

_MEMORY: Final = 60.0
"""Windows."""

_SLOWEST: Final = 0.02
"""A window with less than this share of the expected rate is an outage, and no better than that; one with
as many times more tells no more, either."""

_AGED: Final = 0.5
_AGES_S: Final = 900.0
"""A rate that nobody looked at for a quarter of an hour is as uncertain as that of another place."""

_SEEN_AGAIN_S: Final = 30.0
"""It is known again as it was after some times this long of use: one second of it says little."""

_CERTAIN: Final = 1e-6
_NORMAL: Final = NormalDist()
_Z: Final[dict[float, float]] = {}

_Between = tuple[int, int, float]
"""Two windows by number, the shorter one first, and how far from it to the other (0 to 1)."""


def deviations(q: float) -> float:
    """Standard deviations from the mean at quantile `q`; negative below the median."""
    found = _Z.get(q)
    if found is None:
        found = _NORMAL.inv_cdf(min(max(q, 1e-9), 1.0 - 1e-9))
        if len(_Z) < 1000:
            _Z[q] = found
    return found


class _Window:
    __slots__ = ("bits", "filled_s", "mean_bps", "square", "weight")

    def __init__(self) -> None:
        self.bits = self.filled_s = 0.0
        self.mean_bps = self.weight = self.square = 0.0


class SustainedRate:
    """One network's, in one direction. Rates are what it could carry: only a busy second tells."""

    def __init__(self) -> None:
        self._windows = [_Window() for _ in WINDOWS_S]
        self._at_s: float | None = None
        self._stale = 0.0
        self._settle()

    def _settle(self) -> None:
        """What is asked a hundred times between two observations."""
        count = len(WINDOWS_S)
        self._means = [self._mean(index) for index in range(count)]
        self._errors = [self._error(index) for index in range(count)]

    @property
    def known(self) -> bool:
        return self._at_s is not None

    def observe(self, rate_bps: float, lasted_s: float, at_s: float) -> None:
        """It carried so much for `lasted_s` until `at_s`; what cannot be is not taken in."""
        if not (isfinite(rate_bps) and rate_bps >= 0.0 and 0.0 < lasted_s < 1e6):
            return
        self._stale = self._aged(at_s - lasted_s) * exp(-lasted_s / _SEEN_AGAIN_S)
        self._at_s = at_s
        for window, length_s in zip(self._windows, WINDOWS_S, strict=True):
            window.bits += rate_bps * lasted_s
            window.filled_s += lasted_s
            if window.filled_s >= 0.999 * length_s:
                self._full(window)
        self._settle()

    def _full(self, window: _Window) -> None:
        mean_bps = window.bits / window.filled_s
        window.bits = window.filled_s = 0.0
        if window.weight and window.mean_bps > 0.0:
            error = log(min(max(mean_bps / window.mean_bps, _SLOWEST), 1.0 / _SLOWEST))
            window.square += (error * error - window.square) / min(window.weight, _MEMORY)
        window.weight += 1.0
        window.mean_bps += (mean_bps - window.mean_bps) / min(window.weight, _MEMORY)

    def mean_bps(self, over_s: float) -> float:
        """Expected over so long; 0: nothing is known."""
        return _on_line(self._means, _between(over_s))

    def _mean(self, index: int) -> float:
        for window in reversed(self._windows[: index + 1]):
            if window.weight:
                return window.mean_bps
        first = self._windows[0]
        return first.bits / first.filled_s if first.filled_s else 0.0

    def error(self, over_s: float, now_s: float) -> float:
        """Standard deviation of the logarithm of the rate over so long."""
        return self._aged_error(_between(over_s), now_s)

    def _aged_error(self, between: _Between, now_s: float) -> float:
        found = _on_line(self._errors, between)
        if aged := self._aged(now_s):
            found = (found * found + _AGED * _AGED * aged) ** 0.5
        return found

    def _aged(self, now_s: float) -> float:
        """Which share of what it was known for is not known any more."""
        if self._at_s is None or now_s <= self._at_s + 1.0:
            return self._stale
        return 1.0 - (1.0 - self._stale) * exp((self._at_s + 1.0 - now_s) / _AGES_S)

    def _error(self, index: int) -> float:
        """Own errors beside the typical ones; these are smaller where shorter windows vary less."""
        scale = found = 1.0
        for window, typical, worth in zip(
            self._windows[: index + 1], TYPICAL_ERRORS, _WORTH, strict=False
        ):
            assumed = typical * scale
            own = max(window.weight - 1.0, 0.0)
            square = (own * window.square + worth * assumed * assumed) / (own + worth)
            found = square**0.5
            scale = min((found / typical) ** 0.75, 1.0)
        return found

    def quantile_bps(self, over_s: float, q: float, now_s: float) -> float:
        """Over so long it is slower than this with probability `q`."""
        between = _between(over_s)
        error = self._aged_error(between, now_s)
        mean_bps = _on_line(self._means, between)
        return mean_bps if error < _CERTAIN else mean_bps * exp(deviations(q) * error)

    def to_state(self) -> dict[str, list[float]]:
        """What is kept for the next start."""
        return {
            f"{length_s:g}": [window.mean_bps, window.weight, window.square]
            for window, length_s in zip(self._windows, WINDOWS_S, strict=True)
        }

    def restore(self, state: Mapping[str, Sequence[float]], at_s: float) -> None:
        """Takes what was kept as known at `at_s`; numbers that make no sense are left out."""
        for window, length_s in zip(self._windows, WINDOWS_S, strict=True):
            numbers = state.get(f"{length_s:g}", ())
            if len(numbers) == 3 and all(
                isinstance(each, float | int) and 0.0 <= each < 1e15 for each in numbers
            ):
                window.mean_bps, window.weight, window.square = map(float, numbers)
                if window.weight:
                    self._at_s = at_s
        self._settle()


def _on_line(by_window: Sequence[float], between: _Between) -> float:
    shorter, longer, share = between
    low = by_window[shorter]
    return low + share * (by_window[longer] - low)


def _between(over_s: float) -> _Between:
    if over_s <= 1.0:
        return 0, 0, 0.0
    at = log10(over_s)
    shorter = int(at)
    if shorter >= len(WINDOWS_S) - 1:
        return len(WINDOWS_S) - 1, len(WINDOWS_S) - 1, 0.0
    return shorter, shorter + 1, at - shorter
