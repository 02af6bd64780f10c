"""The hints of one application and what to do about them now (dissertation, 3.2 and 3.3.1).

Facts in, orders out: hints, demands, progress and ends are told, `plan` says what to start and what to
stop. Whoever carries it out may be a program, an emulation or a simulation. Nothing here fetches.

An item in a class of higher accuracy comes first, and within a class the earlier hint. An item whose
network goes away keeps what it has received, and goes on where it is worth it, or waits.
"""

from collections.abc import Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite, sqrt

from cedos.selector.budgets.supply import PROHIBITIVE
from cedos.selector.prefetch.accuracy import ShadowAccuracy
from cedos.selector.prefetch.path import Path, PrefetchPrices, on_demand
from cedos.selector.prefetch.value import Batch, Candidate, Reserve, best_batch, worth_it

_ASSUMED_BYTES = 100_000.0
_SIZE_WEIGHT = 2.0
_ACTS_PER_S = 1 / 40
_ACTS_WEIGHT_S = 120.0
_LEAST_LEFT_BYTES = 1.0
_LONG_S = 1e6
_PROHIBITIVE = PROHIBITIVE / 2
_COUNTED_S = 2.0
"""What was carried is counted by the host, and asked for by us, so late at the most."""

_BETTER = 1.25
"""A running item moves to another network only if it is this much better off there."""


class State(StrEnum):
    """What has become of a hint."""

    WAITING = "waiting"
    RUNNING = "running"
    READY = "ready"
    CONSUMED = "consumed"
    DROPPED = "dropped"


@dataclass(slots=True)
class Item:
    """One hint. `network` is where it runs; `not_before_s` when it may be tried again."""

    key: Hashable
    cls: Hashable
    order: int
    hinted_at_s: float
    size_bytes: float | None = None
    received_bytes: float = 0.0
    state: State = State.WAITING
    demanded: bool = False
    network: str | None = None
    failures: int = 0
    not_before_s: float = 0.0
    aged: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now: `starts` are (key, network), `stops` keys; `batches` what the starts belong to."""

    starts: tuple[tuple[Hashable, str], ...] = ()
    stops: tuple[Hashable, ...] = ()
    batches: tuple[Batch, ...] = ()


@dataclass(slots=True)
class _Committed:
    """A prefetch of so many bytes, until what it carried is counted; when it was last seen running."""

    size_bytes: float
    since_s: float
    seen_s: float


@dataclass(slots=True)
class Queue:
    """The hints of one application.

    Args:
        accuracy: what is known of how often its hints come true.
        at_once: so many prefetches run side by side on one network.
        retry_s: an item that failed waits so long, and twice as long every further time.
        reserve_sds: so many standard deviations of what fetches on demand are expected to take are left
            for them beside the mean.
        keeps_for_all: whether something is left for fetches on demand also of an item that alone is more
            than what is left. Nothing can be kept for that, and keeping it would stop all others.
        forget_s: a hint that nobody wanted for so long is counted as one that nobody will; it stays.
    """

    accuracy: ShadowAccuracy = field(default_factory=ShadowAccuracy)
    at_once: int = 1
    retry_s: float = 2.0
    forget_s: float = 7 * 86_400.0
    items: dict[Hashable, Item] = field(default_factory=dict)
    reserve_sds: float = 1.0
    keeps_for_all: bool = True
    _hints: int = 0
    _last: int = 0
    _acts: float = 0.0
    _in_order: float = 0.0
    _sizes: tuple[float, float] = (0.0, 0.0)
    _began_s: float | None = None
    _committed: dict[tuple[Hashable, str], _Committed] = field(default_factory=dict)

    def hint(
        self, key: Hashable, now_s: float, size_bytes: float | None = None, cls: Hashable = ""
    ) -> None:
        """Something may be asked for; a size that makes no sense counts as not known.

        Raises:
            ValueError: the key is in use.
        """
        if key in self.items:
            raise ValueError(f"{key!r} has been hinted already; forget it first")
        if size_bytes is not None and not (isfinite(size_bytes) and size_bytes >= 0):
            size_bytes = None
        self._began_s = now_s if self._began_s is None else self._began_s
        self._hints += 1
        self.items[key] = Item(key, cls, self._hints, now_s, size_bytes)

    def demand(self, key: Hashable, now_s: float) -> State:
        """Somebody asks for it: the state that it was in. Again changes nothing."""
        item = self.items[key]
        was = item.state
        if not item.demanded and was is not State.DROPPED:
            self._acted(item)
            item.demanded = True
            if not item.aged:
                self.accuracy.resolved(item.cls, consumed=True)
            if was in (State.READY, State.WAITING):
                item.state = State.CONSUMED
        return was

    def cancel(self, key: Hashable, now_s: float) -> State:
        """Nobody will ask for it any more: the state that it was in."""
        item = self.items[key]
        was = item.state
        if not item.demanded and was is not State.DROPPED:
            self._acted(item)
            if not item.aged:
                self.accuracy.resolved(item.cls, consumed=False)
        item.state, item.network = State.DROPPED, None
        return was

    def forget(self, key: Hashable) -> None:
        """Removes all traces of a hint whose fate is known."""
        self.items.pop(key, None)

    def started(self, key: Hashable, network: str) -> None:
        """It is being fetched over a network, ahead of time."""
        item = self.items[key]
        item.state, item.network = State.RUNNING, network

    def progressed(
        self, key: Hashable, received_bytes: float, size_bytes: float | None = None
    ) -> None:
        """So much of it is there in all, of `size_bytes` where that has become known."""
        item = self.items[key]
        if size_bytes is not None:
            item.size_bytes = size_bytes
        if received_bytes > item.received_bytes:
            item.received_bytes = received_bytes
            item.failures = 0

    def finished(self, key: Hashable, size_bytes: float) -> None:
        """All of it is there."""
        item = self.items[key]
        known, total = self._sizes
        self._sizes = (known + 1.0, total + size_bytes)
        item.received_bytes, item.network = size_bytes, None
        if item.state is not State.DROPPED:
            item.state = State.CONSUMED if item.demanded else State.READY

    def stopped(self, key: Hashable) -> None:
        """It was stopped, or lost its network; what it has received stays."""
        item = self.items[key]
        item.network = None
        if item.state is State.RUNNING:
            item.state = State.CONSUMED if item.demanded else State.WAITING

    def failed(self, key: Hashable, now_s: float, *, for_good: bool = False) -> None:
        """It failed by itself; it is tried again later, unless that is of no use."""
        item = self.items[key]
        item.failures += 1
        item.not_before_s = now_s + self.retry_s * 2.0 ** min(item.failures - 1, 10)
        self.stopped(key)
        if for_good:
            item.not_before_s = float("inf")

    def left_bytes(self, key: Hashable) -> float:
        """What is still to be fetched; of an unknown size, what items are on average."""
        item = self.items[key]
        size = item.size_bytes
        if size is None:
            known, total = self._sizes
            size = (total + _SIZE_WEIGHT * _ASSUMED_BYTES) / (known + _SIZE_WEIGHT)
        return max(size - item.received_bytes, _LEAST_LEFT_BYTES)

    def acts_per_s(self, now_s: float) -> float:
        """How often somebody asks for an item, or throws one away."""
        if self._began_s is None:
            return _ACTS_PER_S
        seconds = max(now_s - self._began_s, 0.0) + _ACTS_WEIGHT_S
        return (self._acts + _ACTS_PER_S * _ACTS_WEIGHT_S) / seconds

    def hazards_per_s(self, now_s: float) -> dict[Hashable, float]:
        """How likely somebody comes to each open hint within the next second.

        Some go through hints one after another, others take any. How often the one after the last was
        next is learned; so many of the next steps come in order, and reach the k-th one in k steps.
        """
        ahead = self._ahead()
        per_s = self.acts_per_s(now_s)
        in_order = (self._in_order + 1.0) / (self._acts + 2.0)
        return {
            item.key: per_s * (in_order / (place + 1) + (1.0 - in_order) / len(ahead))
            for place, item in enumerate(ahead)
        }

    def candidates(self, now_s: float) -> list[Candidate]:
        """What could be started: the most accurate class first, then what comes first in order."""
        self._age(now_s)
        hazards = self.hazards_per_s(now_s)
        waiting = [
            item
            for item in self._ahead()
            if item.state is State.WAITING and item.not_before_s <= now_s
        ]
        accuracy = {item.cls: self.accuracy.of(item.cls) for item in waiting}
        waiting.sort(key=lambda item: -accuracy[item.cls])
        return [
            Candidate(item.key, self.left_bytes(item.key), accuracy[item.cls], hazards[item.key])
            for item in waiting
        ]

    def reserve(self, now_s: float, paths: Sequence[Path], prices: PrefetchPrices) -> Reserve:
        """What is to be left for fetches on demand of all that is not there yet."""
        joules = squared_j = 0.0
        sent, squared = [0.0] * len(paths), [0.0] * len(paths)
        free = [path for path in paths if prices.data_rate(path.name) <= 0.0]
        hazards = self.hazards_per_s(now_s)
        for item in self._ahead():
            if item.state in (State.READY, State.RUNNING):
                continue
            size, accuracy = self.left_bytes(item.key), self.accuracy.of(item.cls)
            use = on_demand(size, paths, prices)
            # What a free network will have fetched by then takes no metered bytes, and few joules.
            hazard = hazards[item.key]
            chance, path = max(
                ((path.in_time(size, hazard), path) for path in free),
                key=lambda one: one[0],
                default=(0.0, None),
            )
            missed = accuracy * (1.0 - chance)
            if self._kept_for(prices.energy_rate(use.energy_j, _LONG_S)):
                if path is not None:
                    joules += chance * path.active_j(path.average.fetch_s(size), size)
                joules += missed * use.energy_j
                squared_j += missed * (1.0 - missed) * use.energy_j**2
            for at, (amount, other) in enumerate(zip(use.sent, paths, strict=True)):
                if not self._kept_for(prices.data_rate(other.name, size, _LONG_S)):
                    continue
                mean = missed * amount
                sent[at] += mean
                # It goes over this network or another, and is asked for or not.
                squared[at] += mean * size - mean * mean
        return Reserve(
            joules + self.reserve_sds * sqrt(squared_j),
            {
                path.name: self._uncounted(path.name, now_s)
                + mean
                + self.reserve_sds * sqrt(max(square, 0.0))
                for path, mean, square in zip(paths, sent, squared, strict=True)
            },
        )

    def _kept_for(self, rate: float) -> bool:
        return self.keeps_for_all or rate < _PROHIBITIVE

    def _uncounted(self, network: str, now_s: float) -> float:
        """Bytes over a network that are under way, or were a moment ago: budgets do not show them yet."""
        total = 0.0
        for (key, name), one in list(self._committed.items()):
            item = self.items.get(key)
            if item is not None and item.state is State.RUNNING and item.network == name:
                one.seen_s = now_s
            if now_s - one.seen_s > _COUNTED_S:
                del self._committed[key, name]
            elif name == network:
                fresh = now_s - one.since_s <= _COUNTED_S or one.seen_s < now_s
                total += one.size_bytes if fresh else min(one.size_bytes, self.left_bytes(key))
        return total

    def _ahead(self) -> list[Item]:
        """Open hints in the order in which somebody who goes through them comes to them."""
        found = [item for item in self.items.values() if _open(item)]
        found.sort(key=lambda item: (item.order < self._last, item.order))
        return found

    def _acted(self, item: Item) -> None:
        """Somebody came to an item."""
        self._acts += 1.0
        self._in_order += item is self._ahead()[0]
        self._last = item.order

    def plan(self, now_s: float, paths: Sequence[Path], prices: PrefetchPrices) -> Plan:
        """What to start and to stop now.

        The network that gains most comes first; another one takes what gains more there and now than
        in its turn on the first.

        `paths`: all networks that are known, present or not.
        """
        hazards = self.hazards_per_s(now_s)
        reserve = self.reserve(now_s, paths, prices)
        running = [item for item in self.items.values() if item.state is State.RUNNING]
        busy = dict.fromkeys((path.name for path in paths), 0)
        for item in running:
            if item.network in busy:
                busy[item.network] += 1
        stops: list[Hashable] = []
        for item in running:
            if item.demanded:
                continue
            roomy = {name for name, count in busy.items() if count < self.at_once}
            if self._stops(item, paths, prices, hazards, roomy):
                stops.append(item.key)
                if item.network in busy:
                    busy[item.network] -= 1
        waiting = self.candidates(now_s)
        starts: list[tuple[Hashable, str]] = []
        batches: list[Batch] = []
        instead: dict[Hashable, float] = {}
        free = [index for index, path in enumerate(paths) if path.present]
        while free and waiting:
            found = [
                (batch, index)
                for index in free
                if (batch := best_batch(index, waiting, paths, prices, instead, reserve))
            ]
            if not found:
                break
            batch, index = max(found, key=lambda one: one[0].gain_s)
            free.remove(index)
            batches.append(batch)
            room = max(self.at_once - busy[batch.network], 0)
            now = batch.keys[:room]
            starts += [(key, batch.network) for key in now]
            for key in now:
                self._committed[key, batch.network] = _Committed(self.left_bytes(key), now_s, now_s)
            waiting = [one for one in waiting if one.key not in now]
            for key, gain_s in zip(batch.keys, batch.gains_s, strict=True):
                instead[key] = max(instead.get(key, 0.0), gain_s)
        return Plan(tuple(starts), tuple(stops), tuple(batches))

    def _stops(
        self,
        item: Item,
        paths: Sequence[Path],
        prices: PrefetchPrices,
        hazards: Mapping[Hashable, float],
        roomy: AbstractSet[str],
    ) -> bool:
        """Whether a prefetch is no longer worth it, or one of the `roomy` networks suits it better."""
        one = Candidate(
            item.key,
            self.left_bytes(item.key),
            self.accuracy.of(item.cls),
            hazards.get(item.key, 0.0),
        )
        here_s, best_s = float("-inf"), 0.0
        for index, path in enumerate(paths):
            if not path.present:
                continue
            gain_s = worth_it(index, one, paths, prices)
            if path.name == item.network:
                here_s = gain_s
            elif path.name in roomy:
                best_s = max(best_s, gain_s - path.wake_j() * prices.energy_rate())
        return here_s <= 0.0 or best_s > _BETTER * here_s

    def _age(self, now_s: float) -> None:
        """Hints that nobody wanted for long are counted as misses, once."""
        for item in self.items.values():
            if not item.aged and _open(item) and now_s - item.hinted_at_s > self.forget_s:
                item.aged = True
                self.accuracy.resolved(item.cls, consumed=False)


def _open(item: Item) -> bool:
    """Whether somebody may still ask for it for the first time."""
    return not item.demanded and item.state is not State.DROPPED
