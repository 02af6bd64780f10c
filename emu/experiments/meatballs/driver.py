"""The driver of a simulated trial: an agenda of events in virtual time, over replayed networks."""

import heapq
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from emu.experiments.meatballs.client import Carrier, Client, Record, Task, Usage
from emu.experiments.replayed_network import HEADER_BYTES, Exchange, ReplayedNetwork

AFTER_S = 60.0
"""Seconds that a trial goes on after its last request, for pending answers."""

Event = Callable[[float], None]
"""Is told the instant at which it happens, in seconds of the trial."""


class TimedTask(Task, Protocol):
    """A task that begins at a planned instant of the trial."""

    @property
    def at_s(self) -> float: ...


T = TypeVar("T", bound=TimedTask)


class NetworkCarrier(Carrier[T], Protocol[T]):
    """A policy's client with its connections over networks that come and go."""

    @property
    def client(self) -> Client[T]: ...

    def connect(self, way: str, now_s: float) -> None:
        """Set up a connection of this way, if there is none: its network is there."""
        ...

    def disconnect(self, way: str, now_s: float) -> None: ...


class Agenda:
    """Events to come, in the order of time; of two at one instant the first planned comes first."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Event]] = []
        self._number = itertools.count()

    def at(self, at_s: float, event: Event) -> None:
        """Plans something; an infinite time never comes."""
        if at_s < math.inf:
            heapq.heappush(self._heap, (at_s, next(self._number), event))

    @property
    def next_s(self) -> float:
        return self._heap[0][0] if self._heap else math.inf

    def pop(self) -> Event:
        return heapq.heappop(self._heap)[2]


def play(
    agenda: Agenda,
    carrier: NetworkCarrier[T],
    tasks: Sequence[T],
    networks: Mapping[str, ReplayedNetwork],
    *,
    start_s: float,
    duration_s: float,
) -> list[Record]:
    """Play one trial of one policy; return a record per task.

    `agenda`: the carrier's own; an answer is an event in it.
    `start_s`: the second of the replay at which the trial begins.
    `duration_s`: when no more requests are made; answers are waited for `AFTER_S` longer.
    """
    client = carrier.client
    for way, network in networks.items():
        _follow(agenda, carrier, way, network, start_s)
    for task in tasks:
        agenda.at(task.at_s, _beginning(client, task))
    now_s = 0.0
    while True:
        # Time jumps to the next event, or to when the client looks at what is silent.
        wake_s = client.next_wake_s
        next_s = min(agenda.next_s, wake_s)
        if next_s > duration_s + (AFTER_S if client.waiting else 0.0):
            break
        now_s = next_s
        if wake_s < agenda.next_s:
            client.wake(now_s)
        else:
            agenda.pop()(now_s)
    return client.records(max(now_s, duration_s))


def _beginning(client: Client[T], task: T) -> Event:
    return lambda now_s: client.begin(task, now_s)


def _follow(
    agenda: Agenda, carrier: NetworkCarrier[T], way: str, network: ReplayedNetwork, start_s: float
) -> None:
    def change(now_s: float) -> None:
        _update(carrier, way, network, start_s, now_s)
        # A hair later: at the very instant, rounding decides whether it is before or after.
        agenda.at(network.next_change_s(start_s + now_s) - start_s + 1e-6, change)

    agenda.at(0.0, change)


def _update(
    carrier: NetworkCarrier[T], way: str, network: ReplayedNetwork, start_s: float, now_s: float
) -> None:
    there = network.up_at(start_s + now_s)
    if there and way not in carrier.client.usable:
        carrier.client.on_attach(way, now_s)
        carrier.connect(way, now_s)
    elif not there and way in carrier.client.usable:
        carrier.disconnect(way, now_s)
        carrier.client.detached(way, now_s)


def _at_once(now_s: float) -> float:
    return 0.0


class SimulatedNetwork:
    """Plans an exchange's events; simulated, not emulated (see `emu.experiments.replayed_network`).

    Args:
        name: the network's, for `usage`.
        usage: filled with what was carried, at the instants of the trial.
        start_s: the second of the replay at which the trial begins.
    """

    def __init__(
        self, agenda: Agenda, name: str, network: ReplayedNetwork, usage: Usage, start_s: float
    ) -> None:
        self._agenda, self._name, self._network = agenda, name, network
        self._usage, self._start_s = usage, start_s
        self._under_way: dict[int, tuple[Exchange, float]] = {}

    def connect(self, now_s: float, connected: Callable[[float], None]) -> None:
        """Carry a handshake, one packet each way; `connected` is called when it ends."""
        found = self._network.exchange(self._start_s + now_s, 1, 1)
        self._usage.add_bytes(self._name, now_s, HEADER_BYTES, 0)

        def done(at_s: float) -> None:
            self._usage.add_bytes(self._name, at_s, 0, HEADER_BYTES)
            connected(at_s)

        self._agenda.at(found.completed_at_s - self._start_s, done)

    def start(
        self,
        number: int,
        up_bytes: int,
        down_bytes: int,
        now_s: float,
        answered: Callable[[float, float], None],
        serving_s: Callable[[float], float] = _at_once,
    ) -> None:
        """Begin an exchange; one that the network's end cuts off is not answered.

        `answered`: is told when the response is there, and for how long the server worked.
        `serving_s`: how long it works for a request that is complete at an instant.
        """
        begin_s = self._start_s + now_s
        found = self._network.exchange(begin_s, up_bytes, down_bytes)
        server_s = 0.0
        if found.served_at_s < math.inf:
            server_s = serving_s(found.served_at_s - self._start_s)
        if server_s:
            found = self._network.exchange(begin_s, up_bytes, down_bytes, server_s=server_s)
        self._under_way[number] = (found, server_s)

        def sent(at_s: float) -> None:
            # All at once: told when the last packet has passed the link.
            self._usage.add_bytes(self._name, at_s, found.bytes_until(found.served_at_s)[0], 0)

        def ended(at_s: float) -> None:
            if self._under_way.get(number, (None, 0.0))[0] is not found:
                return
            del self._under_way[number]
            up, down = found.bytes_until()
            if found.served_at_s < math.inf:
                up -= found.bytes_until(found.served_at_s)[0]
            self._usage.add_bytes(self._name, at_s, up, down)
            if found.completed_at_s < math.inf:
                answered(at_s, server_s)

        self._agenda.at(found.served_at_s - self._start_s, sent)
        self._agenda.at(found.ended_at_s - self._start_s, ended)

    def cancel(self, number: int, now_s: float) -> None:
        """Cancel a request: the server hears of it half a round trip later; earlier answers come."""
        if number not in self._under_way:
            return  # lost at this very instant, and the host is about to notice
        found, server_s = self._under_way[number]
        self._usage.add_bytes(self._name, now_s, HEADER_BYTES, 0)
        heard_s = now_s + self._start_s + self._network.rtt_s / 2
        if found.served_at_s + server_s > heard_s:
            del self._under_way[number]
