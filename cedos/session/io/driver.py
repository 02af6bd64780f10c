"""What all sessions of one event loop share: a buffer, the local networks, replay memory."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Final

from cedos.session import keys
from cedos.session.io import foreground
from cedos.session.io.foreground import Foreground
from cedos.session.io.links import EgressTable
from cedos.session.io.wake import WakeWatch
from cedos.session.protocol.sending.replay_memory import ReplayMemory

RECEIVE_BYTES: Final = 1 << 19
# The C library gives memory at the end of its heap back to the kernel as soon as there are 128 KB of it,
# and takes it again page by page: with large records, up to 80,000 page faults a gigabyte. Once it has
# freed one block of this size, it keeps twice as much (mallopt(3), M_TRIM_THRESHOLD).
_KEPT_BYTES: Final = 4 << 20
# After a longer sleep, no connection is expected to have survived: the other end asked and gave up.
_SURVIVED_S: Final = 10.0

_drivers: dict[asyncio.AbstractEventLoop, "Driver"] = {}


class Driver:
    """Made for a loop by `current()`; ends with its last user.

    It serves any number of sessions with `add_reader` and `add_writer`; nothing polls. Who wants to be
    told of something registers a callback.

    Attributes:
        buffer: everything received goes through it; what is kept is copied out.
    """

    def __init__(self) -> None:
        bytearray(_KEPT_BYTES)
        self.loop = asyncio.get_running_loop()
        self.now = self.loop.time
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
        """Opened when somebody dials first: an accepting end follows its peers."""
        if self._links is None:
            self._links = EgressTable(self._changed)
            self._wake = WakeWatch(self._woke)
        return self._links

    def new_path_id(self) -> int:
        return next(self._ids)

    def watch(self, who: object, changed: Callable[[], None], slept: Callable[[], None]) -> None:
        """From now on calls `changed` when local networks change, `slept` after a long sleep."""
        self._watchers[who] = changed, slept

    def unwatch(self, who: object) -> None:
        self._watchers.pop(who, None)
        if not self._watchers:
            self._close_links()

    def _changed(self) -> None:
        if self._wake is not None:
            self._wake.check()  # a network comes back first thing after a sleep
        for changed, _ in list(self._watchers.values()):
            changed()

    def _woke(self, slept_s: float) -> None:
        if slept_s > _SURVIVED_S:
            for _, slept in list(self._watchers.values()):
                slept()

    def acquire(self, user: object, has_room: Callable[[], None] | None = None) -> None:
        """Somebody lives on this driver; the last one to go ends it.

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
