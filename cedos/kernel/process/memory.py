"""What the C library keeps for a process that lives for months (mallopt(3), malloc_trim(3))."""

import asyncio
import ctypes
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

_M_ARENA_MAX: Final = -8
_EVERY_S: Final = 60.0


def one_arena() -> None:
    """One heap for all threads, from now on.

    Each new thread would begin one of its own, and what it once took for a moment (SQLite's pages, a
    long answer) stays its. The interpreter runs one thread at a time: they do not wait for each other.
    """
    if (set_option := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        set_option(_M_ARENA_MAX, 1)


def give_back() -> None:
    """Gives free pages back to the kernel: what a start took for a moment is much."""
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


@asynccontextmanager
async def giving_back(every_s: float = _EVERY_S) -> AsyncIterator[None]:
    """Gives free pages back again and again, meanwhile: a burst's memory is not kept for months."""

    async def keep() -> None:
        while True:
            await asyncio.sleep(every_s)
            give_back()

    keeping = asyncio.get_running_loop().create_task(keep())
    try:
        yield
    finally:
        keeping.cancel()
        with suppress(asyncio.CancelledError):
            await keeping
