"""Workloads of the experiments (dissertation, 3.4.2) and the strategies that carry them (3.4.1.3).

The papers' own traces are not public. What they say of them is kept: 35 messages of which 28 are read
and 7 deleted unread; 25 articles in five feeds of which 16 are read, by feeds with reading rates from
25 to 100 %, with 30 to 60 s between two. Sizes are drawn from log-normal distributions whose totals are
those that the figures show: some 6 MB of mail, 12 MB of articles with the median just below 128 KB.

All strategies, the paper's four simple ones and ours, are queues with another plan. They may use both
networks, and step back for demand.
"""

import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf
from statistics import NormalDist

from cedos.selector.budgets.prices import Prices
from cedos.selector.prefetch.outlook import Path
from cedos.selector.prefetch.queue import Plan, Queue, State
from cedos.selector.prefetch.value import ShadowAccuracy

_NORMAL = NormalDist()

# Feed: articles, read articles, median size. Of 25 articles 16 are read (64 %).
FEEDS: dict[str, tuple[int, int, float]] = {
    "pictures": (8, 2, 300_000.0),
    "papers": (6, 5, 60_000.0),
    "weather": (5, 3, 40_000.0),
    "friends": (4, 4, 160_000.0),
    "city": (2, 2, 250_000.0),
}


@dataclass(frozen=True, slots=True)
class Item:
    """A message or article; `read` is known to the person alone."""

    key: int
    cls: str
    size_bytes: int
    read: bool


@dataclass(frozen=True, slots=True)
class Step:
    """The person comes to an item after thinking for so long: it is read, or thrown away."""

    key: int
    think_s: float


@dataclass(frozen=True, slots=True)
class Workload:
    """A trial: items in the order in which they are hinted, and steps in order."""

    name: str
    items: tuple[Item, ...]
    steps: tuple[Step, ...]
    # Per class how many hints of earlier days came true, of how many: what a program that has been in
    # use for a month knows.
    history: dict[str, tuple[int, int]]
    threshold_bytes: float

    def teach(self, accuracy: ShadowAccuracy) -> None:
        """Teach the hints of earlier days as they came true: the last ones of a month, evenly mixed."""
        for cls, (came, issued) in self.history.items():
            for number in range(issued):
                consumed = (number * came) // issued != ((number + 1) * came) // issued
                accuracy.on_resolved(cls, consumed)

    @property
    def total_bytes(self) -> int:
        return sum(item.size_bytes for item in self.items)


def email(seed: int, *, scale: float = 1.0) -> Workload:
    """Return an inbox of 35, the newest first; hints of one class that come true to 80 %.

    `seed`: what is read, in which order sizes come, and how long the person thinks: 900 s in all; the
    rest of the 20 minutes is waiting.
    """
    drawn = random.Random(f"email {seed}")
    # Three of four are text, the others carry something: [93] is not public, its totals are.
    sizes = _quantiles(26, 9_000.0, 1.1) + _quantiles(9, 450_000.0, 0.8)
    drawn.shuffle(sizes)
    read = set(drawn.sample(range(35), 28))
    items = tuple(
        Item(key, "inbox", max(round(size * scale), 500), key in read)
        for key, size in enumerate(sizes)
    )
    thinks = [exp(drawn.gauss(0.0, 1.0)) for _ in range(28)]
    per = 900.0 / sum(thinks)
    pauses = iter([max(think * per, 2.0) for think in thinks])
    steps = tuple(Step(item.key, next(pauses) if item.read else 1.0) for item in items)
    return Workload("email", items, steps, {"inbox": _past(drawn, 0.8, 140)}, 32_000.0 * scale)


def news(seed: int, *, scale: float = 1.0, classes: bool = True) -> Workload:
    """Five feeds of 25 articles; the person takes feeds in any order, and articles as they come.

    `seed`: what is read and when.
    `classes`: a class per feed; else one for all.
    """
    drawn = random.Random(f"news {seed}")
    items: list[Item] = []
    history: dict[str, tuple[int, int]] = {}
    for feed, (count, wanted, median) in FEEDS.items():
        sizes = _quantiles(count, median, 1.5)
        drawn.shuffle(sizes)
        read = set(drawn.sample(range(count), wanted))
        cls = feed if classes else "news"
        issued, came = _past(drawn, wanted / count, 20 * count)[::-1]
        before = history.get(cls, (0, 0))
        history[cls] = (before[0] + came, before[1] + issued)
        items += [
            Item(len(items) + at, cls, max(round(size * scale), 500), at in read)
            for at, size in enumerate(sizes)
        ]
    by_feed: list[list[Item]] = []
    at = 0
    for count, _, _ in FEEDS.values():
        by_feed.append(items[at : at + count])
        at += count
    # The hints come as a reader polls its feeds: one after another, in the order of its list.
    order = list(range(len(FEEDS)))
    drawn.shuffle(order)
    steps = tuple(
        Step(item.key, drawn.uniform(30.0, 60.0) if item.read else 0.5)
        for feed in order
        for item in by_feed[feed]
    )
    return Workload("news", tuple(items), steps, history, 128_000.0 * scale)


def _quantiles(count: int, median: float, sigma: float) -> list[float]:
    """Sizes as a log-normal distribution has them, evenly: trials differ in order, not in total."""
    return [median * exp(sigma * _NORMAL.inv_cdf((at + 0.5) / count)) for at in range(count)]


def _past(drawn: random.Random, rate: float, hints: int) -> tuple[int, int]:
    """(came true, issued) of the hints of earlier days."""
    return sum(drawn.random() < rate for _ in range(hints)), hints


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

    def plan(self, now_s: float, paths: Sequence[Path], prices: Prices) -> Plan:
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
    """Return a clairvoyant's queue: it knows what will be read, in which order, and has no budget."""
    read = {item.key for item in work.items if item.read}
    order = [step.key for step in work.steps if step.key in read]
    return Simple(ranks={key: rank for rank, key in enumerate(order)})
