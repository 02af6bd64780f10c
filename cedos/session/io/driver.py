"""The driver of one event loop, which its sessions share: buffer, turns, links, replay memory, wake-ups.

`WakeWatch` tells when the host woke up from sleep, without polling a clock: a timer on the wall clock
that never ends is cancelled by the kernel when that clock is set, and the kernel sets it after each
sleep (timerfd_create(2), TFD_TIMER_CANCEL_ON_SET).

A task awaits a `Waiter` until something happens. It can go on at once, in the callback that woke it,
instead of in the loop's next turn: no turn lies between the arrival of a message and its reader.

The times of foreground data, shared by the processes of a host in a small mapped file.

Any process that sends foreground data over a network makes all careful with background data there
(dissertation, 2.3.2, "When multiple Intentional Networking applications execute concurrently"). The
paper's processes also share a count of what waits, and together keep to one limit. Ours is in seconds of
a connection's own rate, which is its share of the network: all of them add up to the same limit.

The file is an array of slots. A slot belongs to the process that holds the lock on its first byte, so
the kernel frees it when the process dies. Only the owner writes a slot, and its time grows old by
itself, so there is nothing to repair: a torn read lasts until the next read.
"""

import asyncio
import contextlib
import ctypes
import fcntl
import itertools
import mmap
import os
import socket
import struct
import time
from collections.abc import Callable, Generator, Mapping
from contextvars import Context
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from cedos.kernel import own_file
from cedos.kernel.tcp_info import TcpInfo, tcp_info, unacknowledged_bytes, unsent_bytes
from cedos.session import keys
from cedos.session.io.links import Egress, EgressTable
from cedos.session.protocol.room import ReplayMemory

_CLOCK_REALTIME: Final = 0
_FLAGS: Final = os.O_NONBLOCK | os.O_CLOEXEC
_ABSOLUTE, _CANCEL_ON_SET = 1, 2
_NEVER_S: Final = 1 << 40
_SHORTEST_S: Final = 2.0
_MAGIC: Final = b"cedos-foregrnd-2"
_SLOT: Final = struct.Struct("=QIxxxxQQ")  # namespace, interface, foreground ns, 1 once it was used
_STRIDE: Final = 64
_SLOTS: Final = 512
_BYTES: Final = _STRIDE * (1 + _SLOTS)
_READ_NS: Final = 2_000_000  # the shortest time between two reads of other processes' slots


def directory(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the host's runtime directory, else the user's, or None."""
    if named := environment.get("CEDOS_RUNTIME_DIR"):
        return Path(named)
    run = Path("/run/cedos")
    if os.access(run if run.exists() else run.parent, os.W_OK):
        return run
    user = environment.get("XDG_RUNTIME_DIR")
    return Path(user) / "cedos" if user else None


class Foreground:
    """The times of foreground data of this host's processes, by interface index.

    Without a directory, or where the file cannot be used, only this process counts.
    """

    def __init__(self, where: Path | None) -> None:
        self._file = -1
        self._map: mmap.mmap | None = None
        self._slots: dict[int, int] = {}  # interface -> offset
        self._mine: dict[int, int] = {}  # interface -> foreground ns
        self._others: dict[int, int] = {}
        self._read_ns = 0
        self._namespace = os.stat("/proc/thread-self/ns/net").st_ino  # noqa: PTH116
        if where is not None:
            with contextlib.suppress(OSError):
                self._open(where)

    def _open(self, where: Path) -> None:
        where.mkdir(mode=0o755, parents=True, exist_ok=True)
        own_file.ensure(where / "foreground")
        file = own_file.open_own(where / "foreground", os.O_RDWR)
        try:
            if os.fstat(file).st_size < _BYTES:
                os.ftruncate(file, _BYTES)
            self._map = mmap.mmap(file, _BYTES)
        except OSError:
            os.close(file)
            raise
        self._map[: len(_MAGIC)] = _MAGIC
        self._file = file

    @property
    def shared(self) -> bool:
        return self._map is not None

    def on_sent(self, interface: int) -> None:
        self._mine[interface] = now_ns = time.monotonic_ns()
        if self._map is None:
            return
        offset = self._slots.get(interface)
        if offset is None:
            offset = self._claim()
            if offset is None:
                return
            self._slots[interface] = offset
        _SLOT.pack_into(self._map, offset, self._namespace, interface, now_ns, 1)

    def idle_s(self, interface: int) -> float:
        """Return the seconds since any process sent foreground data there, or infinity."""
        self._read_others()
        at_ns = max(self._mine.get(interface, 0), self._others.get(interface, 0))
        return (time.monotonic_ns() - at_ns) / 1e9 if at_ns else float("inf")

    def _claim(self) -> int | None:
        # The first slot whose byte can be locked. A lock of an open file description (fcntl(2), struct
        # flock) ends with the last copy of the descriptor, so at the latest with the process.
        for slot in range(1, 1 + _SLOTS):
            offset = slot * _STRIDE
            if offset in self._slots.values():
                continue
            lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, offset, 1, 0)
            with contextlib.suppress(OSError):
                fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, lock)
                return offset
        return None

    def _read_others(self) -> None:
        now_ns = time.monotonic_ns()
        if self._map is None or now_ns - self._read_ns < _READ_NS:
            return
        # Read all slots of other processes in this network namespace: interface numbers are its own.
        self._read_ns = now_ns
        self._others = {}
        own = set(self._slots.values())
        for offset in range(_STRIDE, _BYTES, _STRIDE):
            namespace, interface, at_ns, used = _SLOT.unpack_from(self._map, offset)
            if not used:
                # Slots are taken from the front, so none behind an unused one was ever used.
                break
            # A later time than now is from before a restart of the host, or forged.
            if namespace == self._namespace and offset not in own and at_ns <= now_ns:
                self._others[interface] = max(self._others.get(interface, 0), at_ns)

    def close(self) -> None:
        if self._map is not None:
            for offset in self._slots.values():
                # The slot stays a used one, so that readers go on behind it.
                _SLOT.pack_into(self._map, offset, self._namespace, 0, 0, 1)
            self._map.close()
            self._map = None
            os.close(self._file)
            self._file = -1


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

# The most time of one turn for reading one peer's connections (TURN_S), and everyone's (_ALL_S).
TURN_S: Final = 0.005
_ALL_S: Final = 0.050
# A turn is begun anew once so much was read. What a peer took counts for one to two seconds.
_NOTED_S: Final = 0.001
_RECENT_S: Final = 1.0


class Turns:
    """The turns of an event loop, shared by the peers that send.

    A peer that has many connections, or whose bytes cost much, has its share of each turn. The rest of
    its work waits for later turns. Where many peers fill a turn, those that took least of the last ones
    come first in the next. So a peer whose bytes cost little waits for little of others' work.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._turn_s: dict[str, float] = {}  # of each peer, in this turn
        self._all_s = 0.0
        # Of each peer, since `_since_s`, and in the second before it.
        self._recent_s: dict[str, float] = {}
        self._older_s: dict[str, float] = {}
        self._since_s = loop.time()
        self._waiting: dict[str, dict[Callable[[], None], None]] = {}
        self._planned = False

    def take(self, peer: str, work: Callable[[], None]) -> None:
        """Do the work for a peer now, or in a later turn if its share of this one is used up."""
        if self._may_now(peer) and peer not in self._waiting:
            self._do(peer, work)
        else:
            self._waiting.setdefault(peer, {})[work] = None

    def go_on(self, peer: str, work: Callable[[], None]) -> None:
        """Do more of a peer's work in a later turn, before its other work."""
        self._waiting[peer] = {work: None} | self._waiting.pop(peer, {})
        self._plan()

    async def turn(self, peer: str) -> None:
        """Return in a turn of the peer. What the task does until it waits again counts as its work."""
        waiter = Waiter(self._loop)
        self._waiting.setdefault(peer, {})[partial(waiter.wake, at_once=True)] = None
        self._plan()
        await waiter

    def _may_now(self, peer: str) -> bool:
        return self._all_s < _ALL_S and self._turn_s.get(peer, 0.0) < TURN_S

    def _do(self, peer: str, work: Callable[[], None]) -> None:
        began_s = self._loop.time()
        try:
            work()
        finally:
            took_s = self._loop.time() - began_s
            self._all_s += took_s
            for each in (self._turn_s, self._recent_s):
                each[peer] = each.get(peer, 0.0) + took_s
            if self._all_s >= _NOTED_S:
                self._plan()

    def _plan(self) -> None:
        if not self._planned:
            self._planned = True
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        """Begin a turn with the work that waits."""
        self._planned, self._turn_s, self._all_s = False, {}, 0.0
        if (now := self._loop.time()) - self._since_s >= _RECENT_S:
            self._older_s, self._recent_s, self._since_s = self._recent_s, {}, now
        if self._waiting:
            self._plan()
        for peer in sorted(self._waiting, key=self._took_s):
            while peer in self._waiting and self._may_now(peer):
                waiting = self._waiting[peer]
                work = next(iter(waiting))
                del waiting[work]
                if not waiting:
                    del self._waiting[peer]
                self._do(peer, work)

    def _took_s(self, peer: str) -> float:
        return self._recent_s.get(peer, 0.0) + self._older_s.get(peer, 0.0)


# The C library gives memory at the end of its heap back to the kernel as soon as there are 128 KB of it,
# and takes it again page by page: with large records, up to 80,000 page faults a gigabyte. Once it has
# freed one block of this size, it keeps twice as much (mallopt(3), M_TRIM_THRESHOLD).
_KEPT_BYTES: Final = 4 << 20


# After a longer sleep no connection is alive: the other end asked and gave up.
_SURVIVED_S: Final = 10.0


class Host(NamedTuple):
    """The parts of the host that sessions ask; a simulated host has its own."""

    links: Callable[[Callable[[], None]], Any] = EgressTable
    wake_watch: Callable[[Callable[[float], None]], Any] = WakeWatch
    foreground: Callable[[Path | None], Any] = Foreground
    new_socket: Callable[[int, int], Any] = socket.socket
    tcp_info: Callable[[Any], TcpInfo | None] = tcp_info
    unsent_bytes: Callable[[Any], int] = unsent_bytes
    unacknowledged_bytes: Callable[[Any], int] = unacknowledged_bytes


_THIS_HOST: Final = Host()


_drivers: dict[asyncio.AbstractEventLoop, "Driver"] = {}


class Driver:
    """The shared part of one event loop, made by `current()`; it ends with its last user.

    It serves any number of sessions with `add_reader` and `add_writer`, without polling.
    """

    def __init__(self, host: Host) -> None:
        # This block is freed at once. It only raises the C library's threshold (see `_KEPT_BYTES`).
        bytearray(_KEPT_BYTES)
        self.loop = asyncio.get_running_loop()
        self.now = self.loop.time
        # Everything received goes through it; what is kept is copied out.
        self.buffer = bytearray(RECEIVE_BYTES)
        self.view = memoryview(self.buffer)
        self.turns = Turns(self.loop)
        self.memory = ReplayMemory()
        self.host = host
        self.foreground: Foreground = host.foreground(directory())
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
            self._links = self.host.links(self._on_change)
            self._wake = self.host.wake_watch(self._on_wake)
        return self._links

    @property
    def dials(self) -> bool:
        return self._links is not None

    def new_path_id(self) -> int:
        return next(self._ids)

    def watch(self, who: object, changed: Callable[[], None], slept: Callable[[], None]) -> None:
        """Call `changed` when local networks change, `slept` after a long sleep."""
        self._watchers[who] = changed, slept

    def unwatch(self, who: object) -> None:
        self._watchers.pop(who, None)
        if not self._watchers:
            self._close_links()

    def _on_change(self) -> None:
        if self._wake is not None:
            self._wake.check()  # often the first sign of a wake-up is a network that comes back
        self.check_networks()

    def check_networks(self) -> None:
        """Have all who watch the local networks look at them again."""
        for changed, _ in list(self._watchers.values()):
            changed()

    def _on_wake(self, slept_s: float) -> None:
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
        for core in self.memory.take_woken():
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


def current(host: Host = _THIS_HOST) -> Driver:
    """Return the event loop's driver. The first call makes it, for `host`; later ones have the same."""
    loop = asyncio.get_running_loop()
    driver = _drivers.get(loop)
    if driver is None:
        for ended in [each for each in _drivers if each.is_closed()]:
            del _drivers[ended]  # its sessions were never closed
        driver = _drivers[loop] = Driver(host)
    return driver


def check_networks() -> None:
    """Have all sessions of this event loop that dialled ask again which networks they may use."""
    if (driver := _drivers.get(asyncio.get_running_loop())) is not None:
        driver.check_networks()


def egresses(destination: str) -> tuple[Egress, ...]:
    """Return the interfaces to an address, as the sessions of this event loop see them; none without."""
    driver = _drivers.get(asyncio.get_running_loop())
    return () if driver is None or not driver.dials else driver.links.egresses(destination)
