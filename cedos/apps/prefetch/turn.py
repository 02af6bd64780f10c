"""An attempt to fetch something: its conditions, its reports, and the call of the fetcher."""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from cedos.errors import CedosError
from cedos.model import Label, Urgency

T_co = TypeVar("T_co", covariant=True)

_PROMPT_S = 0.2


class FetchError(CedosError):
    """An item could not be fetched; says which and why."""


class NotThereError(FetchError):
    """An item does not exist, or may not be had: trying again is of no use."""


class StoppedError(Exception):
    """Raised inside a fetcher in a thread: this attempt is over, keep what was received."""


class Turn:
    """The conditions of one attempt of a fetcher. Any thread may call its methods.

    A fetch ahead of time steps back while the application waits for something else: a fetcher calls
    `turn` (or `turn_blocking`) between blocks of data, and lets them wait there.

    Attributes:
        interface: the network interface to use; None: whatever the host would use.
        connects: to be called before each connection that a fetcher begins: it is no other program's.
        label: background where it is ahead of time, foreground where a caller waits (IntNW's labels).
    """

    def __init__(
        self,
        interface: str | None,
        label: Label,
        report: Callable[[float, float | None], None] = lambda received, size: None,
        clear: Callable[[], bool] = lambda: True,
        connects: Callable[[], None] = lambda: None,
    ) -> None:
        self.interface = interface
        self.label = label
        self._report = report
        self._clear = clear
        self.connects = connects
        self._stopped = threading.Event()

    def received(self, total_bytes: float, size_bytes: float | None = None) -> None:
        """Report the received bytes of the item, and its size if that is known."""
        self._report(total_bytes, size_bytes)

    def use(self, interface: str) -> None:
        """Report the interface that the fetcher has chosen."""
        self.interface = interface

    def hurry(self) -> None:
        """Stop yielding: a caller waits for the item now."""
        self.label = Label(Urgency.FOREGROUND, self.label.bulk)

    def stop(self) -> None:
        """End the attempt at its next call."""
        self._stopped.set()

    @property
    def stopped(self) -> bool:
        """Return True once this attempt has ended, whatever its thread still does."""
        return self._stopped.is_set()

    async def turn(self) -> None:
        """Wait until the attempt may go on."""
        while self.waits():  # noqa: ASYNC110 - whether it is clear is asked, not told
            await asyncio.sleep(_PROMPT_S)

    def turn_blocking(self) -> None:
        """Wait in a thread until the attempt may go on. StoppedError: it has ended."""
        while not self.stopped and self.waits():
            self._stopped.wait(_PROMPT_S)
        if self.stopped:
            raise StoppedError

    def waits(self) -> bool:
        """Return True while the attempt must wait for others."""
        return self.label.urgency is Urgency.BACKGROUND and not self._clear()


class Fetcher(Protocol[T_co]):
    """A fetcher of one item, the same ahead of time and on demand.

    An attempt that ends early is followed by another one on the same object: what was received before
    is for the fetcher to keep. A plain function runs in a thread of its own, a coroutine function in
    the loop. Where it has a `title`, people are shown that (`cedos explain --prefetch`).
    """

    def fetch(self, turn: Turn, /) -> Awaitable[T_co] | T_co:
        """Fetch the item; any exception is a failure, and `NotThereError` a final one."""
        ...


_LETS_GO_S = 5.0
"""A thread that was stopped is waited for so long, since the next attempt goes on where it ended."""


async def call(fetch: Callable[[Turn], Awaitable[Any] | Any], turn: Turn) -> Any:
    """Call a fetcher, and return its result; its errors are passed on.

    A thread cannot be ended from outside. One that hangs is left behind: it is no member of a pool, so
    that it blocks neither other fetchers nor the end of the program.
    """
    if inspect.iscoroutinefunction(fetch):
        return await fetch(turn)
    result = await _in_thread(fetch, turn)
    return await result if inspect.isawaitable(result) else result


async def _in_thread(fetch: Callable[[Turn], Any], turn: Turn) -> Any:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def tell(result: Any, error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(result)
        elif isinstance(error, Exception) and not isinstance(error, StopIteration):
            done.set_exception(error)
        else:
            done.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))

    def work() -> None:
        result, error = None, None
        try:
            result = fetch(turn)
        except BaseException as raised:
            error = raised
        try:
            loop.call_soon_threadsafe(tell, result, error)
        except RuntimeError:
            return  # the loop is closed: no caller waits any more

    threading.Thread(target=work, name="prefetch", daemon=True).start()
    try:
        # Shielded: it is done only once the thread has really ended.
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        turn.stop()
        await asyncio.wait({done}, timeout=_LETS_GO_S)
        if done.done() and not done.cancelled():
            done.exception()  # retrieved, so that asyncio does not log it
        raise
