"""Offloaded computations live: Mahimahi, a real server whose processor others load, real computing.

The device's own computing runs in a process of its own, which is killed when it is not needed any more.
Others' requests come from a thread beside the server, over connections of their own.
"""

import multiprocessing
import selectors
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

from cedos.model import NetworkKind
from emu.experiments.meatballs.client import Client, Record
from emu.experiments.meatballs.connections import Connections, WatchedConnection, message_bytes
from emu.experiments.meatballs.driver import Agenda, RealClock, Side, play, reconnect
from emu.experiments.meatballs.offload.simulated import ComputePolicy, Processor
from emu.experiments.meatballs.offload.utterances import (
    ANSWER_BYTES,
    LOCAL,
    REMOTE,
    WIFI,
    Utterance,
)
from emu.experiments.meatballs.usage import Usage
from emu.lab.simulation.network import HEADER_BYTES, ReplayedNetwork
from emu.testbed.access import ADDRESSES
from emu.testbed.phones import Laptop
from emu.workloads.exchange import Response
from emu.workloads.speech import recognise

_FORK = multiprocessing.get_context("fork")
_OTHERS_FROM = 1_000_000


def run(
    laptop: Laptop,
    tasks: Sequence[Utterance],
    wifi: ReplayedNetwork,
    policy: ComputePolicy,
    usage: Usage,
    processor: Processor,
    *,
    local_passes: int,
    others: Sequence[tuple[float, float]],
    zero_at_s: float,
    start_s: float,
    duration_s: float,
) -> list[Record]:
    """One trial under one policy, as `driver.play`.

    `laptop`: with its Wi-Fi attached and the server running.
    `wifi`: what the laptop replays.
    `processor`: the device's; filled with wall seconds of its process.
    `others`: when others ask the server, and for how many seconds of speech; may begin before 0.
    `zero_at_s`: the monotonic instant of the trial's beginning.
    """
    stop = threading.Event()
    loading = threading.Thread(
        target=_load, args=(laptop, others, zero_at_s, stop), name="others", daemon=True
    )
    loading.start()
    agenda = Agenda()
    try:
        with selectors.DefaultSelector() as selector:
            clock = RealClock(selector, zero_at_s)
            carrier = LiveOffload(
                laptop, clock, agenda, wifi, policy, usage, processor, local_passes, start_s
            )
            carrier.client.attached(LOCAL, 0.0)
            sides, networks = [Side(carrier, tasks)], {REMOTE: wifi}
            records = play(clock, agenda, sides, networks, start_s=start_s, duration_s=duration_s)[
                0
            ]
            carrier.close()
            return records
    finally:
        stop.set()
        loading.join()


class LiveOffload:
    def __init__(
        self,
        laptop: Laptop,
        clock: RealClock,
        agenda: Agenda,
        wifi: ReplayedNetwork,
        policy: ComputePolicy,
        usage: Usage,
        processor: Processor,
        local_passes: int,
        start_s: float,
    ) -> None:
        self._clock, self._agenda, self._wifi, self._policy = clock, agenda, wifi, policy
        self._usage, self._processor, self._passes = usage, processor, local_passes
        self._start_s = start_s
        self._tasks: dict[int, Utterance] = {}
        self._here: dict[int, tuple[multiprocessing.process.BaseProcess, Connection, float]] = {}
        self._connections = Connections(
            clock.selector,
            laptop,
            {REMOTE: ADDRESSES[NetworkKind.WIFI]},
            answered=self._answered,
            connected=self._connected,
            failed=self._failed,
        )
        self.client = Client(policy, self)

    def connect(self, way: str, now_s: float) -> None:
        self._connections.of(way)

    def disconnect(self, way: str, now_s: float) -> None:
        self._connections.drop(way)

    def start(self, task: Utterance, way: str, now_s: float) -> None:
        self._tasks[task.number] = task
        if way == LOCAL:
            mine, theirs = _FORK.Pipe(duplex=False)
            process = _FORK.Process(
                target=_compute, args=(theirs, task.length_s, task.number, self._passes)
            )
            process.start()
            theirs.close()
            self._here[task.number] = (process, mine, now_s)
            self._clock.selector.register(
                mine, selectors.EVENT_READ, lambda _: self._computed_here(task)
            )
            return
        self._connections.of(way).ask(task.number, task.up_bytes, ANSWER_BYTES, task.length_s)
        self._usage.carried(WIFI, now_s, message_bytes(task.up_bytes), 0)

    def cancel(self, task: Utterance, way: str, now_s: float) -> None:
        if way == LOCAL:
            self._end_process(task.number, now_s)
        else:
            self._connections.of(way).cancel(task.number)
            self._usage.carried(WIFI, now_s, HEADER_BYTES, 0)

    def close(self) -> None:
        for number in list(self._here):
            self._end_process(number, self._clock.now_s)
        self._connections.close()

    def _end_process(self, number: int, now_s: float) -> float:
        process, mine, began_s = self._here.pop(number)
        self._clock.selector.unregister(mine)
        process.kill()
        process.join()
        process.close()
        mine.close()
        self._processor.worked(now_s - began_s)
        return now_s - began_s

    def _computed_here(self, task: Utterance) -> None:
        if task.number not in self._here:
            return  # cancelled by an earlier event of the same round
        now_s = self._clock.now_s
        took_s = self._end_process(task.number, now_s)
        self._policy.computed(task, LOCAL, took_s, now_s)
        self.client.answered(task.number, LOCAL, now_s)

    def _answered(self, way: str, response: Response) -> None:
        now_s = self._clock.now_s
        self._usage.carried(WIFI, now_s, HEADER_BYTES, message_bytes(ANSWER_BYTES))
        self._policy.computed(self._tasks[response.number], way, response.compute_s, now_s)
        self.client.answered(response.number, way, now_s)

    def _connected(self, way: str, took_s: float) -> None:
        now_s = self._clock.now_s
        self._usage.carried(WIFI, now_s, HEADER_BYTES, HEADER_BYTES)
        self.client.connected(way, took_s, now_s)

    def _failed(self, way: str) -> None:
        reconnect(self._agenda, self, way, self._wifi, self._start_s, self._clock.now_s)


def _compute(answer: Connection, length_s: float, number: int, passes: int) -> None:
    recognise(length_s, number, times=passes)
    answer.send(True)


def _load(
    laptop: Laptop,
    others: Sequence[tuple[float, float]],
    zero_at_s: float,
    stop: threading.Event,
) -> None:
    """Others' requests, from the server's own namespace."""
    with selectors.DefaultSelector() as selector:
        connection = WatchedConnection(
            selector, laptop.server, "127.0.0.1", "127.0.0.1", answered=lambda _: None
        )
        due = list(enumerate(others, _OTHERS_FROM))
        while not stop.is_set():
            now_s = time.monotonic() - zero_at_s
            while due and due[0][1][0] <= now_s:
                number, (_, length_s) = due.pop(0)
                # The same few recordings: what is measured is their recognition.
                connection.ask(number, 100, ANSWER_BYTES, length_s)
            for key, events in selector.select(0.02):
                key.data(events)
        connection.close()
