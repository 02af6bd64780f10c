"""Periodic tasks sleep until the same instants, so that an idle host is woken once for all of them.

`cedos.kernel.netlink` does the same for descriptors.
"""

import asyncio

# Tasks wake this long after each full multiple of their interval, when data that others write each
# second are complete.
LATE_S = 0.02

_SAME = 0.01


async def aligned_sleep(interval_s: float) -> None:
    """Return at the next multiple of the interval, for all callers with the same one at once."""
    now_s = asyncio.get_running_loop().time()
    left = 1.0 - (now_s - LATE_S) / interval_s % 1.0
    # Timers may run a moment early: the instant that woke us is not the next one.
    await asyncio.sleep(interval_s * (left if left > _SAME else left + 1.0))
