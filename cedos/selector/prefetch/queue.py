"""The queue of an application's hints, and its plan of prefetches (dissertation, 3.2 and 3.3.1).

Facts come in (hints, demands, progress and ends), and `plan` says which prefetches to start and to
stop. A program, an emulation or a simulation carries the plan out; nothing here fetches.

An item of a class with higher accuracy comes first, and within a class the earlier hint. An item
whose network goes away keeps its bytes, and goes on where it is worth it, or waits.

`choices` gives budgets the open choices: what each unit would save. A controller paces better if it
sees what is still waiting: 30 messages that could be fetched ahead of time are as many chances to
turn bytes into seconds.
"""

from collections.abc import Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite, sqrt
from typing import NamedTuple

from cedos.budget_kinds import Resource
from cedos.selector.budgets.controller import PROHIBITIVE, Option
from cedos.selector.budgets.prices import Prices
from cedos.selector.prefetch.outlook import Path, on_demand
from cedos.selector.prefetch.value import (
    Batch,
    Candidate,
    Reserve,
    ShadowAccuracy,
    best_batch,
    worth_it,
)

# The size of an item before any is known, and how many finished items this guess counts as.
_ASSUMED_BYTES = 100_000.0
_SIZE_WEIGHT = 2.0
# The person's requests per second before any is known, and the seconds that this guess counts as.
_ACTS_PER_S = 1 / 40
_ACTS_WEIGHT_S = 120.0
_LEAST_LEFT_BYTES = 1.0
# A server that breaks off after less each time is one that fails.
_LEAST_PROGRESS_BYTES = 16_384.0
_LONG_S = 1e6
_PROHIBITIVE = PROHIBITIVE / 2
# The time until the host has counted carried bytes and this program has asked for the count.
_COUNTED_S = 2.0

# A hint without a request for this time counts as a miss. It stays in the queue.
_FORGET_S = 7 * 86_400.0

# A running item moves to another network only if it is this much better off there.
_BETTER = 1.25


class State(StrEnum):
    """The states of a hint.

        hint() -> WAITING -> RUNNING -> READY -> CONSUMED
                     ^__________|

    A prefetch that is stopped or fails goes back to WAITING. A request for a waiting or ready item makes
    it CONSUMED at once; a running one is completed first (`demanded`). `cancel` makes any item DROPPED.
    """

    WAITING = "waiting"
    RUNNING = "running"
    READY = "ready"
    CONSUMED = "consumed"
    DROPPED = "dropped"


@dataclass(slots=True)
class Item:
    """A hint. `network` is the one that it runs over; `not_before_s` when it may be tried again."""

    key: Hashable
    cls: Hashable
    order: int
    hinted_at_s: float
    size_bytes: float | None = None
    received_bytes: float = 0.0
    counted_bytes: float = 0.0  # those that ended a row of failures
    state: State = State.WAITING
    demanded: bool = False
    network: str | None = None
    failures: int = 0
    not_before_s: float = 0.0
    aged: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan: `starts` are (key, network), `stops` keys; `batches` group the starts."""

    starts: tuple[tuple[Hashable, str], ...] = ()
    stops: tuple[Hashable, ...] = ()
    batches: tuple[Batch, ...] = ()


@dataclass(slots=True)
class _Committed:
    """The bytes of a started prefetch until budgets show them; `seen_s` is when it was last running."""

    size_bytes: float
    since_s: float
    seen_s: float


@dataclass(slots=True)
class Queue:
    """The hints of one application.

    Args:
        accuracy: how often the application's hints come true.
        at_once: the number of prefetches side by side on one network.
        retry_s: the wait after a failure, twice as long after each further one.
        reserve_sds: the reserve for fetches on demand beside their expected use, in standard deviations.
        keeps_for_all: whether the reserve includes items that alone exceed what is left of a budget.
            Nothing can be kept for those, and trying to would stop all other prefetches.
    """

    accuracy: ShadowAccuracy = field(default_factory=ShadowAccuracy)
    at_once: int = 1
    retry_s: float = 2.0
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
        """Record that an item may be asked for; a size that makes no sense counts as unknown.

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
        """Record that the person asks for an item; return its state before. Repeats change nothing."""
        item = self.items[key]
        was = item.state
        if not item.demanded and was is not State.DROPPED:
            # A request shows where in the list the person is, and that the hint came true.
            self._on_reached(item)
            item.demanded = True
            if not item.aged:
                self.accuracy.on_resolved(item.cls, consumed=True)
            # A running prefetch stays one: its bytes are on their way to the person now.
            if was in (State.READY, State.WAITING):
                item.state = State.CONSUMED
        return was

    def cancel(self, key: Hashable, now_s: float) -> State:
        """Record that the person will not ask for an item any more; return its state before."""
        item = self.items[key]
        was = item.state
        if not item.demanded and was is not State.DROPPED:
            self._on_reached(item)
            if not item.aged:
                self.accuracy.on_resolved(item.cls, consumed=False)
        item.state, item.network = State.DROPPED, None
        return was

    def forget(self, key: Hashable) -> None:
        """Remove all traces of a hint whose fate is known."""
        self.items.pop(key, None)

    def on_start(self, key: Hashable, network: str) -> None:
        """Record that an item is being prefetched over a network."""
        item = self.items[key]
        item.state, item.network = State.RUNNING, network

    def on_progress(
        self, key: Hashable, received_bytes: float, size_bytes: float | None = None
    ) -> None:
        """Record the received bytes in all, and `size_bytes` once that is known."""
        item = self.items[key]
        if size_bytes is not None:
            item.size_bytes = size_bytes
        item.received_bytes = max(item.received_bytes, received_bytes)
        if received_bytes >= item.counted_bytes + _LEAST_PROGRESS_BYTES:
            item.counted_bytes = received_bytes
            item.failures = 0

    def on_finished(self, key: Hashable, size_bytes: float) -> None:
        """Record that an item is complete."""
        item = self.items[key]
        known, total = self._sizes
        self._sizes = (known + 1.0, total + size_bytes)
        item.received_bytes, item.network = size_bytes, None
        if item.state is not State.DROPPED:
            item.state = State.CONSUMED if item.demanded else State.READY

    def on_stop(self, key: Hashable) -> None:
        """Record that a prefetch was stopped, or lost its network; its bytes stay."""
        item = self.items[key]
        item.network = None
        if item.state is State.RUNNING:
            item.state = State.CONSUMED if item.demanded else State.WAITING

    def on_failure(self, key: Hashable, now_s: float, *, for_good: bool = False) -> None:
        """Record a failure of a prefetch; it is tried again later unless `for_good`."""
        item = self.items[key]
        item.failures += 1
        # Each failure in a row doubles the wait.
        item.not_before_s = now_s + self.retry_s * 2.0 ** min(item.failures - 1, 10)
        self.on_stop(key)
        if for_good:
            item.not_before_s = float("inf")

    def left_bytes(self, key: Hashable) -> float:
        """Return the bytes still to be fetched; of an unknown size, those of an average item."""
        item = self.items[key]
        size = item.size_bytes
        # The mean of finished items, beside an assumed one.
        if size is None:
            known, total = self._sizes
            size = (total + _SIZE_WEIGHT * _ASSUMED_BYTES) / (known + _SIZE_WEIGHT)
        return max(size - item.received_bytes, _LEAST_LEFT_BYTES)

    def acts_per_s(self, now_s: float) -> float:
        """Return the rate at which the person asks for an item, or discards one."""
        if self._began_s is None:
            return _ACTS_PER_S
        # Observed acts over time, beside a prior.
        seconds = max(now_s - self._began_s, 0.0) + _ACTS_WEIGHT_S
        return (self._acts + _ACTS_PER_S * _ACTS_WEIGHT_S) / seconds

    def hazards_per_s(self, now_s: float) -> dict[Hashable, float]:
        """Return the probability of a request for each open hint within the next second.

        Some persons go through hints in order, others take any. The share of steps in order is
        learned; such steps reach the k-th hint after k steps.
        """
        # The next request reaches a hint in order, or any of the open ones with equal probability.
        ahead = self._hints_ahead()
        per_s = self.acts_per_s(now_s)
        in_order = (self._in_order + 1.0) / (self._acts + 2.0)
        return {
            item.key: per_s * (in_order / (place + 1) + (1.0 - in_order) / len(ahead))
            for place, item in enumerate(ahead)
        }

    def candidates(self, now_s: float) -> list[Candidate]:
        """Return the possible starts: the most accurate class first, then the order of the hints."""
        self._age(now_s)
        hazards = self.hazards_per_s(now_s)
        waiting = [
            item
            for item in self._hints_ahead()
            if item.state is State.WAITING and item.not_before_s <= now_s
        ]
        accuracy = {item.cls: self.accuracy.of(item.cls) for item in waiting}
        waiting.sort(key=lambda item: -accuracy[item.cls])
        return [
            Candidate(item.key, self.left_bytes(item.key), accuracy[item.cls], hazards[item.key])
            for item in waiting
        ]

    def reserve(self, now_s: float, paths: Sequence[Path], prices: Prices) -> Reserve:
        """Return the reserve for fetches on demand of all items that are not there yet."""
        joules = squared_j = 0.0
        sent, squared = [0.0] * len(paths), [0.0] * len(paths)
        # What fetches on demand of absent items are expected to use, and the variance of that.
        free = [path for path in paths if prices.data_rate(path.name) <= 0.0]
        hazards = self.hazards_per_s(now_s)
        for item in self._hints_ahead():
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
            # The bytes by network: their mean and variance.
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
                path.name: self._uncounted_bytes(path.name, now_s)
                + mean
                + self.reserve_sds * sqrt(max(square, 0.0))
                for path, mean, square in zip(paths, sent, squared, strict=True)
            },
        )

    def _kept_for(self, rate: float) -> bool:
        return self.keeps_for_all or rate < _PROHIBITIVE

    def _uncounted_bytes(self, network: str, now_s: float) -> float:
        """Return the bytes over a network that budgets do not show yet."""
        total = 0.0
        for (key, name), one in list(self._committed.items()):
            item = self.items.get(key)
            if item is not None and item.state is State.RUNNING and item.network == name:
                one.seen_s = now_s
            if now_s - one.seen_s > _COUNTED_S:
                del self._committed[key, name]
            elif name == network:
                # A start that budgets cannot show yet counts whole, a longer one by what is left of it.
                fresh = now_s - one.since_s <= _COUNTED_S or one.seen_s < now_s
                total += one.size_bytes if fresh else min(one.size_bytes, self.left_bytes(key))
        return total

    def _hints_ahead(self) -> list[Item]:
        """Return open hints in the order in which a person who goes through them reaches them."""
        found = [item for item in self.items.values() if _open(item)]
        found.sort(key=lambda item: (item.order < self._last, item.order))
        return found

    def _on_reached(self, item: Item) -> None:
        """Record that the person reached an item."""
        self._acts += 1.0
        self._in_order += item is self._hints_ahead()[0]
        self._last = item.order

    def plan(self, now_s: float, paths: Sequence[Path], prices: Prices) -> Plan:
        """Return the plan of this instant.

        The network with the largest gain comes first. Another one takes the items that gain more
        there and now than in their turn on the first.

        Args:
            now_s: the instant.
            paths: all networks that are known, present or not.
            prices: conversion rates of today.
        """
        hazards = self.hazards_per_s(now_s)
        reserve = self.reserve(now_s, paths, prices)
        running = [item for item in self.items.values() if item.state is State.RUNNING]
        # Count what runs on each network.
        busy = dict.fromkeys((path.name for path in paths), 0)
        for item in running:
            if item.network in busy:
                busy[item.network] += 1
        # First stop prefetches that are not worth it any more, which makes room.
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
        # Then give each present network its best batch, the largest gain first. Items that start now are
        # left out for the next network; the others must gain more there than in their turn here.
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
        prices: Prices,
        hazards: Mapping[Hashable, float],
        roomy: AbstractSet[str],
    ) -> bool:
        """Return whether a prefetch is no longer worth it, or suits a `roomy` network better."""
        one = Candidate(
            item.key,
            self.left_bytes(item.key),
            self.accuracy.of(item.cls),
            hazards.get(item.key, 0.0),
        )
        # Compare the gain on its own network with the best one elsewhere, the wake-up there included.
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
        """Count hints without a request for long as misses, once."""
        for item in self.items.values():
            if not item.aged and _open(item) and now_s - item.hinted_at_s > _FORGET_S:
                item.aged = True
                self.accuracy.on_resolved(item.cls, consumed=False)


def _open(item: Item) -> bool:
    """Return whether the person may still ask for an item for the first time."""
    return not item.demanded and item.state is not State.DROPPED


Choices = dict[Resource, list[tuple[Hashable, list[Option]]]]


class Taking(NamedTuple):
    """The use of one way for an item: seconds of waiting, joules, bytes by the networks' order.

    `network` is the index of the network that prefetches it; None: it is left to demand.
    """

    network: int | None
    time_s: float
    energy_j: float
    sent: tuple[float, ...]


def ways(
    queue: Queue, now_s: float, paths: Sequence[Path], prices: Prices
) -> list[tuple[Hashable, list[Taking]]]:
    """Return for each waiting item its ways: leave it to demand, or fetch it over each network.

    To leave it comes first, then the networks in their order. An item that is left costs a fetch on
    demand times the probability that it is asked for before a free network has fetched it.
    """
    found: list[tuple[Hashable, list[Taking]]] = []
    if not paths:
        return found
    metered = [prices.data_rate(path.name) > 0.0 for path in paths]
    for candidate in queue.candidates(now_s):
        size, accuracy = candidate.size_bytes, candidate.accuracy
        spared = on_demand(size, paths, prices)
        now = [path.fetch_s(size) if path.present else path.average.fetch_s(size) for path in paths]
        # The probability that a free network fetches it before it is asked for.
        chance = max(
            (
                path.in_time(size, candidate.hazard_per_s)
                for path, counts in zip(paths, metered, strict=True)
                if not counts and not path.present
            ),
            default=0.0,
        )
        asked = accuracy * (1.0 - chance)
        left = tuple([asked * each for each in spared.sent])
        options = [Taking(None, asked * spared.time_s, asked * spared.energy_j, left)]
        for at, (path, counts, took_s) in enumerate(zip(paths, metered, now, strict=True)):
            # Free networks count only while they are there: `chance` stands for their return.
            if path.present or counts:
                sent = tuple([size if at == other else 0.0 for other in range(len(paths))])
                options.append(Taking(at, 0.0, path.active_j(took_s, size), sent))
        found.append((candidate.key, options))
    return found


def choices(queue: Queue, now_s: float, paths: Sequence[Path], prices: Prices) -> Choices:
    """Return the choices of a data budget and of an energy budget, each with the other at its price."""
    joule_s = prices.energy_rate()
    rates = [prices.data_rate(path.name) for path in paths]
    found: Choices = {Resource.DATA: [], Resource.ENERGY: []}
    for key, options in ways(queue, now_s, paths, prices):
        data, energy = [], []
        for one in options:
            counted = [sent for sent, rate in zip(one.sent, rates, strict=True) if rate > 0.0]
            data.append(Option(one.time_s + joule_s * one.energy_j, sum(counted)))
            sent_s = sum(rate * sent for rate, sent in zip(rates, one.sent, strict=True))
            energy.append(Option(one.time_s + sent_s, one.energy_j))
        found[Resource.DATA].append((key, data))
        found[Resource.ENERGY].append((key, energy))
    return found
