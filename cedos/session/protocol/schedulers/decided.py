"""A scheduler that keeps to the daemon's decision for each label.

Masks on the paths (`Session.allow`) say which networks a label may use, in both directions: `single(n)`
leaves one, `mptcp(primary=n)` leaves all that were named, `defer` none. Two things are left to this
scheduler. It carries out `redundant(n, m)`: data in flight is sent again on the other path. And it
notices what there is to decide about: how much waited under which label.
"""

from collections.abc import Callable, Mapping, Sequence

from cedos.model import NetworkKind, Strategy, StrategyKind
from cedos.session.protocol.schedulers.interface import (
    LABELS,
    Backlog,
    PathState,
    Scheduler,
    SendGrant,
)


class DecidedScheduler:
    """A scheduler under a decision; `copies`: some data is sent twice now."""

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
