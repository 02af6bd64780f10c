"""The handle of a prefetched item (dissertation, 3.3.1.2 and 3.3.1.3)."""

import asyncio
import weakref
from collections.abc import Hashable
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from cedos.prefetch.prefetcher import Prefetcher

T = TypeVar("T")


class Future(Generic[T]):
    """What `prefetch` returns. Whoever drops the last reference to it cancels the prefetch.

    Use it in the loop of its prefetcher.
    """

    def __init__(self, prefetcher: "Prefetcher", key: Hashable) -> None:
        self._prefetcher = prefetcher
        self._key = key
        # Bound to the prefetcher and the key alone, or it would keep this object alive.
        self._end = weakref.finalize(self, prefetcher.abandon, key)
        self._end.atexit = False

    async def get(self, timeout_s: float | None = None) -> T:
        """The item: at once where it is there, else when it is fetched, on demand if need be.

        Raises:
            TimeoutError: it took longer; it is still being fetched, and can be asked for again.
            FetchError: it was cancelled, or the prefetcher was closed.
            Exception: whatever its fetcher raised.
        """
        async with asyncio.timeout(timeout_s):
            result: T = await self._prefetcher.get(self._key)
            return result

    def cancel(self) -> bool:
        """It is no longer needed; whether that spared anything. Again does nothing."""
        if not self._end.detach():
            return False
        return self._prefetcher.cancel(self._key)

    @property
    def ready(self) -> bool:
        """Whether `get` would return at once."""
        return self._prefetcher.ready(self._key)
