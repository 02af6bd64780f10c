"""Anticipatory scheduling (dissertation, 2.3.2): background data never fills the kernel's queue.

Foreground data comes in bursts. While some was sent lately, background data may hold at most what the
network carries in 50 ms, so that the next foreground message waits no longer; otherwise one second's
worth, so that the network never runs dry. The queue is the kernel's own count of bytes that it has not
sent (`SIOCOUTQNSD`), with that of the other processes of the host on the same network; while there is
foreground data, also what already waits in the network, by how much the round trip is longer than the
shortest one.
"""

from collections.abc import Sequence
from typing import Final

from cedos.session.schedulers.estimates import CHUNK_BYTES, quickest, rate_bps, widest
from cedos.session.scheduling import BACKGROUND_RANKS, Backlog, Grant, PathState, Scheduler

CAREFUL_S: Final = 0.050
AMPLE_S: Final = 1.0
# The paper says "recently" and no number. A person who clicks and reads is back within seconds.
RECENT_S: Final = 5.0
_LEAST_BYTES: Final = 4_096  # below it, headers and wake-ups cost more than the delay they save
_LOOK_S: Final = 0.010


def bound_bytes(path: PathState, recent: bool) -> int:
    """How many unsent bytes background data may leave in this host's kernel for the path."""
    if path.facts.rate_bps is None:
        # Never measured: two chunks show what it carries, and cost 50 ms on 5 Mbit/s.
        return 2 * CHUNK_BYTES
    seconds = CAREFUL_S if recent else AMPLE_S
    return max(_LEAST_BYTES, int(rate_bps(path) / 8 * seconds))


def in_network_bytes(path: PathState) -> int:
    """How much waits between this host and the peer, beyond what is simply under way."""
    facts = path.facts
    if facts.rtt_s is None or facts.rtt_min_s is None or facts.rate_bps is None:
        return 0
    return int(facts.rate_bps / 8 * max(0.0, facts.rtt_s - facts.rtt_min_s))


class Anticipatory:
    """Bounds the background data that another scheduler would send.

    Args:
        inner: decides which label goes where.
        recent_s: how long after foreground data more of it is expected.
    """

    def __init__(self, inner: Scheduler, recent_s: float = RECENT_S) -> None:
        self.name = f"anticipatory {inner.name}"
        self.copies = inner.copies
        self.prompt = getattr(inner, "prompt", False)
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
    ) -> Grant | None:
        """What the inner scheduler grants, background data only up to the bound."""
        grant = self._inner.choose(path, paths, backlog, room_bytes, now)
        if grant is None or grant.rank not in BACKGROUND_RANKS:
            return grant
        queued = path.facts.unsent_bytes + path.facts.others_unsent_bytes
        recent = self._recent(path, paths, backlog, now)
        left = bound_bytes(path, recent) - queued
        if recent:
            left -= in_network_bytes(path)
            if not queued and now - path.last_sent_at_s > CAREFUL_S:
                left = max(left, _LEAST_BYTES)  # whatever queues elsewhere: never come to a stop
        if left <= 0:
            self._held = True
            return None
        return grant if grant.limit_bytes <= left else grant._replace(limit_bytes=left)

    def _recent(
        self, path: PathState, paths: Sequence[PathState], backlog: Backlog, now: float
    ) -> bool:
        """Whether foreground data may soon want this path."""
        if now - path.facts.foreground_at_s < self._recent_s:
            return True
        if now - backlog.foreground_at_s >= self._recent_s:
            return False
        return path is quickest(paths) or path is widest(paths)

    def appropriate(self, rank: int, paths: Sequence[PathState], now: float) -> bool:
        """As the inner scheduler says."""
        return self._inner.appropriate(rank, paths, now)

    def next_look_s(self, paths: Sequence[PathState], now: float) -> float | None:
        """Soon, where something was held back; otherwise as the inner scheduler says."""
        look_s = self._inner.next_look_s(paths, now)
        if not self._held:
            return look_s
        self._held = False
        return _LOOK_S if look_s is None else min(look_s, _LOOK_S)
