"""How long a recognition takes at the server and here: measured on this machine, before live trials.

What is measured is what the trial will wait for: a process begun, the recordings worked through, its end
noticed. The server has a processor of its own, so that its load is that of its clients alone.
"""

import multiprocessing
import os
import selectors
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from cedos.errors import EmulationError
from emu.experiments.meatballs.connections import WatchedConnection
from emu.experiments.meatballs.offload.simulated import Speeds
from emu.experiments.meatballs.offload.utterances import ANSWER_BYTES, LOCAL, REMOTE
from emu.testbed.phones import Laptop
from emu.workloads.speech import recognise

_FORK = multiprocessing.get_context("fork")
_LENGTHS_S = (1.0, 3.0, 5.0, 8.0)
_ROUNDS = 5
_PATIENCE_S = 60.0


@contextmanager
def processors_apart() -> Iterator[int]:
    """Binds this process and what it starts to all processors but one, the server's, which is told.

    Raises:
        EmulationError: there is only one.
    """
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        raise EmulationError("a server with a processor of its own needs a host with two")
    servers = max(allowed)
    os.sched_setaffinity(0, allowed - {servers})
    try:
        yield servers
    finally:
        os.sched_setaffinity(0, allowed)


def measured(laptop: Laptop, local_passes: int) -> tuple[Speeds, dict[str, float]]:
    """Measures both ways, one after the other.

    `laptop`: its server is running and has nothing else to do.

    Returns:
        Lines through the usual times, and by way how far all lie from them: the standard deviation, as
        a share.
    """
    lengths = [length_s for length_s in _LENGTHS_S for _ in range(_ROUNDS)]
    times = {
        LOCAL: [_here(length_s, local_passes) for length_s in lengths],
        REMOTE: _at_server(laptop, lengths),
    }
    base_s, per_s, off = {}, {}, {}
    for way, took in times.items():
        # What else runs on the host makes one now and then much slower.
        usual = np.median(np.reshape(took, (-1, _ROUNDS)), axis=1)
        per_s[way], base_s[way] = (float(each) for each in np.polyfit(_LENGTHS_S, usual, 1))
        line = base_s[way] + per_s[way] * np.array(lengths)
        off[way] = float(np.std(np.array(took) / line - 1.0))
    return Speeds(base_s, per_s), off


def _here(length_s: float, passes: int) -> float:
    began_s = time.monotonic()
    process = _FORK.Process(target=recognise, args=(length_s, 0, passes))
    process.start()
    process.join()
    process.close()
    return time.monotonic() - began_s


def _at_server(laptop: Laptop, lengths: Sequence[float]) -> list[float]:
    found: list[float] = []
    until_s = time.monotonic() + _PATIENCE_S
    with selectors.DefaultSelector() as selector:
        connection = WatchedConnection(
            *(selector, laptop.server, "127.0.0.1", "127.0.0.1"),
            answered=lambda response: found.append(response.compute_s),
        )
        for number, length_s in enumerate(lengths):
            connection.ask(number, 100, ANSWER_BYTES, length_s)
            while len(found) == number:
                if time.monotonic() > until_s or connection.failed:
                    raise EmulationError("the server does not answer while nobody else asks it")
                for key, events in selector.select(1.0):
                    key.data(events)
        connection.close()
    return found
