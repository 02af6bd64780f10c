"""Prefetching for programs of threads: the same, with methods that block."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Generic, TypeVar

from cedos.apps.prefetch.prefetcher import Future, Prefetcher
from cedos.apps.prefetch.surroundings import Surroundings
from cedos.apps.prefetch.turn import Fetcher, FetchError

T = TypeVar("T")
_CLOSES_S = 10.0


class BlockingPrefetcher:
    """A `Prefetcher` in a thread of its own, as a `with` block, for calls from any thread."""

    def __init__(self, surroundings: Surroundings, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="prefetcher", daemon=True)
        self._make: Callable[[], Prefetcher] = lambda: Prefetcher(surroundings, **options)
        self._prefetcher: Prefetcher | None = None

    def __enter__(self) -> "BlockingPrefetcher":
        self._thread.start()
        try:
            self._prefetcher = self._do(self._open())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cancel all prefetches; waiting callers get a FetchError. A second call does nothing."""
        prefetcher, self._prefetcher = self._prefetcher, None
        if prefetcher is not None:
            try:
                self._do(prefetcher.close(), _CLOSES_S)
            finally:
                self._end()

    def prefetch(
        self, fetcher: Fetcher[T], *, size: float | None = None, cls: str = ""
    ) -> "BlockingFuture[T]":
        prefetcher = self._prefetcher
        if prefetcher is None:
            raise FetchError("the prefetcher is not running: use it within `with`")

        async def hint() -> Future[T]:
            return prefetcher.prefetch(fetcher, size=size, cls=cls)

        return BlockingFuture(self, self._do(hint()))

    def _do(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        try:
            waiting = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise FetchError("the prefetcher was closed") from None
        try:
            return waiting.result(timeout_s)
        except concurrent.futures.CancelledError:
            raise FetchError("the prefetcher was closed") from None
        except BaseException:
            waiting.cancel()
            raise

    async def _open(self) -> Prefetcher:
        return await self._make().__aenter__()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        # What was cancelled has one round to say so.
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSES_S)


class BlockingFuture(Generic[T]):
    """A handle of a prefetch; dropping the last reference to it cancels the prefetch."""

    def __init__(self, prefetcher: BlockingPrefetcher, future: Future[T]) -> None:
        self._prefetcher = prefetcher
        self._future = future

    def get(self, timeout_s: float | None = None) -> T:
        return self._prefetcher._do(self._future.get(timeout_s))

    def cancel(self) -> bool:
        future = self._future

        async def cancel() -> bool:
            return future.cancel()

        return self._prefetcher._do(cancel())

    @property
    def ready(self) -> bool:
        return self._future.ready
