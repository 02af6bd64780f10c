"""When to think again about what is under way, and from where on the answer is another one.

A decision is made again when a network came or went, when something was heard, and when nothing was:
after twice the expected time, and from then on every 200 ms until it is over (dissertation, 4.4.3.1).
"""

from collections.abc import Callable, Hashable
from math import inf, isfinite

LATE = 2.0
"""Silence is news after so many times what was expected."""

AGAIN_S = 0.2
"""And again so much later, for as long as it lasts."""

_HALVINGS = 60


class Reevaluation:
    """The instants at which one thing under way is to be decided on again.

    Args:
        began_s: when it began, by any clock.
        expected_s: how long it was expected to take; infinite where that is unknown, and then only
            news counts.

    Attributes:
        next_at_s: when silence is a reason to decide next.
        late_at_s: from when on it is one.
    """

    def __init__(self, began_s: float, expected_s: float) -> None:
        self._news = False
        self.next_at_s = inf
        self._expect(began_s, expected_s)

    def due(self, now_s: float) -> bool:
        """Whether to decide now. That takes it: the next time is 200 ms later, or at the next news."""
        if now_s >= self.next_at_s:
            self.next_at_s = now_s + AGAIN_S
            self._news = False
            return True
        news, self._news = self._news, False
        return news

    def late(self, now_s: float) -> bool:
        """Whether it has been silent for longer than it should; takes nothing."""
        return now_s >= self.late_at_s

    def changed(self) -> None:
        self._news = True

    def progressed(self, now_s: float, rest_s: float) -> None:
        """Something was heard, and the rest is expected to take `rest_s`: silence counts anew."""
        self._news = True
        self._expect(now_s, rest_s)

    def _expect(self, since_s: float, expected_s: float) -> None:
        known = isfinite(expected_s) and expected_s >= 0.0
        self.late_at_s = since_s + max(LATE * expected_s, AGAIN_S) if known else inf
        self.next_at_s = self.late_at_s


def tipping_point(
    chosen: Callable[[float], Hashable], low: float, high: float, granularity: float
) -> float | None:
    """Where a decision tips, by bisection over one value (dissertation, 4.3.4).

    The value may be anything that evidence bounds: how long no answer has come, how long an utterance
    is already. It works for every method of evaluation, as it only looks at what is chosen.

    Args:
        chosen: what is chosen at a value.
        low: where the decision is the present one.
        high: the largest value of interest.
        granularity: how exact, in the value's unit; positive.

    Returns:
        The smallest value known (within `granularity`) to be beyond the tipping point; None where the
        choice at `high` is still the one at `low`.
    """
    present = chosen(low)
    if chosen(high) == present:
        return None
    for _ in range(_HALVINGS):
        if high - low <= granularity:
            break
        middle = 0.5 * (low + high)
        if chosen(middle) == present:
            low = middle
        else:
            high = middle
    return high
