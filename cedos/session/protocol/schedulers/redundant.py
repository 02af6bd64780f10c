"""The same data on every path; the first copy wins.

New data goes before copies, but not on a path in doubt while another is not. So a path that is faster
than the others carries everything, and the slower ones repeat what is still on its way, oldest first:
what a dying path takes with it is already coming.
"""

from collections.abc import Sequence

from cedos.session.protocol.schedulers.estimates import allowed
from cedos.session.protocol.schedulers.interface import (
    ALL_RANKS,
    LABELS,
    Backlog,
    PathState,
    SendGrant,
)


class RedundantScheduler:
    """`ranks` are the labels that are sent twice, a mask; the others go where there is room."""

    name = "redundant"
    copies = True
    prompt = False

    def __init__(self, ranks: int = ALL_RANKS) -> None:
        self._ranks = ranks

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
            if self._ranks >> rank & 1 and backlog.copyable_bytes[rank]:
                return SendGrant(rank, room_bytes, copy=True)
        return None

    def next_check_s(self, paths: Sequence[PathState], now: float) -> float | None:
        return None
