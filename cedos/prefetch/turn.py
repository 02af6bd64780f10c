"""One attempt to fetch something: what a fetcher is told, and what it tells."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

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
    """What a fetcher is handed for one attempt. Its methods may be called from any thread.

    A fetch ahead of time steps back while the application waits for something else: a fetcher calls
    `turn` (or `turn_blocking`) between blocks of data, and lets them wait there.

    Attributes:
        interface: the network interface to use; None: whatever the host would use.
        connects: to be called before each connection that a fetcher begins: it is no other program's.
        label: background where it is ahead of time, foreground where somebody waits (IntNW's labels).
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
        self._wakes: set[Callable[[], None]] = set()

    def received(self, total_bytes: float, size_bytes: float | None = None) -> None:
        """So much of the item is there in all, of so much where that is known."""
        self._report(total_bytes, size_bytes)

    def use(self, interface: str) -> None:
        """The fetcher has chosen one, where the choice was left to it."""
        self.interface = interface

    def hurry(self) -> None:
        """Somebody waits for it now: it no longer steps back."""
        self.label = Label(Urgency.FOREGROUND, self.label.bulk)

    def stop(self) -> None:
        """Ends the attempt at its next call, and what it waits for now (`woken_by`)."""
        self._stopped.set()
        for wake in tuple(self._wakes):
            wake()

    @contextmanager
    def woken_by(self, wake: Callable[[], None]) -> Iterator[None]:
        """While this block waits for something, `wake` (from another thread) makes it fail."""
        self._wakes.add(wake)
        try:
            if self.stopped:
                wake()
            yield
        finally:
            self._wakes.discard(wake)

    @property
    def stopped(self) -> bool:
        """Whether this attempt is over, whatever its thread still does."""
        return self._stopped.is_set()

    async def turn(self) -> None:
        """Returns when it may go on."""
        while self.waits():  # noqa: ASYNC110 - whether it is clear is asked, not told
            await asyncio.sleep(_PROMPT_S)

    def turn_blocking(self) -> None:
        """The same for threads; StoppedError where the attempt is over."""
        while not self.stopped and self.waits():
            self._stopped.wait(_PROMPT_S)
        if self.stopped:
            raise StoppedError

    def waits(self) -> bool:
        """Whether it steps back now."""
        return self.label.urgency is Urgency.BACKGROUND and not self._clear()


class Fetcher(Protocol[T_co]):
    """Fetches one item; the same one ahead of time and on demand.

    An attempt that ends early is followed by another one on the same object: what was received before
    is for the fetcher to keep. A plain function runs in a thread of its own, a coroutine function in
    the loop. Where it has a `title`, people are shown that (`cedos explain --prefetch`).
    """

    def fetch(self, turn: Turn, /) -> Awaitable[T_co] | T_co:
        """Fetches it; any exception is a failure, and `NotThereError` a final one."""
        ...
