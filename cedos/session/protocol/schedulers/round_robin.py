"""One chunk on each path in turn; a path whose kernel is full loses its turn."""

from collections.abc import Sequence

from cedos.session.protocol.schedulers.estimates import CHUNK_BYTES, allowed
from cedos.session.protocol.schedulers.interface import LABELS, Backlog, PathState, SendGrant
from cedos.session.protocol.schedulers.lowest_rtt import has_room


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
        """Whose turn it is: the path that was asked for has room, of the others those that say so."""
        ready = [path for path in paths if path is asked or has_room(path)]
        ready.sort(key=lambda path: path.path_id)
        return next((path for path in ready if path.path_id > self._last), ready[0])

    def next_check_s(self, paths: Sequence[PathState], now: float) -> float | None:
        """With several paths, soon: whose turn it is changes as queues fill."""
        return 0.010 if len(paths) > 1 else None
