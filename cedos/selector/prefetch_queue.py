"""The hints of one application and what to do about them now (dissertation, 3.2 and 3.3.1).

Facts in, orders out: hints, demands, progress and ends are told, `plan` says what to start and what to
stop. Whoever carries it out may be a program, an emulation or a simulation. Nothing here fetches.

An item in a class of higher accuracy comes first, and within a class the earlier hint. An item whose
network goes away keeps what it has received, and goes on where it is worth it, or waits.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite

from cedos.selector.prefetch_accuracy import ShadowAccuracy
from cedos.selector.prefetch_path import Path, Prices
from cedos.selector.prefetch_value import Batch, Candidate, best_batch, worth_it

_ASSUMED_BYTES = 100_000.0
_SIZE_WEIGHT = 2.0
_DEMANDS_PER_S = 1 / 60
_DEMANDS_WEIGHT_S = 300.0
_LEAST_LEFT_BYTES = 1.0
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
class Queue:
    """The hints of one application.

    Args:
        accuracy: what is known of how often its hints come true.
        at_once: so many prefetches run side by side on one network.
        retry_s: an item that failed waits so long, and twice as long every further time.
        forget_s: a hint that nobody wanted for so long is counted as one that nobody will; it stays.
    """

    accuracy: ShadowAccuracy = field(default_factory=ShadowAccuracy)
    at_once: int = 1
    retry_s: float = 2.0
    forget_s: float = 7 * 86_400.0
    items: dict[Hashable, Item] = field(default_factory=dict)
    _hints: int = 0
    _sizes: tuple[float, float] = (0.0, 0.0)
    _began_s: float | None = None
    _demands: float = 0.0

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
            item.demanded = True
            self._demands += 1.0
            if not item.aged:
                self.accuracy.resolved(item.cls, consumed=True)
            if was in (State.READY, State.WAITING):
                item.state = State.CONSUMED
        return was

    def cancel(self, key: Hashable, now_s: float) -> State:
        """Nobody will ask for it any more: the state that it was in."""
        item = self.items[key]
        was = item.state
        if not item.demanded and not item.aged and was is not State.DROPPED:
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

    def progressed(self, key: Hashable, received_bytes: float) -> None:
        """So much of it is there in all."""
        item = self.items[key]
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

    def hazard_per_s(self, now_s: float) -> float:
        """How likely any one open hint is asked for within the next second."""
        open_hints = sum(1 for item in self.items.values() if _open(item))
        if not open_hints or self._began_s is None:
            return 0.0
        seconds = max(now_s - self._began_s, 0.0) + _DEMANDS_WEIGHT_S
        demands = self._demands + _DEMANDS_PER_S * _DEMANDS_WEIGHT_S
        return demands / seconds / open_hints

    def candidates(self, now_s: float) -> list[Candidate]:
        """What could be started, the most accurate class first, then the earlier hint."""
        self._age(now_s)
        waiting = [
            item
            for item in self.items.values()
            if item.state is State.WAITING and item.not_before_s <= now_s
        ]
        accuracy = {item.cls: self.accuracy.of(item.cls) for item in waiting}
        waiting.sort(key=lambda item: (-accuracy[item.cls], item.order))
        return [
            Candidate(item.key, self.left_bytes(item.key), accuracy[item.cls]) for item in waiting
        ]

    def plan(self, now_s: float, paths: Sequence[Path], prices: Prices) -> Plan:
        """What to start and to stop now.

        The network that gains most comes first; another one takes what gains more there and now than
        in its turn on the first.

        Args:
            now_s: the instant.
            paths: all networks that are known, present or not.
            prices: conversion rates.
        """
        hazard = self.hazard_per_s(now_s)
        busy = dict.fromkeys((path.name for path in paths), 0)
        stops: list[Hashable] = []
        for item in self.items.values():
            if item.state is not State.RUNNING:
                continue
            if not item.demanded and self._stops(item, paths, prices, hazard):
                stops.append(item.key)
            elif item.network in busy:
                busy[item.network] += 1
        waiting = self.candidates(now_s)
        starts: list[tuple[Hashable, str]] = []
        batches: list[Batch] = []
        instead: dict[Hashable, float] = {}
        free = [index for index, path in enumerate(paths) if path.present]
        while free and waiting:
            found = [
                (batch, index)
                for index in free
                if (batch := best_batch(index, waiting, paths, prices, hazard, instead))
            ]
            if not found:
                break
            batch, index = max(found, key=lambda one: one[0].gain_s)
            free.remove(index)
            batches.append(batch)
            room = max(self.at_once - busy[batch.network], 0)
            now = batch.keys[:room]
            starts += [(key, batch.network) for key in now]
            waiting = [one for one in waiting if one.key not in now]
            for key, gain_s in zip(batch.keys, batch.gains_s, strict=True):
                instead[key] = max(instead.get(key, 0.0), gain_s)
        return Plan(tuple(starts), tuple(stops), tuple(batches))

    def _stops(
        self, item: Item, paths: Sequence[Path], prices: Prices, hazard_per_s: float
    ) -> bool:
        """Whether a prefetch is no longer worth it, or another network suits it clearly better."""
        one = Candidate(item.key, self.left_bytes(item.key), self.accuracy.of(item.cls))
        here_s, best_s = float("-inf"), 0.0
        for index, path in enumerate(paths):
            if not path.present:
                continue
            gain_s = worth_it(index, one, paths, prices, hazard_per_s)
            if path.name == item.network:
                here_s = gain_s
            else:
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
