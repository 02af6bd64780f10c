"""One stream of events for many listeners, none of whom can hold up the speaker."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import Generic, TypeVar

T = TypeVar("T")


class _Ear(Generic[T]):
    def __init__(self, limit: int) -> None:
        self.waiting: deque[T] = deque(maxlen=limit)
        self.ready = asyncio.Event()


class Broadcast(Generic[T]):
    """Passes every published item to every present subscriber.

    A subscriber that falls more than `limit` items behind loses the oldest ones.
    """

    def __init__(self, limit: int = 256) -> None:
        self._limit = limit
        self._ears: set[_Ear[T]] = set()
        self._closed = False

    def publish(self, item: T) -> None:
        for ear in self._ears:
            ear.waiting.append(item)
            ear.ready.set()

    def close(self) -> None:
        """Ends all subscriptions once they have taken what waits for them."""
        self._closed = True
        for ear in self._ears:
            ear.ready.set()

    @property
    def subscribers(self) -> int:
        """How many listen now; nothing needs to be built for none."""
        return len(self._ears)

    async def subscribe(self) -> AsyncGenerator[T, None]:
        """All items that are published from the first step of the iteration on."""
        ear: _Ear[T] = _Ear(self._limit)
        self._ears.add(ear)
        try:
            while not self._closed or ear.waiting:
                while ear.waiting:
                    yield ear.waiting.popleft()
                ear.ready.clear()
                if not self._closed:
                    await ear.ready.wait()
        finally:
            self._ears.discard(ear)
