"""The monitor's events of networks, and a queue for the events of flows."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, TypeVar

from cedos.kernel.rtnetlink import Counters
from cedos.model import Network


class Change(StrEnum):
    APPEARED = "appeared"
    CHANGED = "changed"
    LOST = "lost"
    COUNTED = "counted"


@dataclass(frozen=True, slots=True)
class NetworkEvent:
    """`before` is what it was, None when it appeared; `network` is its last state when it was lost.

    `counters`: the last ones of an interface that is gone, which may be told later than its loss.
    """

    change: Change
    network: Network
    before: Network | None
    at_s: float
    counters: Counters | None = None


T = TypeVar("T")

# The time after which a consumer of many events lets the event loop do its other work.
_TURN_S: Final = 0.005


class Mailbox(Generic[T]):
    """Events on their way to one consumer. A consumer that stands still loses the oldest, counted."""

    def __init__(self, limit: int = 100_000) -> None:
        self.dropped = 0
        self._items: deque[T] = deque()
        self._limit = limit
        self._wake = asyncio.Event()
        self._closed = False

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: T) -> None:
        if len(self._items) >= self._limit:
            self._items.popleft()
            self.dropped += 1
        self._items.append(item)
        self._wake.set()

    def close(self) -> None:
        """End the iteration once it is empty."""
        self._closed = True
        self._wake.set()

    async def iterate(self) -> AsyncIterator[T]:
        while True:
            began_s = time.monotonic()
            while self._items:
                yield self._items.popleft()
                if time.monotonic() - began_s > _TURN_S:
                    await asyncio.sleep(0)
                    began_s = time.monotonic()
            if self._closed:
                return
            self._wake.clear()
            await self._wake.wait()
