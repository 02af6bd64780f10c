"""Estimate what a network can carry in one direction from what it did carry. Pure.

A rate tells what a network can do only while the network sets the pace. Samples in which it did make the
rates of late (`past1_bps` ...); they stay, getting older, until the next ones. Of all others it is known
that the network can do at least that (`delivery_down_bps`); the faster ones count in the means, too.
"""

from collections import deque
from dataclasses import dataclass, replace

from cedos.model import Direction, Indicator

SPANS_S = (1, 5, 10)

# The delivered rate is the best of this time, with its age: later small transfers show a part of
# the network's rate, not that it became slower (docs/decisions/passive-rates.md).
_BEST_OF_S = 20.0

# A network that sets the pace has a queue. A flow that carries less than half of what the network
# did within the last minute, while its round trips are as short as ever, waits for something else:
# MPTCP for what is under way on its other path.
_TRICKLE, _TRICKLE_S = 0.5, 60.0

# A round trip longer than this many times the minimum has a queue in it.
QUEUE_EMPTY = 1.2

# Fewer bytes than the first window tell only that the network is alive.
LEAST_BYTES = 15_000

_PAST = {
    Direction.DOWN: tuple((f"past{span_s}_bps", span_s) for span_s in SPANS_S),
    Direction.UP: tuple((f"past{span_s}_up_bps", span_s) for span_s in SPANS_S),
}
_DELIVERY = {Direction.DOWN: "delivery_down_bps", Direction.UP: "delivery_up_bps"}


@dataclass(frozen=True, slots=True)
class RateSample:
    """A stretch that a network carried in one direction; `saturated`: the network set the pace.

    `queue_empty`: round trips were as short meanwhile as ever.
    """

    begin_s: float
    end_s: float
    carried_bytes: int
    saturated: bool
    queue_empty: bool = False

    @property
    def rate_bps(self) -> float:
        return 8.0 * self.carried_bytes / (self.end_s - self.begin_s)


class RateEstimator:
    """A network's rates over the last 1, 5 and 10 s, and what it delivers at least."""

    def __init__(self, direction: Direction = Direction.DOWN) -> None:
        self._direction = direction
        self._stretches: deque[RateSample] = deque()
        self._delivered: deque[RateSample] = deque()
        self._counted: tuple[float, int] | None = None
        self._known: dict[str, Indicator] = {}

    def observe(self, stretch: RateSample) -> None:
        """Take samples in order."""
        if stretch.end_s <= stretch.begin_s:
            return
        at_s = stretch.end_s
        self._deliver(stretch)
        paced = stretch.saturated and not (stretch.queue_empty and self._trickles(stretch))
        self._stretches.append(replace(stretch, saturated=paced))
        while self._stretches[0].end_s <= at_s - SPANS_S[-1]:
            self._stretches.popleft()
        if not paced:
            return
        self._delivered = deque([stretch])  # before it a network that fades did more
        self._tell_least()
        for name, span_s in _PAST[self._direction]:
            self._known[name] = Indicator(self._rate_bps(at_s - span_s), at_s)

    def _trickles(self, stretch: RateSample) -> bool:
        known = self._known.get(_PAST[self._direction][0][0])
        could_bps = max((each.rate_bps for each in self._delivered), default=0.0)
        if known is not None and stretch.end_s - known.measured_at_s <= _TRICKLE_S:
            could_bps = max(could_bps, known.value)
        return stretch.rate_bps < _TRICKLE * could_bps

    def on_counter(self, total_bytes: int, at_s: float) -> None:
        """Take a counter's reading: what an interface carried since the last one, it can carry."""
        before, self._counted = self._counted, (at_s, total_bytes)
        if before is not None and total_bytes - before[1] >= LEAST_BYTES and at_s > before[0]:
            self._deliver(RateSample(before[0], at_s, total_bytes - before[1], saturated=False))

    def begin_anew(self) -> None:
        """Begin anew with the next reading."""
        self._counted = None

    def _deliver(self, stretch: RateSample) -> None:
        delivered = self._delivered
        # Only those can ever be the best that no later one exceeds.
        while delivered and delivered[-1].rate_bps <= stretch.rate_bps:
            delivered.pop()
        delivered.append(stretch)
        while delivered[0].end_s <= stretch.end_s - _BEST_OF_S:
            delivered.popleft()
        self._tell_least()

    def _tell_least(self) -> None:
        best = self._delivered[0]
        self._known[_DELIVERY[self._direction]] = Indicator(best.rate_bps, best.end_s)

    def _rate_bps(self, since_s: float) -> float:
        late = [stretch for stretch in self._stretches if stretch.end_s > since_s]
        paced = _mean_bps([stretch for stretch in late if stretch.saturated])
        return _mean_bps([each for each in late if each.saturated or each.rate_bps > paced])

    def on_sleep(self, seconds: float) -> None:
        """Make what is known older by a sleep; no stretch reaches across it."""
        self._stretches.clear()
        self._delivered.clear()
        self._counted = None
        self._known = {
            name: replace(known, measured_at_s=known.measured_at_s - seconds)
            for name, known in self._known.items()
        }

    def indicators(self) -> dict[str, Indicator]:
        """Return `past1_bps` ... and `delivery_down_bps` as far as known; uplinks `past1_up_bps`..."""
        return dict(self._known)


def _mean_bps(stretches: list[RateSample]) -> float:
    seconds = sum(each.end_s - each.begin_s for each in stretches)
    return 8.0 * sum(each.carried_bytes for each in stretches) / seconds
