"""What all sessions of one event loop share: a buffer, the ways, foreground knowledge, replay memory.

One driver serves any number of sessions with `add_reader` and `add_writer`; nothing polls.
"""

import asyncio
import itertools
from typing import TYPE_CHECKING, Final

from cedos.session import keys
from cedos.session.io import foreground
from cedos.session.io.foreground import Foreground
from cedos.session.io.links import Links
from cedos.session.io.wake import WakeWatch
from cedos.session.protocol.sending.replay_memory import ReplayMemory

if TYPE_CHECKING:
    from cedos.session.io.dialler import Dialler
    from cedos.session.io.flow import Flow

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

    Attributes:
        buffer: everything received goes through it; what is kept is copied out.
        links: the ways to an address.
        foreground: what this host's processes send in the foreground.
        memory: the limit of what sessions keep to send it again.
        cores: the flow of a core, by its `id()`.
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
        self._diallers: set[Dialler] = set()
        self._users: set[object] = set()
        self.cores: dict[int, Flow] = {}
        self._ids = itertools.count(1)
        self._links: Links | None = None
        self._wake: WakeWatch | None = None

    @property
    def links(self) -> Links:
        """Opened when somebody dials first: an accepting end follows its peers."""
        if self._links is None:
            self._links = Links(self._changed)
            self._wake = WakeWatch(self._woke)
        return self._links

    def new_path_id(self) -> int:
        """A number that no path of this process had."""
        return next(self._ids)

    def watch(self, dialler: "Dialler") -> None:
        """Tells the dialler from now on when ways change."""
        self._diallers.add(dialler)

    def unwatch(self, dialler: "Dialler") -> None:
        """Tells it no more."""
        self._diallers.discard(dialler)
        if not self._diallers:
            self._let_go()

    def _changed(self) -> None:
        if self._wake is not None:
            self._wake.look()  # a network comes back first thing after a sleep
        for dialler in list(self._diallers):
            dialler.look()

    def _woke(self, slept_s: float) -> None:
        if slept_s > _SURVIVED_S:
            for dialler in list(self._diallers):
                dialler.slept()

    def hold(self, user: object) -> None:
        """Somebody (a flow, a listener) lives on this driver; the last one to go ends it."""
        self._users.add(user)

    def release(self, user: object) -> None:
        """Somebody has ended."""
        self._users.discard(user)
        if not self._users:
            self._let_go()
            self.foreground.close()
            _drivers.pop(self.loop, None)

    def memory_freed(self) -> None:
        """Flows that found replay memory full may go on, if there is room."""
        for core in self.memory.woken():
            flow = self.cores.get(id(core))
            if flow is not None:
                flow.has_room()

    def _let_go(self) -> None:
        if self._links is not None:
            self._links.close()
            self._links = None
        if self._wake is not None:
            self._wake.close()
            self._wake = None


def current() -> Driver:
    """The running loop's driver."""
    loop = asyncio.get_running_loop()
    driver = _drivers.get(loop)
    if driver is None:
        driver = _drivers[loop] = Driver()
    return driver
