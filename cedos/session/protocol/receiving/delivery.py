"""In which order whole IROBs reach the application (dissertation, 2.3.2).

An IROB is eligible once those it waits for have been received by the application. Of the eligible ones
the label that goes first wins; within a label, first come first served.
"""

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush

from msgspec import Struct

from cedos.session.protocol.frames.frames import Chunk, Order
from cedos.session.protocol.frames.intervals import CumulativeSet


class Run(Struct, gc=False):
    first: int
    rank: int
    payloads: Sequence[Chunk]


class _Blocked(Struct):
    run: Run
    missing: int


class Delivery:
    __slots__ = ("_after_all", "_listed", "_ready", "_taken", "count", "delivered")

    def __init__(self, first: int = 1) -> None:
        self.delivered = CumulativeSet(first)
        self.count = 0  # eligible now
        self._ready: tuple[deque[Run], ...] = (deque(), deque(), deque(), deque())
        self._taken = [0, 0, 0, 0]  # of the first run of each label
        self._after_all: list[tuple[int, Run]] = []  # heap by id
        self._listed: dict[int, list[_Blocked]] = {}  # by what they wait for

    def arrive(self, run: Run, order: Order, after: tuple[int, ...]) -> None:
        if order is Order.AFTER_ALL and self.delivered.floor < run.first:
            heappush(self._after_all, (run.first, run))
            return
        if order is Order.LISTED:
            missing = [each for each in set(after) if not self.delivered.covers(each, each + 1)]
            if missing:
                blocked = _Blocked(run, len(missing))
                for each in missing:
                    self._listed.setdefault(each, []).append(blocked)
                return
        self._eligible(run)

    def never(self, first: int, stop: int) -> None:
        """IROBs that were abandoned: who waits for them need not."""
        self._done(first, stop)

    def pop(self, limit: int) -> Run | None:
        """At most `limit`, in order, of one label; several only if none makes another one eligible."""
        for queue in self._ready:
            if queue:
                break
        else:
            return None
        run = queue[0]
        payloads, rank = run.payloads, run.rank
        start = self._taken[rank]
        if self._listed:  # those that wait for all lower ids cannot become eligible within a run
            limit = 1
        stop = min(start + limit, len(payloads))
        if stop == len(payloads):
            queue.popleft()
            self._taken[rank] = 0
        else:
            self._taken[rank] = stop
        if stop - start < len(payloads):
            run = Run(run.first + start, rank, payloads[start:stop])
        self.count -= stop - start
        self._done(run.first, run.first + stop - start)
        return run

    @property
    def waiting(self) -> bool:
        return bool(self.count or self._after_all or self._listed)

    def _eligible(self, run: Run) -> None:
        self._ready[run.rank].append(run)
        self.count += len(run.payloads)

    def _done(self, first: int, stop: int) -> None:
        self.delivered.add(first, stop)
        while self._after_all and self._after_all[0][0] <= self.delivered.floor:
            self._eligible(heappop(self._after_all)[1])
        if self._listed:
            few = range(first, stop) if stop - first < len(self._listed) else list(self._listed)
            for irob in few:
                if first <= irob < stop:
                    for blocked in self._listed.pop(irob, ()):
                        blocked.missing -= 1
                        if not blocked.missing:
                            self._eligible(blocked.run)
