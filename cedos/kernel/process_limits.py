"""Limits of this process: the heap's memory, the memory that is left, and open files.

A process that lives for months returns free pages to the kernel (mallopt(3), malloc_trim(3)).
`MemoryRoom` says whether the process is about to be killed, or to be refused memory. Its limits are
those of its control group and of the groups above (cgroup v2, `MemoryMax=` of a unit), and its
address space (RLIMIT_AS).
"""

import asyncio
import ctypes
import errno
import resource
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

_M_ARENA_MAX: Final = -8
_EVERY_S: Final = 60.0


def one_arena() -> None:
    """Use one heap for all threads from now on.

    Each new thread would begin a heap of its own, and keep the memory of a short peak (SQLite's
    pages, a long answer). The interpreter runs one thread at a time, so threads do not wait for
    each other.
    """
    if (set_option := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        set_option(_M_ARENA_MAX, 1)


def give_back() -> None:
    """Give free pages back to the kernel, such as those of the start."""
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


@asynccontextmanager
async def giving_back(every_s: float = _EVERY_S) -> AsyncIterator[None]:
    """Give free pages back regularly meanwhile, so that a burst's memory is not kept for months."""

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


# The share of a limit from which on memory is short.
_SHORT_SHARE: Final = 0.9
# The time for which an answer is kept, and the shortest time between two returns of free pages.
_KEPT_S: Final = 0.1
_GIVE_BACK_S: Final = 1.0


class _HeapFigures(ctypes.Structure):
    """struct mallinfo2 (mallinfo(3))."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
            "fordblks", "keepcost",
        )
    ]  # fmt: skip


class MemoryRoom:
    """The memory that this process may still take; `is_short` is asked before anything that stays begins.

    `root`: of /proc and /sys.
    """

    def __init__(
        self, root: Path = Path("/"), clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._own = root / "proc" / "self"
        self._groups = list(_groups(self._own / "cgroup", root / "sys" / "fs" / "cgroup"))
        self._clock_s = clock_s
        self._heap = getattr(ctypes.CDLL(None), "mallinfo2", None)
        if self._heap is not None:
            self._heap.restype = _HeapFigures
        self._short, self._looked_at_s = False, float("-inf")
        self._gave_back_at_s = float("-inf")

    def free_bytes(self) -> int | None:
        """Return the memory that the limits leave; None: there are none."""
        return min((most - used for used, most in self._used_and_limits()), default=None)

    def is_short(self) -> bool:
        """Return whether less than a tenth of any limit is left.

        Free memory that this process holds does not count as used.
        """
        now_s = self._clock_s()
        if now_s - self._looked_at_s < _KEPT_S:
            return self._short
        self._short, self._looked_at_s = self._is_short(), now_s
        # Free pages may be all that is missing: return them, and look again.
        if self._short and now_s - self._gave_back_at_s > _GIVE_BACK_S:
            self._gave_back_at_s = now_s
            give_back()
            self._short = self._is_short()
        return self._short

    def _is_short(self) -> bool:
        return any(used > _SHORT_SHARE * most for used, most in self._used_and_limits())

    def _used_and_limits(self) -> Iterator[tuple[int, int]]:
        """Yield the used memory of each limit, and the limit."""
        # Address space: all pages of the process, less what the heap holds free.
        most = resource.getrlimit(resource.RLIMIT_AS)[0]
        if most != resource.RLIM_INFINITY:
            pages = int((self._own / "statm").read_text().split()[0])
            free = int(self._heap().fordblks) if self._heap is not None else 0
            yield pages * resource.getpagesize() - free, most
        # Control groups: each one on the way up has a limit of its own.
        for group in self._groups:
            try:
                most = int((group / "memory.max").read_text())  # "max" is no limit
                used = int((group / "memory.current").read_text())
                figures = (group / "memory.stat").read_text().split()
            except (OSError, ValueError):
                continue
            # The kernel frees the page cache before it kills a process.
            kept = dict(zip(figures[::2], figures[1::2], strict=False))
            yield used - int(kept.get("file", 0)), most


def _groups(own: Path, mounted: Path) -> Iterator[Path]:
    """Yield this process's control group and those above it, without the root, which has no limit."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        if line.startswith("0::/"):
            group = mounted / line.removeprefix("0::/")
            while group != mounted and mounted in group.parents:
                yield group
                group = group.parent


# The errors of `accept` at a limit of files or memory. The socket stays readable.
OUT_OF_FILES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


def allow(wanted: int | None = None) -> int:
    """Raise this process's own limit to `wanted`, or as far as it may; return the new limit.

    The kernel has no "unlimited" here: fs.nr_open is the largest number.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = hard if wanted is None else min(wanted, hard)
    if soft < target:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
            return target
    return soft
