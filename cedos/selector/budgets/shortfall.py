"""How much too low the forecasts of a day's use turned out to be, by the time that was left of the day.

What a forecast is worth is learned from its errors, not from a model of people: at each full hour before
the end, what was expected to be used without a choice is kept, and compared with what came. A day that is
busier than all before it shows only as it goes on; so in the morning much is set aside beyond what is
expected, and in the evening, when forecasts have hardly ever been wrong, little.
"""

from collections.abc import Mapping
from math import ceil, isfinite, sqrt
from typing import Any

_HOUR_S = 3600.0
_MOST_HOURS = 49
"""Of two days, with an hour more when clocks are set back."""

_FADING = 0.97
"""A day weighs this much of the next newer one: 33 days count in all."""

_PRIOR = 0.5
_PRIOR_DAYS = 8.0
"""Before anything is known, a forecast is taken to be too low by half. That is worth so many days, so
that it never goes under: however well evenings went, one may take a quarter more than all before it."""


class Shortfalls:
    """Learns over periods; see the module. Errors are relative to the use of a usual period.

    Only forecasts that were too low count: of what was set aside in vain, nothing breaks.

    Args:
        learned: what an earlier one's `state` says; of another period, it is learned from now.

    Raises:
        KeyError, TypeError, ValueError: `learned` is no such state.
    """

    def __init__(self, ends_s: float, learned: Mapping[str, Any] | None = None) -> None:
        self._ends_s = ends_s
        self._squares: dict[int, list[float]] = {}
        self._open: dict[int, tuple[float, float, float]] = {}
        self._used = 0.0
        self._seen_s = float("-inf")
        if learned is None:
            return
        for hour, (weight, squares) in learned["squares"].items():
            self._squares[int(hour)] = [float(weight), float(squares)]
        if learned["open"] is None:
            return
        before_s, seen_s, used, forecasts = learned["open"]
        self._open = {
            int(hour): (float(expected), float(usual), float(at))
            for hour, (expected, usual, at) in forecasts.items()
        }
        self._used, self._seen_s = float(used), float(seen_s)
        if before_s != ends_s:
            self._close(float(before_s))

    def passed(self, now_s: float, used: float) -> None:
        """So much was used until now, what was chosen included."""
        self._used += used
        self._seen_s = now_s

    def chosen(self, amount: float) -> None:
        """So much of what is used is a choice."""
        self._used -= amount

    def forecast(self, now_s: float, expected: float, usual: float) -> None:
        """Takes what is expected until the end; the first one of each hour is kept."""
        hour = self._hour(now_s)
        # (A clock that jumps may show any hour.)
        if 0 < hour <= _MOST_HOURS and hour not in self._open and usual > 0.0:
            self._open[hour] = (expected, usual, self._used)

    def deviation(self, now_s: float, expected: float, usual: float) -> float:
        """The root mean square of what was missing in forecasts like this one, in units."""
        weight, squares = self._squares.get(self._hour(now_s), (0.0, 0.0))
        prior = _PRIOR_DAYS * (_PRIOR * expected) ** 2
        return sqrt((squares * usual * usual + prior) / (weight + _PRIOR_DAYS))

    def changed(self, ends_s: float) -> None:
        """The period ends at another time: what was forecast of it can never be compared."""
        if ends_s != self._ends_s:
            self._ends_s = ends_s
            self._open.clear()

    def state(self) -> dict[str, Any]:
        """What was learned, as plain data for JSON, and what is open."""
        forecasts = {str(hour): list(kept) for hour, kept in self._open.items()}
        return {
            "squares": {str(hour): list(kept) for hour, kept in self._squares.items()},
            "open": [self._ends_s, self._seen_s, self._used, forecasts] if self._open else None,
        }

    def _hour(self, now_s: float) -> int:
        # The hour that begins now is the one until its end: at the beginning of a day the 24th last.
        return ceil((self._ends_s - now_s) / _HOUR_S)

    def _close(self, before_s: float) -> None:
        """Learns from a period that is over, if it was seen to its end."""
        if 0.0 <= before_s - self._seen_s <= _HOUR_S:
            for hour, (expected, usual, at) in self._open.items():
                missing = max(self._used - at - expected, 0.0) / usual
                if isfinite(missing):
                    weight, squares = self._squares.get(hour, (0.0, 0.0))
                    self._squares[hour] = [
                        _FADING * weight + 1.0,
                        _FADING * squares + missing * missing,
                    ]
        self._open.clear()
        self._used, self._seen_s = 0.0, float("-inf")
