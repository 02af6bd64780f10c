"""Tells when the host woke up from sleep, without looking at a clock every few seconds.

A timer on the wall clock that never ends is cancelled by the kernel when that clock is set, and the
kernel sets it after each sleep (timerfd_create(2), TFD_TIMER_CANCEL_ON_SET).
"""

import asyncio
import ctypes
import os
import time
from collections.abc import Callable
from typing import Final

_CLOCK_REALTIME: Final = 0
_FLAGS: Final = os.O_NONBLOCK | os.O_CLOEXEC
_ABSOLUTE, _CANCEL_ON_SET = 1, 2
_NEVER_S: Final = 1 << 40
_SHORTEST_S: Final = 2.0


def _ahead_s() -> float:
    """How long the host has slept since it started."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()


class WakeWatch:
    """Calls `woke(seconds)` after each sleep; does nothing where the kernel cannot tell."""

    def __init__(self, woke: Callable[[float], None]) -> None:
        self._woke = woke
        self._slept_s = _ahead_s()
        self._loop = asyncio.get_running_loop()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._file = int(self._libc.timerfd_create(_CLOCK_REALTIME, _FLAGS))
        if self._file >= 0:
            self._arm()
            self._loop.add_reader(self._file, self._set)

    def _arm(self) -> None:
        times = (ctypes.c_long * 4)(0, 0, _NEVER_S, 0)  # interval, then the first expiry
        self._libc.timerfd_settime(self._file, _ABSOLUTE | _CANCEL_ON_SET, times, None)

    def _set(self) -> None:
        try:
            os.read(self._file, 8)
        except BlockingIOError:
            return
        except OSError:  # ECANCELED: the clock was set
            self._arm()
        self.check()

    def check(self) -> None:
        """Tells of a sleep that nobody has been told of yet."""
        slept_s, self._slept_s = _ahead_s() - self._slept_s, _ahead_s()
        if slept_s > _SHORTEST_S:
            self._woke(slept_s)

    def close(self) -> None:
        if self._file >= 0:
            self._loop.remove_reader(self._file)
            os.close(self._file)
            self._file = -1
