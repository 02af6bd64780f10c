"""Whether this process is about to be ended, or to be refused memory, for want of it.

The limits are its control group's and those above it (cgroup v2, `MemoryMax=` of a unit), and its own
address space (RLIMIT_AS).
"""

import ctypes
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from cedos.kernel.process import memory

_SHORT_SHARE: Final = 0.9
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
    """`short`, asked before anything that stays is begun. `root`: of /proc and /sys."""

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
        """What the limits leave; None: there are none."""
        return min((most - used for used, most in self._taken()), default=None)

    def short(self) -> bool:
        """Whether less than a tenth of any limit is left. What is free in this process is not taken."""
        now_s = self._clock_s()
        if now_s - self._looked_at_s < _KEPT_S:
            return self._short
        self._short, self._looked_at_s = self._is_short(), now_s
        if self._short and now_s - self._gave_back_at_s > _GIVE_BACK_S:
            self._gave_back_at_s = now_s
            memory.give_back()
            self._short = self._is_short()
        return self._short

    def _is_short(self) -> bool:
        return any(used > _SHORT_SHARE * most for used, most in self._taken())

    def _taken(self) -> Iterator[tuple[int, int]]:
        """What is taken of each limit, and the limit."""
        most = resource.getrlimit(resource.RLIMIT_AS)[0]
        if most != resource.RLIM_INFINITY:
            pages = int((self._own / "statm").read_text().split()[0])
            free = int(self._heap().fordblks) if self._heap is not None else 0
            yield pages * resource.getpagesize() - free, most
        for group in self._groups:
            try:
                most = int((group / "memory.max").read_text())  # "max" is no limit
                used = int((group / "memory.current").read_text())
                figures = (group / "memory.stat").read_text().split()
            except (OSError, ValueError):
                continue
            # (The page cache is given up before anybody is ended.)
            kept = dict(zip(figures[::2], figures[1::2], strict=False))
            yield used - int(kept.get("file", 0)), most


def _groups(own: Path, mounted: Path) -> Iterator[Path]:
    """This process's control group and those above it, but for the root, which knows no limit."""
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
