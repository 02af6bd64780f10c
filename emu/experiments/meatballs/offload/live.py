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
from emu.experiments.meatballs.exchanges.live import PORT, message_bytes
from emu.experiments.meatballs.offload.simulated import ComputePolicy, Processor
from emu.experiments.meatballs.offload.utterances import (
    ANSWER_BYTES,
    LOCAL,
    REMOTE,
    WIFI,
    Utterance,
)
from emu.experiments.meatballs.usage import Usage
from emu.lab.simulation.network import HEADER_BYTES
from emu.testbed.access import ADDRESSES
from emu.testbed.phones import SERVER, Laptop
from emu.workloads.exchange import ExchangeConnection
from emu.workloads.speech import recognise

_FORK = multiprocessing.get_context("fork")
_LATE_S = 30.0
_OTHERS_FROM = 1_000_000


def run(
    laptop: Laptop,
    tasks: Sequence[Utterance],
    policy: ComputePolicy,
    usage: Usage,
    processor: Processor,
    *,
    local_passes: int,
    others: Sequence[tuple[float, float]],
    zero_at_s: float,
) -> list[Record]:
    """One trial under one policy, over Wi-Fi that stays.

    Args:
        laptop: with its Wi-Fi attached and the server running.
        tasks: with instants from the trial's beginning.
        policy: decides.
        usage: of the Wi-Fi; filled.
        processor: the device's; filled with wall seconds of its process.
        local_passes: how slow the device is.
        others: when others ask the server, and for how many seconds of speech; may begin before 0.
        zero_at_s: the monotonic instant of the trial's beginning.

    Returns:
        A record per task.
    """
    stop = threading.Event()
    loading = threading.Thread(
        target=_load, args=(laptop, others, zero_at_s, stop), name="others", daemon=True
    )
    loading.start()
    try:
        with selectors.DefaultSelector() as selector:
            side = _Side(laptop, selector, policy, usage, processor, local_passes, zero_at_s)
            while (wait_s := zero_at_s - time.monotonic()) > 0:
                time.sleep(wait_s)
            side.open()
            due = list(tasks)
            while due or side.client.waiting:
                now_s = side.now_s
                if not due and now_s > tasks[-1].at_s + _LATE_S:
                    break
                while due and due[0].at_s <= now_s:
                    side.client.begin(due.pop(0), side.now_s)
                if side.client.next_wake_s <= now_s:
                    side.client.wake(side.now_s)
                next_s = min([each.at_s for each in due[:1]] + [side.client.next_wake_s])
                for key, events in selector.select(min(max(next_s - side.now_s, 0.0), 0.2)):
                    key.data(events)
            records = side.client.records(side.now_s)
            side.close()
            return records
    finally:
        stop.set()
        loading.join()


class _Side:
    """The carrier: one connection, and one process for what is computed here."""

    def __init__(
        self,
        laptop: Laptop,
        selector: selectors.BaseSelector,
        policy: ComputePolicy,
        usage: Usage,
        processor: Processor,
        local_passes: int,
        zero_at_s: float,
    ) -> None:
        self._laptop, self._selector, self._policy = laptop, selector, policy
        self._usage, self._processor, self._passes = usage, processor, local_passes
        self._zero_at_s = zero_at_s
        self._tasks: dict[int, Utterance] = {}
        self._here: dict[int, tuple[multiprocessing.process.BaseProcess, Connection, float]] = {}
        self._connection: ExchangeConnection | None = None
        self._began_s = 0.0
        self.client = Client(policy, self)

    @property
    def now_s(self) -> float:
        """Seconds of the trial."""
        return time.monotonic() - self._zero_at_s

    @property
    def connection(self) -> ExchangeConnection:
        """The connection over Wi-Fi."""
        assert self._connection is not None
        return self._connection

    def open(self) -> None:
        """Both ways are there from the beginning."""
        self._connection = ExchangeConnection(
            self._laptop.client, ADDRESSES[NetworkKind.WIFI], (SERVER, PORT)
        )
        self._began_s = self.now_s
        self._selector.register(
            self.connection.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, self._happened
        )
        self.client.attached(LOCAL, self.now_s)
        self.client.attached(REMOTE, self.now_s)

    def start(self, task: Utterance, way: str, now_s: float) -> None:
        """See `emu.experiments.meatballs.client.Carrier`."""
        self._tasks[task.number] = task
        if way == LOCAL:
            mine, theirs = _FORK.Pipe(duplex=False)
            process = _FORK.Process(
                target=_compute, args=(theirs, task.length_s, task.number, self._passes)
            )
            process.start()
            theirs.close()
            self._here[task.number] = (process, mine, now_s)
            self._selector.register(mine, selectors.EVENT_READ, lambda _: self._computed(task))
            return
        self.connection.ask(task.number, task.up_bytes, ANSWER_BYTES, task.length_s)
        self._usage.carried(WIFI, now_s, message_bytes(task.up_bytes), 0)
        self._watch()

    def cancel(self, task: Utterance, way: str, now_s: float) -> None:
        """See `emu.experiments.meatballs.client.Carrier`."""
        if way == LOCAL:
            self._ended(task.number, now_s)
        else:
            self.connection.cancel(task.number)
            self._usage.carried(WIFI, now_s, HEADER_BYTES, 0)
            self._watch()

    def close(self) -> None:
        """Ends what is under way."""
        for number in list(self._here):
            self._ended(number, self.now_s)
        self._selector.unregister(self.connection.socket)
        self.connection.abort()

    def _ended(self, number: int, now_s: float) -> float:
        process, mine, began_s = self._here.pop(number)
        self._selector.unregister(mine)
        process.kill()
        process.join()
        process.close()
        mine.close()
        self._processor.busy_s += now_s - began_s
        return now_s - began_s

    def _computed(self, task: Utterance) -> None:
        now_s = self.now_s
        took_s = self._ended(task.number, now_s)
        self._policy.computed(task, LOCAL, took_s, now_s)
        self.client.answered(task.number, LOCAL, now_s)

    def _happened(self, events: int) -> None:
        if events & selectors.EVENT_WRITE and self.connection.writable():
            now_s = self.now_s
            self._usage.carried(WIFI, now_s, HEADER_BYTES, HEADER_BYTES)
            self.client.connected(REMOTE, now_s - self._began_s, now_s)
        if events & selectors.EVENT_READ:
            for number, compute_s in self.connection.readable():
                now_s = self.now_s
                self._usage.carried(WIFI, now_s, HEADER_BYTES, message_bytes(ANSWER_BYTES))
                self._policy.computed(self._tasks[number], REMOTE, compute_s, now_s)
                self.client.answered(number, REMOTE, now_s)
        self._watch()

    def _watch(self) -> None:
        events = selectors.EVENT_READ
        if self.connection.wants_to_write:
            events |= selectors.EVENT_WRITE
        self._selector.modify(self.connection.socket, events, self._happened)


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
    connection = ExchangeConnection(laptop.server, "127.0.0.1", ("127.0.0.1", PORT))
    with selectors.DefaultSelector() as selector:
        selector.register(connection.socket, selectors.EVENT_READ | selectors.EVENT_WRITE)
        due = list(enumerate(others, _OTHERS_FROM))
        while not stop.is_set():
            now_s = time.monotonic() - zero_at_s
            while due and due[0][1][0] <= now_s:
                number, (_, length_s) = due.pop(0)
                # The same few recordings: what is measured is their recognition.
                connection.ask(number, 100, ANSWER_BYTES, length_s)
            events = selectors.EVENT_READ
            if connection.wants_to_write:
                events |= selectors.EVENT_WRITE
            selector.modify(connection.socket, events)
            for _, happened in selector.select(0.02):
                if happened & selectors.EVENT_WRITE:
                    connection.writable()
                if happened & selectors.EVENT_READ:
                    connection.readable()
    connection.abort()
