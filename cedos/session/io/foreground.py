"""The times of foreground data, shared by the processes of a host in a small mapped file.

Any process that sends foreground data over a network makes all careful with background data there
(dissertation, 2.3.2, "When multiple Intentional Networking applications execute concurrently"). The
paper's processes also share a count of what waits, and together keep to one limit. Ours is in seconds of
a connection's own rate, which is its share of the network: all of them add up to the same limit.

The file is an array of slots. A slot belongs to the process that holds the lock on its first byte, so
the kernel frees it when the process dies. Only the owner writes a slot, and its time grows old by
itself, so there is nothing to repair: a torn read lasts until the next read.
"""

import contextlib
import fcntl
import mmap
import os
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

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
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        file = os.open(where / "foreground", flags, 0o600)
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
