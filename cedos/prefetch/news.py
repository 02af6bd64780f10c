"""What a prefetcher tells of itself: what is open, what it has begun and used, and why."""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from cedos.selector.prefetch.choices import Taking, ways
from cedos.selector.prefetch.path import Path, PrefetchPrices
from cedos.selector.prefetch.queue import Plan, Queue
from cedos.selector.prefetch.reason import PrefetchVerdict, verdicts

SHOWN = 20


@dataclass(frozen=True, slots=True)
class PrefetchedItem:
    title: str
    verdict: PrefetchVerdict


@dataclass(frozen=True, slots=True)
class News:
    """What has changed since the last report.

    Attributes:
        networks: those that bytes are told by, in order.
        waiting: per open item its ways, leaving it to demand first.
        started: the ways of what was begun, with the network chosen.
        used_bytes: what was received for items of this program, by network.
        used_j: joules of that, on an awake radio.
        counts: items by state.
        items: those for people to see.
    """

    networks: tuple[str, ...] = ()
    waiting: Sequence[Sequence[Taking]] = ()
    started: Sequence[tuple[Sequence[Taking], int]] = ()
    used_bytes: tuple[float, ...] = ()
    used_j: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    items: Sequence[PrefetchedItem] = ()


class Ledger:
    def __init__(self) -> None:
        self._used: dict[str, float] = {}

    def received(self, network: str | None, received_bytes: float) -> None:
        """So many bytes more came for an item; on demand (None) it is not known over which network."""
        if network is not None and received_bytes > 0.0:
            self._used[network] = self._used.get(network, 0.0) + received_bytes

    def news(
        self,
        queue: Queue,
        now_s: float,
        paths: Sequence[Path],
        prices: PrefetchPrices,
        plan: Plan,
        before: Sequence[tuple[Hashable, Sequence[Taking]]],
        title: Callable[[Hashable], str],
    ) -> News:
        """The news of a round whose plan has been carried out; `before`: the `ways` before that."""
        names = tuple([path.name for path in paths])
        used = tuple([self._used.pop(name, 0.0) for name in names])
        self._used.clear()
        known = dict(before)
        started = []
        for key, network in plan.starts:
            options = known.get(key, ())
            at = names.index(network)
            place = next((n for n, one in enumerate(options) if one.network == at), None)
            if place is not None:
                started.append((options, place))
        return News(
            networks=names,
            waiting=[options for _, options in ways(queue, now_s, paths, prices)],
            started=started,
            used_bytes=used,
            used_j=sum(
                path.active_j(8.0 * each / path.rate_bps, each)
                for path, each in zip(paths, used, strict=True)
                if each > 0.0 and path.rate_bps > 0.0
            ),
            counts=dict(Counter(str(item.state) for item in queue.items.values())),
            items=[
                PrefetchedItem(title(verdict.item.key), verdict)
                for verdict in verdicts(queue, now_s, paths, prices, plan, SHOWN)
            ],
        )
