"""Measures completion times of all strategies from the same instants of real places.

A row of the plan is one place, start, size and direction. For it, every strategy (TCP on each
network, MPTCP with each primary) is measured once, each from a fresh replay rotated to the very same
instant, together with the context just before it. This is the method of Delphi's data collection
(section 6.1), on replayed instead of on live networks.

Rows that are done are kept beside the output, one JSON line each, so that an interrupted collection
goes on where it stopped.
"""

import json
import math
import multiprocessing
import os
import random
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from cedos.errors import DataSetError, EmulationError
from cedos.model import Direction
from emu.data.measure import Bench, Row
from emu.places.places import Place

LINK_S = 0.0015
"""What an emulated link adds to its base RTT: its programs, and the wait for an opportunity."""

DEFAULT_SIZES: tuple[tuple[int, Direction], ...] = (
    (3_000, Direction.DOWN),
    (30_000, Direction.DOWN),
    (300_000, Direction.DOWN),
    (3_000_000, Direction.DOWN),
    (300_000, Direction.UP),
)


def plan(
    places: Mapping[str, Place],
    *,
    starts: int,
    sizes: Sequence[tuple[int, Direction]] = DEFAULT_SIZES,
    seed: int = 1,
) -> list[Row]:
    """`starts` instants a place, one drawn from each of as many equal parts of its common time."""
    rows = []
    for place in places.values():
        draw = random.Random(f"{seed}/{place.name}")
        part_s = place.common_s / starts
        for number in range(starts):
            start_s = round((number + draw.random()) * part_s, 3)
            rows += [Row(place.name, start_s, size, direction) for size, direction in sizes]
    return rows


def plan_like(entries: Iterable[Mapping[str, Any]]) -> list[Row]:
    """The same places, starts, sizes, directions and base RTTs as another data set's rows.

    The lowest RTT that any row of a place saw, less what the link itself adds, is taken as its base
    RTT; for a network that never answered, the place's own is used.
    """
    entries = list(entries)
    base: dict[tuple[str, str], float] = {}
    for entry in entries:
        for kind in ("wifi", "cellular"):
            rtt_s = entry.get(f"{kind}_rtt_min_s")
            if rtt_s is not None and not math.isnan(rtt_s):
                key = (str(entry["place"]), kind)
                base[key] = min(max(rtt_s - LINK_S, 0.0), base.get(key, math.inf))
    return [
        Row(
            str(entry["place"]),
            float(entry["start_s"]),
            int(entry["size_bytes"]),
            Direction(str(entry["direction"])),
            base.get((str(entry["place"]), "wifi")),
            base.get((str(entry["place"]), "cellular")),
        )
        for entry in entries
    ]


def collect(
    rows: Sequence[Row],
    directory: Path,
    partial: Path,
    *,
    jobs: int,
    seed: int = 1,
    done: Callable[[int, int], None] = lambda finished, total: None,
) -> list[dict[str, Any]]:
    """Measures all rows that `partial` does not hold yet; returns all of them in the plan's order.

    Args:
        rows: the plan.
        directory: the collection of places.
        partial: the file of finished rows, appended to as they come.
        jobs: emulations side by side.
        seed: decides the order, so that an interrupted collection is a fair sample of the whole.
        done: called with the numbers of finished and of all rows.

    Raises:
        DataSetError: `partial` belongs to another plan.
        EmulationError: the testbed could not be built, or failed.
    """
    finished = {str(entry.pop("key")): entry for entry in _read_partial(partial)}
    if foreign := sorted(set(finished) - {row.key for row in rows}):
        raise DataSetError(
            f"{partial} holds rows of another plan ({foreign[0]}): remove it, or choose another --out"
        )
    todo = [row for row in rows if row.key not in finished]
    random.Random(seed).shuffle(todo)
    done(len(finished), len(rows))
    with partial.open("a") as file:
        for key, entry in _measured(todo, directory, min(jobs, len(todo))):
            finished[key] = entry
            file.write(json.dumps({"key": key, **entry}) + "\n")
            file.flush()
            done(len(finished), len(rows))
    return [finished[row.key] for row in rows]


def _read_partial(partial: Path) -> Iterator[dict[str, Any]]:
    if not partial.exists():
        return
    text = partial.read_text()
    whole, _, torn = text.rpartition("\n")
    if torn:  # the collection was killed while it wrote this line
        partial.write_text(whole + "\n" if whole else "")
    for line in whole.splitlines():
        yield json.loads(line)


def _measured(
    todo: Sequence[Row], directory: Path, jobs: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    # Processes of our own rather than an executor: each one owns namespaces, and has to take them
    # down itself, in order, whatever ends the collection.
    fresh = multiprocessing.get_context("spawn")
    tasks: Queue[Row | None] = fresh.Queue()
    results: Queue[tuple[str, Any]] = fresh.Queue()
    stop = fresh.Event()
    for row in todo:
        tasks.put(row)
    for _ in range(jobs):
        tasks.put(None)
    workers = [
        fresh.Process(
            target=_work, args=(directory, tasks, results, stop), name=f"collect-{number}"
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
        stop.set()
        tasks.cancel_join_thread()
        for worker in workers:
            if worker.pid is not None:
                worker.join()


def _work(
    directory: Path,
    tasks: "Queue[Row | None]",
    results: "Queue[tuple[str, Any]]",
    stop: Event,
) -> None:
    # A Ctrl-C at the terminal reaches the whole group; the parent tells us by `stop`, and until then
    # the teardown must not be cut in two.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(-10)  # the host may be busy with other things; the measurement must not wait for them
    try:
        with Bench(directory, cancelled=stop.is_set) as bench:
            while not stop.is_set() and (row := tasks.get()) is not None:
                entry = bench.measure(row)
                if entry is not None:
                    results.put((row.key, entry))
    except Exception as error:
        results.put(("", f"{type(error).__name__}: {error}"))
