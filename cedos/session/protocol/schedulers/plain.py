"""Plain path schedulers: lowest round trip, round robin, redundant, and IntNW's mapping of labels."""

from collections.abc import Sequence

from cedos.session.protocol.schedulers.interface import (
    BACKGROUND_RANKS,
    CHUNK_BYTES,
    LABELS,
    Backlog,
    PathState,
    SendGrant,
    allowed,
    quickest,
    rtt_s,
    widest,
)


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
            may = allowed(paths, rank)
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
            may = allowed(paths, rank)
            if not backlog.waiting_bytes[rank] or path not in may:
                continue
            if self._next(path, may) is not path:
                continue
            self._last = path.path_id
            return SendGrant(rank, min(room_bytes, CHUNK_BYTES))
        return None

    def _next(self, asked: PathState, paths: Sequence[PathState]) -> PathState:
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
            relied_on = path in allowed(paths, rank)
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
                may = allowed(paths, rank)
                if may and best(may) is path:
                    return SendGrant(rank, room_bytes)
        # Background data fills any path that has room.
        for rank in BACKGROUND_RANKS:
            if waiting[rank] and path in allowed(paths, rank):
                return SendGrant(rank, min(room_bytes, CHUNK_BYTES))
        return None

    def next_check_s(self, paths: Sequence[PathState], now: float) -> float | None:
        """Return None: latencies change with queues, which the driver watches."""
        return None
