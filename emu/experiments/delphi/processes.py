"""Jobs of an analysis side by side, each in a process of its own."""

import os
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, TypeVar

from threadpoolctl import threadpool_limits

from emu.lab.data.folds import Progress

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


def in_processes(
    function: Callable[..., T], jobs: Mapping[K, tuple[Any, ...]], progress: Progress
) -> dict[K, T]:
    """What the function returns for each job's arguments, in the order of the jobs."""
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as workers:
        running = {workers.submit(_alone, function, of): key for key, of in jobs.items()}
        for done, job in enumerate(as_completed(running), 1):
            progress(done / len(jobs), str(running[job]))
        return {key: job.result() for job, key in running.items()}


def _alone(function: Callable[..., T], arguments: tuple[Any, ...]) -> T:
    with threadpool_limits(1):  # the jobs share the processors already
        return function(*arguments)
