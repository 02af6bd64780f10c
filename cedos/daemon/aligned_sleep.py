"""Whatever is looked at again and again is looked at together: a host that rests is woken once.

Each of the daemon's tasks that wakes by itself costs a wake-up of the processor, whatever it then does.
So they share their beats, as `cedos.kernel.batched_reader` has it for descriptors.
"""

import asyncio

LATE_S = 0.02
"""So long after a full multiple of its interval a beat comes: what others do with each full second
(series of indicators) is there by then."""

_SAME = 0.01


async def beat(interval_s: float) -> None:
    """Returns with the next beat: after `interval_s` at most, at the time of all others like it."""
    now_s = asyncio.get_running_loop().time()
    left = 1.0 - (now_s - LATE_S) / interval_s % 1.0
    # Timers may run a moment early: the beat that woke us is not the next one.
    await asyncio.sleep(interval_s * (left if left > _SAME else left + 1.0))
