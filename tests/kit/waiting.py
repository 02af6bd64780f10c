"""Wait until a condition holds (`until`, `wait_until` in a thread), and count turns of the event loop."""

import asyncio
import sys
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


async def until(condition: Callable[[], T], limit_s: float = 10.0, every_s: float = 0.005) -> T:
    """Return the first true result of `condition`; fail once `limit_s` seconds have passed."""
    deadline_s = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < deadline_s, "the condition did not become true in time"
        await asyncio.sleep(every_s)
    return found


async def first_of(events: AsyncIterable[T], wanted: Callable[[T], object]) -> T:
    """Return the first event that is wanted; fail after ten seconds."""
    async with asyncio.timeout(10):
        async for event in events:
            if wanted(event):
                return event
    raise AssertionError("the events ended")


@asynccontextmanager
async def counting_turns() -> AsyncIterator[Callable[[], int]]:
    """Return a function that tells how many turns a task had since then that is always ready."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.get_running_loop().create_task(count())
    try:
        yield lambda: turns
    finally:
        counting.cancel()


def wait_until(
    condition: Callable[[], T],
    limit_s: float = 20.0,
    *,
    every_s: float = 0.02,
    describe: Callable[[], object] = lambda: "the condition did not become true in time",
) -> T:
    """Return the first true result of `condition`; fail with `describe()` after `limit_s` seconds."""
    deadline_s = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < deadline_s, describe()
        time.sleep(every_s)
    return found


def lines_of(call: Callable[[], object]) -> int:
    """Return how many lines of Python run in a call: its cost, whatever else uses the processor."""
    lines = 0

    def count(_frame: FrameType, event: str, _arg: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        call()
    finally:
        sys.settrace(before)
    return lines
