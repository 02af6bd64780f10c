"""What a task awaits until something happens; it can go on at once, instead of in the loop's next turn.

For callbacks of the loop that have nothing else to do: between the arrival of a message and its reader
lies no turn of the loop then. A task takes any future-like object (asyncio, "Futures"): it gives it one
callback, which goes on with the task.
"""

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Any


class Waiter:
    """To be awaited once, by one task."""

    __slots__ = (
        "_asyncio_future_blocking", "_cancelled", "_context", "_done", "_go_on", "_loop",
    )  # fmt: skip

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._asyncio_future_blocking = False
        self._done = self._cancelled = False
        self._go_on: Callable[[Waiter], object] | None = None
        self._context: Context | None = None

    def wake(self, *, at_once: bool) -> None:
        """It has happened. `at_once` only where no task is running, and nothing is left to do."""
        if self._done:
            return
        self._done = True
        if self._go_on is None:
            return
        if at_once and self._context is not None:
            self._context.run(self._go_on, self)
        else:
            self._loop.call_soon(self._go_on, self, context=self._context)

    @property
    def done(self) -> bool:
        return self._done

    # What a task asks of a future

    def __await__(self) -> Generator["Waiter", None, None]:
        if not self._done:
            self._asyncio_future_blocking = True
            yield self

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def add_done_callback(
        self, fn: Callable[["Waiter"], object], *, context: Context | None = None
    ) -> None:
        self._go_on, self._context = fn, context

    def cancel(self, msg: Any | None = None) -> bool:
        """The task is cancelled: it hears of it soon; False if it has been woken already."""
        if self._done:
            return False
        self._cancelled = True
        self.wake(at_once=False)
        return True

    def result(self) -> None:
        if self._cancelled:
            raise asyncio.CancelledError
