"""IntNW's mapping of labels to networks (dissertation, 2.3.2).

Foreground goes before background. Small foreground data takes the path of the lowest latency, large
foreground data the one of the highest bandwidth, neither is spread: the last piece would come late.
Background data is striped, in chunks, over every path on which no foreground data waits.
"""

from collections.abc import Sequence

from cedos.session.protocol.schedulers.estimates import CHUNK_BYTES, allowed, quickest, widest
from cedos.session.protocol.schedulers.interface import (
    BACKGROUND_RANKS,
    Backlog,
    PathState,
    SendGrant,
)


class LabelMapping:
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
        if len(paths) == 1:
            for rank in range(4):
                if waiting[rank] and path.allowed >> rank & 1:
                    return SendGrant(rank, room_bytes)
            return None
        for rank, best in ((0, quickest), (1, widest)):
            if waiting[rank]:
                may = allowed(paths, rank)
                if may and best(may) is path:
                    return SendGrant(rank, room_bytes)
        for rank in BACKGROUND_RANKS:
            if waiting[rank] and path in allowed(paths, rank):
                return SendGrant(rank, min(room_bytes, CHUNK_BYTES))
        return None

    def next_check_s(self, paths: Sequence[PathState], now: float) -> float | None:
        """Nothing changes by waiting alone: latencies change with queues, which the driver watches."""
        return None
