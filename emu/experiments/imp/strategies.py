"""What prefetches, when: the paper's four simple strategies, and ours (dissertation, 3.4.1.3).

All of them are queues with another plan, so that the same simulation and the same program carry them
out: only what is prefetched differs. All may use both networks, and step back for demand.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from cedos.selector.prefetch.path import Path, PrefetchPrices
from cedos.selector.prefetch.queue import Plan, Queue, State
from emu.experiments.imp.workload import Workload


@dataclass(slots=True)
class Simple(Queue):
    """Prefetches what is small enough over the networks that it may use, in the order of the hints.

    Args:
        largest_bytes: larger items are not prefetched.
        networks: those that it uses; None: all.
        ranks: the items that it fetches, in this order; None: all, in the order of the hints.
    """

    largest_bytes: float = inf
    networks: tuple[str, ...] | None = None
    ranks: Mapping[Hashable, int] | None = None

    def plan(self, now_s: float, paths: Sequence[Path], prices: PrefetchPrices) -> Plan:
        present = {path.name: path for path in paths if path.present}
        allowed = [
            path for path in present.values() if self.networks is None or path.name in self.networks
        ]
        running = [item for item in self.items.values() if item.state is State.RUNNING]
        stops = tuple(
            item.key for item in running if not item.demanded and item.network not in present
        )
        busy = {item.network for item in running}
        waiting = [
            one.key
            for one in self.candidates(now_s)
            if (self.items[one.key].size_bytes or 0.0) <= self.largest_bytes
            and (self.ranks is None or one.key in self.ranks)
        ]
        # In the order of the hints: it knows nothing of accuracy.
        ranks = self.ranks
        waiting.sort(key=lambda key: self.items[key].order if ranks is None else ranks[key])
        free = sorted(
            (path for path in allowed if path.name not in busy), key=lambda path: -path.rate_bps
        )
        return Plan(
            tuple((key, path.name) for key, path in zip(waiting, free, strict=False)), stops
        )


def simple(threshold_bytes: float) -> dict[str, Callable[[], Queue]]:
    """Name -> a new one of each of the paper's simple strategies."""
    return {
        "never": lambda: Simple(largest_bytes=-1.0),
        "size-limit": lambda: Simple(largest_bytes=threshold_bytes),
        "wifi-only": lambda: Simple(networks=("wifi",)),
        "always": Simple,
    }


def clairvoyant(work: Workload) -> Queue:
    """One who knows what will be read, and in which order, and has no budget: what is to be gained."""
    read = {item.key for item in work.items if item.read}
    order = [step.key for step in work.steps if step.key in read]
    return Simple(ranks={key: rank for rank, key in enumerate(order)})
