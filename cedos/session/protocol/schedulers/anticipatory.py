"""Anticipatory scheduling (dissertation, 2.3.2): background data never fills the queues on the way.

While foreground data was sent lately, no more background data may wait than the path carries in 40 ms;
otherwise one second's worth, so that the network never runs dry. What waits is what this host's kernel
has not sent (`SIOCOUTQNSD`) and, lately, what is under way beyond what fills the shortest round trip
(docs/decisions/anticipatory-bound.md).
"""

from collections.abc import Sequence
from typing import Final

from cedos.session.protocol.schedulers.interface import (
    BACKGROUND_RANKS,
    BULK_RANKS,
    CHUNK_BYTES,
    RECENT_S,
    Backlog,
    PathState,
    Scheduler,
    SendGrant,
    quickest,
    rate_bps,
    widest,
)

CAREFUL_S: Final = 0.040  # 25 ms: no sooner there over two networks (measured), and less background
AMPLE_S: Final = 1.0
_LEAST_BYTES: Final = 4_096  # below it, headers and wake-ups cost more than the delay they save
# An additional share of a round trip. If the path carries more than was measured, each round trip
# shows more of it.
_GROWTH: Final = 0.25
_CHECK_S: Final = 0.010


def bound_bytes(path: PathState, recent: bool) -> int:
    """Return the most background data that may wait; `recent`: foreground data was sent lately."""
    facts = path.facts
    if facts.rate_bps is None:
        # Never measured: two chunks show what it carries, and cost 50 ms on 5 Mbit/s.
        return 2 * CHUNK_BYTES
    seconds = CAREFUL_S + _GROWTH * (facts.rtt_min_s or 0.0) if recent else AMPLE_S
    return max(_LEAST_BYTES, int(rate_bps(path) / 8 * seconds))


def waiting_bytes(path: PathState) -> int:
    """Return how much waits in this host's kernel and in the network, beyond a full round trip."""
    facts = path.facts
    fills = rate_bps(path) / 8 * (facts.rtt_min_s or 0.0)
    return facts.unsent_bytes + max(0, int(facts.under_way_bytes - fills))


class Anticipatory:
    """A scheduler that bounds the background data of `inner`.

    Foreground data is expected again for `recent_s`. With `bulk`, large foreground data is bounded,
    too, while small data was sent lately.
    """

    def __init__(self, inner: Scheduler, recent_s: float = RECENT_S, *, bulk: bool = False) -> None:
        self._bounded = (*BULK_RANKS, *BACKGROUND_RANKS) if bulk else BACKGROUND_RANKS
        self.name = f"anticipatory {inner.name}"
        self.copies = inner.copies
        self.prompt = inner.prompt
        self._inner = inner
        self._recent_s = recent_s
        self._held = False

    def choose(
        self,
        path: PathState,
        paths: Sequence[PathState],
        backlog: Backlog,
        room_bytes: int,
        now: float,
    ) -> SendGrant | None:
        grant = self._inner.choose(path, paths, backlog, room_bytes, now)
        if grant is None or grant.rank not in self._bounded:
            return grant
        # Background data waits for any foreground data, large foreground data only for small ones.
        recent = self._recent(path, paths, backlog, now)
        if grant.rank in BULK_RANKS:
            recent = now - backlog.small_at_s < self._recent_s
            if not recent:
                return grant
        facts = path.facts
        # Without recent foreground data only this host's kernel must not hold too much.
        queued = waiting_bytes(path) if recent else facts.unsent_bytes
        left = bound_bytes(path, recent) - queued
        # Other traffic may fill the network for long: a little goes out all the same.
        if recent and not facts.unsent_bytes and now - path.last_sent_at_s > CAREFUL_S:
            left = max(left, _LEAST_BYTES)
        if left <= 0:
            self._held = True
            return None
        return grant if grant.limit_bytes <= left else grant._replace(limit_bytes=left)

    def _recent(
        self, path: PathState, paths: Sequence[PathState], backlog: Backlog, now: float
    ) -> bool:
        # Any program of this host sent foreground data over this network.
        if now - path.facts.foreground_at_s < self._recent_s:
            return True
        # This session did: that matters on the paths that foreground data takes (`LabelMapping`).
        if now - backlog.foreground_at_s >= self._recent_s:
            return False
        return path is quickest(paths) or path is widest(paths)

    def next_check_s(self, paths: Sequence[PathState], now: float) -> float | None:
        check_s = self._inner.next_check_s(paths, now)
        if not self._held:
            return check_s
        self._held = False
        return _CHECK_S if check_s is None else min(check_s, _CHECK_S)
