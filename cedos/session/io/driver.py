"""The driver of one event loop, which its sessions share: a buffer, networks, replay memory, wake-ups.

`WakeWatch` tells when the host woke up from sleep, without polling a clock: a timer on the wall clock
that never ends is cancelled by the kernel when that clock is set, and the kernel sets it after each
sleep (timerfd_create(2), TFD_TIMER_CANCEL_ON_SET).

A task awaits a `Waiter` until something happens. It can go on at once, in the callback that woke it,
instead of in the loop's next turn: no turn lies between the arrival of a message and its reader.
"""

import asyncio
import ctypes
import itertools
import os
import time
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Any, Final

from cedos.session import keys
from cedos.session.io import foreground
from cedos.session.io.foreground import Foreground
from cedos.session.io.links import EgressTable
from cedos.session.protocol.room import ReplayMemory

_CLOCK_REALTIME: Final = 0
_FLAGS: Final = os.O_NONBLOCK | os.O_CLOEXEC
_ABSOLUTE, _CANCEL_ON_SET = 1, 2
_NEVER_S: Final = 1 << 40
_SHORTEST_S: Final = 2.0


def _ahead_s() -> float:
    """Return the seconds that the host has slept: only one of the two clocks counts them."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()


class WakeWatch:
    """A watch that calls `woke(seconds)` after each sleep, where the kernel can tell."""

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
        """Report a sleep that was not reported yet."""
        slept_s, self._slept_s = _ahead_s() - self._slept_s, _ahead_s()
        if slept_s > _SHORTEST_S:
            self._woke(slept_s)

    def close(self) -> None:
        if self._file >= 0:
            self._loop.remove_reader(self._file)
            os.close(self._file)
            self._file = -1


class Waiter:
    """A future-like object that one task awaits once."""

    __slots__ = (
        "_asyncio_future_blocking", "_cancelled", "_context", "_done", "_go_on", "_loop",
    )  # fmt: skip

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        # asyncio's Task takes an object with this attribute for a future, and sets it while it waits.
        self._loop = loop
        self._asyncio_future_blocking = False
        self._done = self._cancelled = False
        self._go_on: Callable[[Waiter], object] | None = None
        self._context: Context | None = None

    def wake(self, *, at_once: bool) -> None:
        """Wake the task. `at_once`: only if no task is running, and the caller has nothing left to do."""
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
        """Cancel the task's wait, soon; return False if it has been woken already."""
        if self._done:
            return False
        self._cancelled = True
        self.wake(at_once=False)
        return True

    def result(self) -> None:
        if self._cancelled:
            raise asyncio.CancelledError


RECEIVE_BYTES: Final = 1 << 19
# The C library gives memory at the end of its heap back to the kernel as soon as there are 128 KB of it,
# and takes it again page by page: with large records, up to 80,000 page faults a gigabyte. Once it has
# freed one block of this size, it keeps twice as much (mallopt(3), M_TRIM_THRESHOLD).
_KEPT_BYTES: Final = 4 << 20
# After a longer sleep no connection is alive: the other end asked and gave up.
_SURVIVED_S: Final = 10.0

_drivers: dict[asyncio.AbstractEventLoop, "Driver"] = {}


class Driver:
    """The shared part of one event loop, made by `current()`; it ends with its last user.

    It serves any number of sessions with `add_reader` and `add_writer`, without polling.
    """

    def __init__(self) -> None:
        # This block is freed at once. It only raises the C library's threshold (see `_KEPT_BYTES`).
        bytearray(_KEPT_BYTES)
        self.loop = asyncio.get_running_loop()
        self.now = self.loop.time
        # Everything received goes through it; what is kept is copied out.
        self.buffer = bytearray(RECEIVE_BYTES)
        self.view = memoryview(self.buffer)
        self.memory = ReplayMemory()
        self.foreground = Foreground(foreground.directory())
        self.hardware_aes = keys.hardware_aes()
        self._watchers: dict[object, tuple[Callable[[], None], Callable[[], None]]] = {}
        self._users: dict[object, Callable[[], None] | None] = {}
        self._ids = itertools.count(1)
        self._links: EgressTable | None = None
        self._wake: WakeWatch | None = None

    @property
    def links(self) -> EgressTable:
        """Open the table of links at the first dial; an accepting end follows its peers."""
        if self._links is None:
            self._links = EgressTable(self._changed)
            self._wake = WakeWatch(self._woke)
        return self._links

    def new_path_id(self) -> int:
        return next(self._ids)

    def watch(self, who: object, changed: Callable[[], None], slept: Callable[[], None]) -> None:
        """Call `changed` when local networks change, `slept` after a long sleep."""
        self._watchers[who] = changed, slept

    def unwatch(self, who: object) -> None:
        self._watchers.pop(who, None)
        if not self._watchers:
            self._close_links()

    def _changed(self) -> None:
        if self._wake is not None:
            self._wake.check()  # often the first sign of a wake-up is a network that comes back
        for changed, _ in list(self._watchers.values()):
            changed()

    def _woke(self, slept_s: float) -> None:
        if slept_s > _SURVIVED_S:
            for _, slept in list(self._watchers.values()):
                slept()

    def acquire(self, user: object, has_room: Callable[[], None] | None = None) -> None:
        """Register a user of this driver; the last one to go ends it.

        `has_room` is called once replay memory that was full for this user (a core) has room again.
        """
        self._users[user] = has_room

    def release(self, user: object) -> None:
        self._users.pop(user, None)
        if not self._users:
            self._close_links()
            self.foreground.close()
            _drivers.pop(self.loop, None)

    def memory_freed(self) -> None:
        for core in self.memory.woken():
            has_room = self._users.get(core)
            if has_room is not None:
                has_room()

    def _close_links(self) -> None:
        if self._links is not None:
            self._links.close()
            self._links = None
        if self._wake is not None:
            self._wake.close()
            self._wake = None


def current() -> Driver:
    loop = asyncio.get_running_loop()
    driver = _drivers.get(loop)
    if driver is None:
        driver = _drivers[loop] = Driver()
    return driver
