"""Plain path schedulers: lowest round trip, round robin, redundant, and IntNW's mapping of labels.

Anticipatory scheduling (dissertation, 2.3.2): background data never fills the queues on the way.

While foreground data was sent lately, no more background data may wait than the path carries in 40 ms;
otherwise one second's worth, so that the network never runs dry. What waits is what this host's kernel
has not sent (`SIOCOUTQNSD`) and, lately, what is under way beyond what fills the shortest round trip
(docs/decisions/schedulers.md).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from cedos.model import NetworkKind, Strategy, StrategyKind
from cedos.session.protocol.schedulers.interface import (
    BACKGROUND_RANKS,
    BULK_RANKS,
    CHUNK_BYTES,
    LABELS,
    RECENT_S,
    Backlog,
    PathState,
    Scheduler,
    SendGrant,
    allowed_paths,
    quickest,
    rate_bps,
    rtt_s,
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


def has_room(path: PathState) -> bool:
    """Return whether the kernel would send at once: less than a chunk waits there."""
    return path.facts.unsent_bytes < CHUNK_BYTES


class LowestRtt:
    """A scheduler like MPTCP's default: the path of the shortest round trip that has room."""

    name = "lowest-rtt"
    copies = False
    prompt = False

    def choose(
        self,
        path: PathState,
        paths: Sequence[PathState],
        backlog: Backlog,
        room_bytes: int,
        now: float,
    ) -> SendGrant | None:
        """Grant the most urgent data, unless a path with a shorter round trip could take it now."""
        mine = (rtt_s(path), path.path_id)
        for rank in range(len(LABELS)):
            may = allowed_paths(paths, rank)
            if not backlog.waiting_bytes[rank] or path not in may:
                continue
            if any((rtt_s(other), other.path_id) < mine and has_room(other) for other in may):
                continue
            return SendGrant(rank, room_bytes if len(paths) == 1 else min(room_bytes, CHUNK_BYTES))
        return None

    def next_check_s(self, paths: Sequence[PathState], now: float) -> float | None:
        """Return a short time with several paths: queues of quicker ones fill without news."""
        return 0.010 if len(paths) > 1 else None


class RoundRobin:
    name = "round-robin"
    copies = False
    prompt = False

    def __init__(self) -> None:
        self._last = -1

    def choose(
        self,
        path: PathState,
        paths: Sequence[PathState],
        backlog: Backlog,
        room_bytes: int,
        now: float,
    ) -> SendGrant | None:
        for rank in range(len(LABELS)):
            may = allowed_paths(paths, rank)
            if not backlog.waiting_bytes[rank] or path not in may:
                continue
            if self._next_path(path, may) is not path:
                continue
            self._last = path.path_id
            return SendGrant(rank, min(room_bytes, CHUNK_BYTES))
        return None

    def _next_path(self, asked: PathState, paths: Sequence[PathState]) -> PathState:
        """Return the path whose turn it is: the asked one has room; others are checked."""
        ready = [path for path in paths if path is asked or has_room(path)]
        ready.sort(key=lambda path: path.path_id)
        return next((path for path in ready if path.path_id > self._last), ready[0])

    def next_check_s(self, paths: Sequence[PathState], now: float) -> float | None:
        """Return a short time with several paths: turns change as queues fill."""
        return 0.010 if len(paths) > 1 else None


class RedundantScheduler:
    """A scheduler that sends everything on each path that may carry it, new data first."""

    name = "redundant"
    copies = True
    prompt = False

    def choose(
        self,
        path: PathState,
        paths: Sequence[PathState],
        backlog: Backlog,
        room_bytes: int,
        now: float,
    ) -> SendGrant | None:
        for rank in range(len(LABELS)):
            relied_on = path in allowed_paths(paths, rank)
            if not relied_on and not path.allowed >> rank & 1:
                continue
            if relied_on and backlog.waiting_bytes[rank]:
                return SendGrant(rank, room_bytes)
            if backlog.copyable_bytes[rank]:
                return SendGrant(rank, room_bytes, copy=True)
        return None

    def next_check_s(self, paths: Sequence[PathState], now: float) -> float | None:
        return None


class LabelMapping:
    """IntNW's mapping of labels to paths (dissertation, 2.3.2)."""

    name = "labels"
    copies = False
    prompt = True

    def choose(
        self,
        path: PathState,
        paths: Sequence[PathState],
        backlog: Backlog,
        room_bytes: int,
        now: float,
    ) -> SendGrant | None:
        waiting = backlog.waiting_bytes
        # One path carries all labels, the most urgent one first.
        if len(paths) == 1:
            for rank in range(4):
                if waiting[rank] and path.allowed >> rank & 1:
                    return SendGrant(rank, room_bytes)
            return None
        # Small foreground data goes over the quickest path, large foreground data over the widest.
        for rank, best in ((0, quickest), (1, widest)):
            if waiting[rank]:
                may = allowed_paths(paths, rank)
                if may and best(may) is path:
                    return SendGrant(rank, room_bytes)
        # Background data fills any path that has room.
        for rank in BACKGROUND_RANKS:
            if waiting[rank] and path in allowed_paths(paths, rank):
                return SendGrant(rank, min(room_bytes, CHUNK_BYTES))
        return None

    def next_check_s(self, paths: Sequence[PathState], now: float) -> float | None:
        """Return None: latencies change with queues, which the driver watches."""
        return None


class DecidedScheduler:
    """A scheduler that keeps to the daemon's decision for each label.

    `copies`: some data is sent twice now.

    Masks on the paths (`Session.allow`) say which networks a label may use, in both directions:
    `single(n)` leaves one, `mptcp(primary=n)` all that it names, `defer` none. Two things are left to the
    scheduler. It carries out `redundant(n, m)`: it sends data in flight again on the other path. And it
    counts the bytes that waited under each label, which tell the daemon what there is to decide about.
    """

    prompt = False  # it must see all data that is sent

    def __init__(self, inner: Scheduler) -> None:
        self.name = f"chosen {inner.name}"
        self.copies = inner.copies
        self._twice = 0
        self._used: Callable[[], None] = lambda: None
        self._inner = inner
        self._most_bytes = [0] * len(LABELS)
        self._told = False

    def on_use(self, call: Callable[[], None]) -> None:
        """Call `call` when there is data to send, once after each `taken`."""
        self._used = call

    def repeat(self, ranks: int) -> None:
        """Repeat data of these labels (a mask) on each other path that it may use."""
        self._twice = ranks
        self.copies = bool(ranks) or self._inner.copies

    def take_waiting(self) -> list[int]:
        """Return the most bytes that waited under each label since the last call."""
        most, self._most_bytes = self._most_bytes, [0] * len(LABELS)
        self._told = False
        return most

    def choose(
        self,
        path: PathState,
        paths: Sequence[PathState],
        backlog: Backlog,
        room_bytes: int,
        now: float,
    ) -> SendGrant | None:
        # Note what waits. The first data after a `take_waiting` is news for the daemon.
        most = self._most_bytes
        for rank, count in enumerate(backlog.waiting_bytes):
            most[rank] = max(most[rank], count)
        if not self._told:
            self._told = True
            self._used()
        grant = self._inner.choose(path, paths, backlog, room_bytes, now)
        # New data comes first. Then repeat data that is in flight on other paths.
        if grant is None and self._twice:
            for rank in range(len(LABELS)):
                may = self._twice & path.allowed
                if may >> rank & 1 and backlog.copyable_bytes[rank]:
                    return SendGrant(rank, room_bytes, copy=True)
        return grant

    def next_check_s(self, paths: Sequence[PathState], now: float) -> float | None:
        return self._inner.next_check_s(paths, now)


def permissions(
    strategies: Sequence[Strategy | None], paths: Mapping[int, PathState], *, thrifty: bool = False
) -> dict[int, int]:
    """Return a mask of labels by path id; None as a choice: nothing was decided for a label.

    A choice must never end a flow: if none of the chosen networks is up, all may be used, unless the
    choice is to wait. A path that will soon be gone carries nothing new. With `thrifty`, labels without a
    decision may use own metered networks only if there are no other own ones; helpers, which a person has
    asked for, carry such labels beside any of them.
    """
    masks = dict.fromkeys(paths, 0)
    staying = {number: path for number, path in paths.items() if not path.facts.leaving} or paths
    for rank, strategy in enumerate(strategies):
        if strategy is not None and strategy.kind is StrategyKind.DEFER:
            continue
        # With a decision, the chosen networks are meant. Without one all are, or with `thrifty` helpers
        # and the unmetered own ones if there are some. If none of these is up, all paths that stay carry
        # the label.
        if strategy is not None:
            chosen = strategy.networks
            meant = [it for it, path in staying.items() if path.facts.network in chosen]
        else:
            helpers = [it for it, path in staying.items() if path.facts.kind is NetworkKind.HELPER]
            own = {it: path.facts for it, path in staying.items() if it not in helpers}
            meant = [it for it, facts in own.items() if not (thrifty and facts.metered)] or [*own]
            meant += helpers
        for number in meant or staying:
            masks[number] |= 1 << rank
    return masks
