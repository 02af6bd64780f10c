"""Wait until a condition holds: `until` in a coroutine, `wait_until` in a thread."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def until(condition: Callable[[], T], limit_s: float = 10.0, every_s: float = 0.005) -> T:
    """Return the first true result of `condition`; fail once `limit_s` seconds have passed."""
    deadline_s = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < deadline_s, "the condition did not become true in time"
        await asyncio.sleep(every_s)
    return found


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
