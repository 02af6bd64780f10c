"""Periodic tasks sleep until the same instants, so that an idle host is woken once for all of them."""

import asyncio

from cedos.controller.beat import next_beat_s

_SAME = 0.01


async def aligned_sleep(interval_s: float) -> None:
    """Return at the next beat of the interval, for all callers with the same one at once."""
    now_s = asyncio.get_running_loop().time()
    # Timers may run a moment early: the instant that woke us is not the next one.
    await asyncio.sleep(next_beat_s(now_s + _SAME * interval_s, interval_s) - now_s)
