"""The driver of an experiment's clients: an agenda, a virtual or real clock, replayed networks.

Simulated and live trials have the same driver: tasks begin, networks come and go, silence is noticed. A
virtual clock jumps to the next event; a real one waits for it, and serves sockets meanwhile.
"""

import heapq
import itertools
import math
import selectors
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from emu.experiments.meatballs.client import Carrier, Client, Record, Task, Usage
from emu.experiments.replayed_network import HEADER_BYTES, Exchange, ReplayedNetwork

AFTER_S = 60.0
"""Seconds that a trial goes on after its last request, for pending answers."""

_RECONNECT_S = 0.1

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


@dataclass(frozen=True, slots=True)
class Side(Generic[T]):
    carrier: NetworkCarrier[T]
    tasks: Sequence[T]


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


class Clock(Protocol):
    @property
    def now_s(self) -> float: ...

    def wait(self, next_s: float, limit_s: float) -> bool:
        """Let time pass until `next_s`, or until something came from outside; False: it is over.

        It is over where nothing can happen any more before `limit_s` has passed.
        """
        ...


class VirtualClock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def wait(self, next_s: float, limit_s: float) -> bool:
        if next_s > limit_s:
            return False
        self.now_s = next_s
        return True


class RealClock:
    """The host's clock.

    Args:
        selector: of everything that may come from outside; a key's data is called with its events.
        zero_at_s: the monotonic instant of the trial's beginning.
    """

    def __init__(self, selector: selectors.BaseSelector, zero_at_s: float) -> None:
        self.selector = selector
        self._zero_at_s = zero_at_s

    @property
    def now_s(self) -> float:
        return time.monotonic() - self._zero_at_s

    def wait(self, next_s: float, limit_s: float) -> bool:
        """Serve what is ready, or becomes ready until then."""
        now_s = self.now_s
        if now_s > limit_s:
            return False
        for key, events in self.selector.select(max(min(next_s, limit_s) - now_s, 0.0)):
            key.data(events)
        return True


def play(
    clock: Clock,
    agenda: Agenda,
    sides: Sequence[Side[T]],
    networks: Mapping[str, ReplayedNetwork],
    *,
    start_s: float,
    duration_s: float,
) -> list[list[Record]]:
    """Play one trial of one policy, or of several side by side.

    `agenda`: the carriers' own; a simulated answer is an event in it.
    `sides`: the policies' carriers and tasks.
    `networks`: by way; what is live takes from them when networks are there, as radios would say.
    `start_s`: the second of the replay at which the trial begins.
    `duration_s`: when no more requests are made; answers are waited for `AFTER_S` longer.

    Returns:
        For each side a record per task.
    """
    for side in sides:
        for way, network in networks.items():
            _follow(agenda, side.carrier, way, network, start_s)
        for task in side.tasks:
            agenda.at(task.at_s, _beginning(side.carrier.client, task))
    clients = [side.carrier.client for side in sides]
    while True:
        first = min(clients, key=lambda client: client.next_wake_s)
        wake_s = first.next_wake_s
        limit_s = duration_s + (AFTER_S if any(each.waiting for each in clients) else 0.0)
        if not clock.wait(min(agenda.next_s, wake_s), limit_s):
            break
        now_s = clock.now_s
        if wake_s <= now_s and wake_s < agenda.next_s:
            first.wake(now_s)
        elif agenda.next_s <= now_s:
            agenda.pop()(now_s)
    end_s = max(clock.now_s, duration_s)
    return [client.records(end_s) for client in clients]


def reconnect(
    agenda: Agenda,
    carrier: NetworkCarrier[T],
    way: str,
    network: ReplayedNetwork,
    start_s: float,
    now_s: float,
) -> None:
    """Try a new connection a little later, if the network is there."""
    carrier.disconnect(way, now_s)
    carrier.client.detached(way, now_s)
    agenda.at(now_s + _RECONNECT_S, lambda at_s: _update(carrier, way, network, start_s, at_s))


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
