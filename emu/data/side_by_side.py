"""Many measurements by several emulations side by side, each with a bench of its own.

What is done is kept in a file beside the output, one JSON line each, so that an interrupted collection
goes on where it stopped.
"""

import json
import multiprocessing
import os
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Protocol, TextIO, TypeVar

from cedos.errors import DataSetError, EmulationError
from cedos.kernel import own_file

# The number of failures of one task that ends the collection.
_TRIES = 3


class Task(Protocol):
    @property
    def key(self) -> str:
        """Identifies it in the file of what is done."""


T = TypeVar("T", bound=Task)
T_contra = TypeVar("T_contra", contravariant=True)


class Measures(Protocol[T_contra]):
    """An emulation that measures one task after the other."""

    def measure(self, task: T_contra) -> dict[str, Any] | None:
        """Measure a task; return values ready for JSON, or None if it was cancelled."""


# Make a bench, which may ask whether it was cancelled. It is sent to other processes, so it is a
# class or a `functools.partial` of one.
MakeBench = Callable[[Callable[[], bool]], AbstractContextManager[Measures[T]]]


def run(
    tasks: Sequence[T],
    make_bench: MakeBench[T],
    partial: Path,
    *,
    jobs: int,
    seed: int = 1,
    nice: int = -10,
    done: Callable[[int, int], None] = lambda finished, total: None,
) -> list[dict[str, Any]]:
    """Measure all tasks that `partial` does not hold yet and return all of them in their order.

    `partial` is the file of what is done, appended to as it comes; `seed` decides the order, so that an
    interrupted collection is a fair sample of the whole. Each of the `jobs` processes has a bench, and
    this niceness: a measurement must not wait for what else the host does.

    DataSetError: `partial` belongs to another plan. EmulationError: the testbed could not be built, or
    failed.
    """
    own_file.ensure(partial)
    # Others may write in its folder: no link of theirs is followed.
    with os.fdopen(own_file.extend(partial), "r+") as file:
        # Take up what an interrupted collection has measured.
        finished = {str(entry.pop("key")): entry for entry in _read(file)}
        if foreign := sorted(set(finished) - {task.key for task in tasks}):
            raise DataSetError(
                f"{partial} holds rows of another plan ({foreign[0]}): remove it, or choose another --out"
            )
        todo = [task for task in tasks if task.key not in finished]
        # Measure in random order, so that an interrupted collection is a fair sample.
        random.Random(seed).shuffle(todo)
        done(len(finished), len(tasks))
        for key, entry in _measured(todo, make_bench, min(jobs, len(todo)), nice):
            finished[key] = entry
            # One whole line per row: a torn last line is dropped at the next start.
            file.write(json.dumps({"key": key, **entry}) + "\n")
            file.flush()
            done(len(finished), len(tasks))
    return [finished[task.key] for task in tasks]


def _read(file: TextIO) -> Iterator[dict[str, Any]]:
    whole, end, torn = file.read().rpartition("\n")
    if torn:  # the collection was killed while it wrote this line
        file.truncate(len((whole + end).encode()))
    for line in whole.splitlines():
        yield json.loads(line)


def _measured(
    todo: Sequence[T], make_bench: MakeBench[T], jobs: int, nice: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    # Processes of our own rather than an executor: each one owns namespaces, and has to take them
    # down itself, in order, whatever ends the collection.
    fresh = multiprocessing.get_context("spawn")
    tasks: Queue[T | None] = fresh.Queue()
    results: Queue[tuple[str, Any]] = fresh.Queue()
    stop = fresh.Event()
    for task in todo:
        tasks.put(task)
    for _ in range(jobs):
        # One end mark for each worker.
        tasks.put(None)
    workers = [
        fresh.Process(
            target=_work, args=(make_bench, tasks, results, stop, nice), name=f"collect-{number}"
        )
        for number in range(jobs)
    ]
    try:
        for worker in workers:
            worker.start()
        for _ in todo:
            key, entry = results.get()
            if isinstance(entry, str):
                raise EmulationError(entry)
            yield key, entry
    finally:
        # Workers end after the task that they are at, and take their namespaces down.
        stop.set()
        tasks.cancel_join_thread()
        for worker in workers:
            if worker.pid is not None:
                worker.join()


def _work(
    make_bench: MakeBench[T],
    tasks: "Queue[T | None]",
    results: "Queue[tuple[str, Any]]",
    stop: Event,
    nice: int,
) -> None:
    # A Ctrl-C at the terminal reaches the whole group; the parent tells us by `stop`, and until then
    # the teardown must not be cut in two.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(nice)
    parent = os.getppid()

    def stopped() -> bool:
        # A parent that was killed can say nothing any more.
        return stop.is_set() or os.getppid() != parent

    task: T | None = None
    failures = 0
    try:
        while not stopped():
            try:
                with make_bench(stopped) as bench:
                    task = task or tasks.get()
                    while task is not None and not stopped():
                        entry = bench.measure(task)
                        if entry is not None:
                            results.put((task.key, entry))
                        task, failures = tasks.get(), 0
                    return
            except (
                EmulationError
            ):  # a busy host may not start a link in time: once more, from scratch
                failures += 1
                if failures >= _TRIES:
                    raise
    except Exception as error:
        results.put(("", f"{type(error).__name__}: {error}"))
    finally:
        if stop.is_set():  # no reader is left, and more than a pipe holds would wait for ever
            results.cancel_join_thread()
