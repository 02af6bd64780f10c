"""Time in a test's hands: a clock that a test advances, and an event loop that does not wait."""

import asyncio
import math
import selectors
import time
from collections.abc import Coroutine
from typing import Any, TypeVar
from unittest.mock import patch

T = TypeVar("T")
_GRACE_S = 0.001


class Clock:
    """A clock that stands still until a test advances it. Calling it returns its time in seconds."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


class _JumpingSelector(selectors.DefaultSelector):
    """A selector that jumps over the time to the loop's next timer when no file is ready."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1000.0
        self.threads = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        # The other end of a loopback socket answers within a moment, a thread of the executor does not.
        # A loop that waits for no file but its own (the pipe that wakes it) need not wait at all.
        grace_s = min(timeout, _GRACE_S) if len(self.get_map()) > 1 else 0.0
        began_s = _really()
        found = super().select(timeout if self.threads else grace_s)
        passed_s = _really() - began_s
        # As the kernel's, a timer is late by up to a millisecond.
        self.now_s += passed_s if found or self.threads else math.ceil(timeout * 1e3) * 1e-3
        return found


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop on which `asyncio.sleep(60)` takes a moment.

    When no file is ready, no callback is due and no thread of its executor works, the loop's clock
    jumps to the next timer. The mark `jumping` puts `monotonic` in the place of `time.monotonic`.
    """

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        self._jumping.now_s += 1e-6  # no two readings are the same
        return self._jumping.now_s

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> "asyncio.Future[Any]":
        self._jumping.threads += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._returned)
        return future

    def _returned(self, _: object) -> None:
        self._jumping.threads -= 1


JUMPING = ("asyncio", {"loop_factory": JumpingLoop})
"""The backend of anyio's plugin for tests that are marked `jumping`."""

_really = time.monotonic


def monotonic() -> float:
    """Return the time of the running `JumpingLoop`, else that of the machine."""
    loop = asyncio.events._get_running_loop()
    return loop.time() if isinstance(loop, JumpingLoop) else _really()


def run_jumping(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine as `asyncio.run` does, on a `JumpingLoop`."""
    with (
        patch.object(time, "monotonic", monotonic),
        asyncio.Runner(loop_factory=JumpingLoop) as runner,
    ):
        return runner.run(main)
