"""What a network carried in its last seconds, from byte counts. Pure.

A rate tells what a network can do only while something saturates it: an idle second says nothing.
So only busy stretches count, and what they said stays, getting older, until the next one.
"""

from collections import deque
from dataclasses import dataclass, replace

from cedos.model import Indicator

SPANS_S = (1, 5, 10)


@dataclass(frozen=True, slots=True)
class _Stretch:
    begin_s: float
    end_s: float
    received_bytes: int
    busy: bool


class Rates:
    """The received rate over the last 1, 5 and 10 s of busy time.

    Args:
        busy_floor_bps: above this rate a stretch counts as busy where nobody knows better.
    """

    def __init__(self, busy_floor_bps: float = 500_000.0) -> None:
        self._floor_bps = busy_floor_bps
        self._stretches: deque[_Stretch] = deque()
        self._last: tuple[float, int] | None = None
        self._known: dict[str, Indicator] = {}

    def observe(self, received_bytes: int, at_s: float, *, busy: bool | None = None) -> None:
        """Takes a counter's reading; `busy` says whether something saturated the network since.

        A counter that went backwards began anew with its interface.
        """
        before, self._last = self._last, (at_s, received_bytes)
        if before is None or received_bytes < before[1] or at_s <= before[0]:
            return
        gained = received_bytes - before[1]
        if busy is None:
            busy = gained * 8 / (at_s - before[0]) >= self._floor_bps
        self._stretches.append(_Stretch(before[0], at_s, gained, busy))
        while self._stretches[0].end_s <= at_s - SPANS_S[-1]:
            self._stretches.popleft()
        if busy:
            for span_s in SPANS_S:
                self._known[f"past{span_s}_bps"] = Indicator(self._rate(at_s, span_s), at_s)

    def _rate(self, at_s: float, span_s: float) -> float:
        seconds = received = 0.0
        for stretch in reversed(self._stretches):
            inside_s = stretch.end_s - max(stretch.begin_s, at_s - span_s)
            # Counters are read about once a second: a span ends within a stretch by chance only.
            if seconds and inside_s < 0.25 * (stretch.end_s - stretch.begin_s):
                break
            if stretch.busy:
                seconds += stretch.end_s - stretch.begin_s
                received += stretch.received_bytes
        return received * 8 / seconds

    def slept(self, seconds: float) -> None:
        """The host slept: what is known is older by so much, and no stretch reaches across it."""
        self._stretches.clear()
        self._last = None
        self._known = {
            name: replace(known, measured_at_s=known.measured_at_s - seconds)
            for name, known in self._known.items()
        }

    def indicators(self) -> dict[str, Indicator]:
        """`past1_bps`, `past5_bps`, `past10_bps`, as far as known, measured when last busy."""
        return dict(self._known)
