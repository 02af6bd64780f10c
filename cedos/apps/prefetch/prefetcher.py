"""Prefetching for one application: starts, stops, resumes and hands over (dissertation, 3.3.1).

One loop looks at the networks once a second, and at once when something changes. A fetcher that raises is
tried again later; one that hangs loses its turn; neither disturbs the others or the application.
"""

import asyncio
import itertools
import time
import weakref
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from cedos.apps.prefetch.rates import Rates
from cedos.apps.prefetch.surroundings import (
    Fetcher,
    FetchError,
    Ledger,
    NotThereError,
    Surroundings,
    Turn,
)
from cedos.errors import CedosError
from cedos.logs import get_logger
from cedos.model import Bulk, Label, Urgency
from cedos.selector.prefetch.queue import Queue, State, ways

T = TypeVar("T")
_log = get_logger(__name__)

_AHEAD = Label(Urgency.BACKGROUND, Bulk.LARGE)
_WANTED = Label(Urgency.FOREGROUND, Bulk.LARGE)


@dataclass(slots=True)
class _Attempt:
    """An attempt of a fetcher; `network` None: on demand, over the host's own choice."""

    turn: Turn
    network: str | None
    task: "asyncio.Task[None]"
    began_s: float
    heard_s: float
    first_s: float | None = None
    had_bytes: float = 0.0
    total_bytes: float = 0.0


@dataclass(slots=True)
class _Entry:
    """An item: its fetcher, its result, its waiting callers, and the running attempt."""

    fetcher: Fetcher[Any]
    done: "asyncio.Future[Any] | None" = None
    result: Any = None
    there: bool = False
    attempt: _Attempt | None = None
    over: "asyncio.Task[None] | None" = None
    waiters: int = 0


class Prefetcher:
    """The prefetches of one application, in one event loop, as an `async with` block.

    Args:
        surroundings: where the facts come from.
        every_s: it looks at its surroundings so often.
        at_once: so many prefetches run side by side on one network.
        silence_s: a prefetch of which nothing is heard for so long is taken for hung.
        attempts: after so many failures without progress an item is left for demand.
    """

    def __init__(
        self,
        surroundings: Surroundings,
        *,
        every_s: float = 1.0,
        at_once: int = 1,
        silence_s: float = 30.0,
        attempts: int = 6,
    ) -> None:
        self._surroundings = surroundings
        self._every_s = every_s
        self._silence_s = silence_s
        self._attempts = attempts
        self.queue = Queue(at_once=at_once, keeps_for_all=False)
        self.rates = Rates()
        self._ledger = Ledger()
        self._entries: dict[Hashable, _Entry] = {}
        self._numbers = itertools.count(1)
        self._kicked = asyncio.Event()
        self._foreground = 0
        self._blind = ""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watcher: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Prefetcher":
        self._loop = asyncio.get_running_loop()
        self._watcher = asyncio.create_task(self._watch(), name="prefetching")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancel all prefetches; waiting callers get a FetchError."""
        watcher, self._watcher, self._loop = self._watcher, None, None
        if watcher is not None:
            watcher.cancel()
            with suppress(asyncio.CancelledError):
                await watcher
        tasks = []
        for key, entry in list(self._entries.items()):
            if entry.attempt is not None:
                tasks.append(entry.attempt.task)
            self._stop(entry)
            self._settle(entry, FetchError(f"{key}: the prefetcher was closed"))
        self._entries.clear()
        if tasks:
            # One that does not let itself be cancelled is left alone.
            await asyncio.wait(tasks, timeout=1.0)

    def prefetch(
        self, fetcher: Fetcher[T], *, size: float | None = None, cls: str = ""
    ) -> "Future[T]":
        """Announce an item that may be needed.

        Args:
            fetcher: fetches it, now or later or on demand.
            size: its bytes where known; else items are taken to be as large as those before.
            cls: what items that are as likely as each other to be needed have in common.

        Returns:
            the handle; dropping the last reference to it cancels the prefetch.

        Raises:
            FetchError: the prefetcher is not running.
        """
        if self._loop is None:
            raise FetchError("the prefetcher is not running: use it within `async with`")
        key = next(self._numbers)
        self.queue.hint(key, time.monotonic(), size, cls)
        self._entries[key] = _Entry(fetcher)
        self._kicked.set()
        return Future(self, key)

    def ready(self, key: Hashable) -> bool:
        entry = self._entries.get(key)
        return entry is not None and entry.there

    async def get(self, key: Hashable) -> Any:
        entry = self._entries.get(key)
        if entry is None or self._loop is None:
            raise FetchError("it was cancelled, or its prefetcher was closed")
        self.queue.demand(key, time.monotonic())
        # Fast path: the item is here.
        if entry.there:
            return entry.result
        if entry.done is None:
            entry.done = self._loop.create_future()
        if entry.attempt is None:
            self._start(key, entry, None)
        else:
            # A prefetch of it runs: from now on it yields to nothing.
            entry.attempt.turn.hurry()
        # While a caller waits, prefetches of other items yield.
        entry.waiters += 1
        self._foreground += 1
        try:
            return await asyncio.shield(entry.done)
        finally:
            entry.waiters -= 1
            self._foreground -= 1
            self._kicked.set()

    def cancel(self, key: Hashable) -> bool:
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        state = self.queue.cancel(key, time.monotonic())
        self._stop(entry)
        self._settle(entry, FetchError("it was cancelled"))
        self.queue.forget(key)
        self._kicked.set()
        return state in (State.WAITING, State.RUNNING)

    def abandon(self, key: Hashable) -> None:
        """Cancel an item whose last handle is gone; called from any thread, at any time."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # closed meanwhile
                loop.call_soon_threadsafe(self.cancel, key)

    # The following methods run in the loop.

    async def _watch(self) -> None:
        while True:
            self._kicked.clear()
            try:
                await self._plan_round()
                self._blind = ""
            except CedosError as error:
                if str(error) != self._blind:
                    self._blind = str(error)
                    _log.warning("nothing is prefetched for now", why=self._blind)
            except Exception:
                # The surroundings are the application's code.
                _log.exception("the surroundings cannot be looked at")
            with suppress(TimeoutError):
                async with asyncio.timeout(self._every_s):
                    await self._kicked.wait()

    async def _plan_round(self) -> None:
        # Take the facts, and end attempts that they make hopeless.
        view = await self._surroundings.view()
        now_s = time.monotonic()
        paths = self.rates.update(list(view.networks), now_s)
        interfaces = {facts.name: facts.interface for facts in view.networks}
        self._end_silence({path.name for path in paths if path.present}, now_s)
        before = ways(self.queue, now_s, paths, view.prices)
        plan = self.queue.plan(now_s, paths, view.prices)
        # Stops come first: the next round, which follows at once, plans with their room.
        for key in plan.stops:
            self._stop(self._entries[key])
            self.queue.on_stop(key)
        if plan.stops:
            self._kicked.set()
            return
        begun = []
        for key, network in plan.starts:
            entry = self._entries[key]
            # A cancelled attempt must have released the fetcher before the next one begins.
            if entry.over is None or entry.over.done():
                self._start(key, entry, network, interfaces[network])
                begun.append((key, network))
        done = replace(plan, starts=tuple(begun))
        self._surroundings.report(
            self._ledger.news(self.queue, now_s, paths, view.prices, done, before)
        )

    def _end_silence(self, present: set[str], now_s: float) -> None:
        """Stop attempts that are silent, or whose network is gone."""
        for key, entry in self._entries.items():
            attempt = entry.attempt
            if attempt is None or attempt.network is None:
                continue
            if entry.waiters:
                # A caller waits: the host's own choice of network is better than a silent one.
                if attempt.network not in present or now_s - attempt.heard_s > 2 * self._every_s:
                    self._stop(entry)
                    self.queue.on_stop(key)
                    self._start(key, entry, None)
            elif now_s - attempt.heard_s > self._silence_s:
                _log.warning("a prefetch hangs; it is tried again later", item=key)
                self._stop(entry)
                self._on_failure(key, now_s)

    def _start(
        self, key: Hashable, entry: _Entry, network: str | None, interface: str | None = None
    ) -> None:
        now_s = time.monotonic()
        turn = Turn(
            interface,
            _WANTED if network is None else _AHEAD,
            lambda total, size: self._progress(key, turn, total, size),
            lambda: self._foreground == 0,
        )
        task = asyncio.create_task(self._attempt(key, entry, turn))
        entry.attempt = _Attempt(turn, network, task, now_s, now_s)
        if network is not None:
            self.queue.on_start(key, network)

    def _stop(self, entry: _Entry) -> None:
        attempt, entry.attempt = entry.attempt, None
        if attempt is not None:
            attempt.turn.stopped = True
            attempt.task.cancel()
            entry.over = attempt.task
            self._measure(attempt)

    def _progress(self, key: Hashable, turn: Turn, total: float, size: float | None) -> None:
        entry = self._entries.get(key)
        if entry is None or entry.attempt is None or entry.attempt.turn is not turn:
            return
        attempt = entry.attempt
        attempt.heard_s = time.monotonic()
        # The first report has what earlier attempts brought: rates begin after it.
        if attempt.first_s is None:
            attempt.first_s, attempt.had_bytes = attempt.heard_s, total
        self._ledger.add(attempt.network, total - max(attempt.total_bytes, attempt.had_bytes))
        attempt.total_bytes = total
        self.queue.on_progress(key, total, size)

    async def _attempt(self, key: Hashable, entry: _Entry, turn: Turn) -> None:
        result: Any = None
        error: BaseException | None = None
        try:
            if entry.over is not None and not entry.over.done():
                # The one before must have let go of the fetcher, or both would write its result.
                await asyncio.wait({entry.over})
            result = await entry.fetcher.fetch(turn)
        except asyncio.CancelledError:
            if turn.stopped:
                raise
            error = FetchError("the fetcher was cancelled")
        except (Exception, SystemExit) as raised:
            error = raised
        if entry.attempt is None or entry.attempt.turn is not turn:
            return  # stopped, and replaced perhaps
        attempt, entry.attempt = entry.attempt, None
        self._measure(attempt)
        now_s = time.monotonic()
        if error is None:
            entry.result, entry.there = result, True
            item = self.queue.items[key]
            size = attempt.total_bytes or item.size_bytes
            self.queue.on_finished(key, size if size is not None else self.queue.left_bytes(key))
            self._settle(entry, None)
        elif entry.waiters and attempt.network is not None:
            # The attempt began ahead of time; a caller waits now, so it is repeated on demand.
            self.queue.on_stop(key)
            self._start(key, entry, None)
        else:
            if not entry.waiters:
                _log.info("a prefetch failed", item=key, why=str(error) or type(error).__name__)
            self._on_failure(key, now_s, for_good=isinstance(error, NotThereError))
            self._settle(entry, _presentable(error))
        self._kicked.set()

    def _on_failure(self, key: Hashable, now_s: float, *, for_good: bool = False) -> None:
        last = self.queue.items[key].failures + 1 >= self._attempts
        self.queue.on_failure(key, now_s, for_good=for_good or last)

    def _measure(self, attempt: _Attempt) -> None:
        if attempt.network is not None and attempt.first_s is not None:
            self.rates.on_transfer(
                attempt.network,
                attempt.total_bytes - attempt.had_bytes,
                attempt.heard_s - attempt.first_s,
                attempt.heard_s,
            )

    def _settle(self, entry: _Entry, error: Exception | None) -> None:
        """Wake the waiting callers; after a failure the next `get` begins anew."""
        done, entry.done = entry.done, None
        if done is None or done.done():
            return
        if error is None:
            done.set_result(entry.result)
        elif entry.waiters:
            done.set_exception(error)
        else:
            done.cancel()


class Future(Generic[T]):
    """A handle of a prefetch (dissertation, 3.3.1.2 and 3.3.1.3).

    Dropping the last reference to it cancels the prefetch. Use it in the loop of its prefetcher.
    """

    def __init__(self, prefetcher: "Prefetcher", key: Hashable) -> None:
        self._prefetcher = prefetcher
        self._key = key
        # Bound to the prefetcher and the key alone, or it would keep this object alive.
        self._end = weakref.finalize(self, prefetcher.abandon, key)
        self._end.atexit = False

    async def get(self, timeout_s: float | None = None) -> T:
        """Return the item: at once if it is here, else when it is fetched, on demand if necessary.

        TimeoutError: it took longer; it is still being fetched, and can be asked for again. FetchError:
        it was cancelled, or the prefetcher was closed. Exception: whatever its fetcher raised.
        """
        async with asyncio.timeout(timeout_s):
            result: T = await self._prefetcher.get(self._key)
            return result

    def cancel(self) -> bool:
        """Cancel the item; return True if that saved a fetch. A second call does nothing."""
        if not self._end.detach():
            return False
        return self._prefetcher.cancel(self._key)

    @property
    def ready(self) -> bool:
        return self._prefetcher.ready(self._key)


def _presentable(error: BaseException) -> Exception:
    """Return the error for callers of `get`: the fetcher's own, or a FetchError in its place."""
    if isinstance(error, Exception):
        return error
    return FetchError(f"the fetcher ended with {type(error).__name__}: {error}")
