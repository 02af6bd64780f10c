"""Several measurements at the same time, each in a world of its own.

Their networks carry a few Mbit/s, so that side by side they take a fraction of the machine; what they
are compared with runs at the same time, under the same load of the host. No task begins before every task
is ready: programs that start take more of a processor than those that wait for slow networks.
"""

import threading
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Final, TypeVar

from cedos.errors import EmulationError
from emu.data.folds import Progress

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
Ready = Callable[[], None]
"""A function that a task calls when it could begin; returns when all others of its batch could, too."""

_READY_S: Final = 120.0


def in_batches(
    tasks: Mapping[K, Callable[[Ready], T]], at_once: int, progress: Progress
) -> dict[K, T]:
    """Carry out all tasks, so many at once.

    Raises:
        the first error of a task; those beside it are ended by theirs, the others are not begun.
    """
    done: dict[K, T] = {}
    keys = list(tasks)
    for first in range(0, len(keys), at_once):
        batch = keys[first : first + at_once]
        barrier = threading.Barrier(len(batch), timeout=_READY_S)
        with ThreadPoolExecutor(len(batch)) as pool:
            running = {pool.submit(_guarded, tasks[key], barrier): key for key in batch}
            try:
                _gather(running, done, len(tasks), progress)
            except BaseException:
                barrier.abort()
                raise
    return done


def _guarded(task: Callable[[Ready], T], barrier: threading.Barrier) -> T:
    try:
        return task(lambda: _wait(barrier))
    except BaseException:
        barrier.abort()
        raise


def _wait(barrier: threading.Barrier) -> None:
    try:
        barrier.wait()
    except threading.BrokenBarrierError:
        raise EmulationError("a measurement beside this one did not begin") from None


def _gather(
    running: Mapping["Future[T]", K], done: dict[K, T], all_tasks: int, progress: Progress
) -> None:
    left = set(running)
    while left:
        ended, left = wait(left, timeout=0.5, return_when=FIRST_COMPLETED)
        for each in ended:
            done[running[each]] = each.result()
            progress(len(done) / all_tasks, str(running[each]))
