"""The path of the shortest round trip until its window is full, then the next: MPTCP's default.

It is what CBSP compares SWTC with; its "biased feeding" (CBSP, III) is part of it.
"""

from collections.abc import Sequence

from cedos.session.protocol.schedulers.estimates import CHUNK_BYTES, allowed, rtt_s
from cedos.session.protocol.schedulers.interface import LABELS, Backlog, PathState, SendGrant


def has_room(path: PathState) -> bool:
    """Whether its kernel would send at once: less than a chunk waits there."""
    return path.facts.unsent_bytes < CHUNK_BYTES


class LowestRtt:
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
        """The most urgent data, unless a path with a shorter round trip could take it now."""
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
        """With several paths, soon: the queues of the quicker ones fill without news."""
        return 0.010 if len(paths) > 1 else None
