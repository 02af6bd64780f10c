"""Exchanges over replayed networks, without a clock: the events of a trial in their order."""

import heapq
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from emu.experiments.meatballs.client import Client, Policy, Record, Task
from emu.experiments.meatballs.exchanges.requests import Request
from emu.experiments.meatballs.usage import Usage
from emu.lab.simulation.network import HEADER_BYTES, Exchange, ReplayedNetwork

AFTER_S = 60.0
"""How long after its last request a trial goes on at most, for answers that are still to come."""

_DO = Callable[[float], None]


class TimedTask(Task, Protocol):
    """A task that begins at a planned instant of the trial."""

    @property
    def at_s(self) -> float:
        """When, in seconds from the trial's beginning."""
        ...


T = TypeVar("T", bound=TimedTask)


class Events:
    """What is to happen, in the order of time; what is planned first comes first."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, _DO]] = []
        self._number = itertools.count()

    def at(self, at_s: float, do: _DO) -> None:
        """Plans something; an infinite time never comes."""
        if at_s < math.inf:
            heapq.heappush(self._heap, (at_s, next(self._number), do))

    @property
    def next_s(self) -> float:
        """When the next one is; infinite: there is none."""
        return self._heap[0][0] if self._heap else math.inf

    def happen(self) -> float:
        """Lets the next one happen; returns its time."""
        at_s, _, do = heapq.heappop(self._heap)
        do(at_s)
        return at_s


def simulate(
    requests: Sequence[Request],
    networks: Mapping[str, ReplayedNetwork],
    policy: Policy[Request],
    usage: Usage,
    *,
    start_s: float = 0.0,
    duration_s: float,
) -> list[Record]:
    """One trial; simulated, not emulated: see `emu.lab.simulation.network`.

    Args:
        requests: with instants from the trial's beginning.
        networks: by name; ways are named like them.
        policy: decides; its clock is the trial's, too.
        usage: filled with what was carried, at the instants of the trial.
        start_s: the second of the replay at which the trial begins.
        duration_s: when nobody asks any more; answers are waited for `AFTER_S` longer.

    Returns:
        A record per request.
    """
    events = Events()
    carrier = _Carrier(events, networks, usage, start_s)
    client = Client(policy, carrier)
    carrier.client = client
    for name, network in networks.items():
        follow(name, network, client, events, usage, start_s)
    return play(client, events, requests, duration_s)


def play(client: Client[T], events: Events, tasks: Sequence[T], duration_s: float) -> list[Record]:
    """Lets everything happen in its order: tasks begin, answers come, silence is noticed."""
    for task in tasks:
        events.at(task.at_s, _beginning(client, task))
    now_s = 0.0
    while True:
        wake_s = client.next_wake_s
        next_s = min(events.next_s, wake_s)
        if next_s > duration_s + (AFTER_S if client.waiting else 0.0):
            break
        now_s = next_s
        if wake_s < events.next_s:
            client.wake(now_s)
        else:
            events.happen()
    return client.records(max(now_s, duration_s))


def _beginning(client: Client[T], task: T) -> _DO:
    return lambda at_s: client.begin(task, at_s)


def follow(
    name: str,
    network: ReplayedNetwork,
    client: Client[T],
    events: Events,
    usage: Usage,
    start_s: float,
    way: str | None = None,
) -> None:
    """Tells the client when the network comes and goes; a connection is set up whenever it comes.

    `way` is what the client calls what goes over it; None: the network's own name.
    """
    called = way or name

    def connect(at_s: float) -> None:
        client.attached(called, at_s)
        # One packet each way: what a handshake is on the wire.
        found = network.exchange(start_s + at_s, 1, 1)
        usage.carried(name, at_s, HEADER_BYTES, 0)

        def connected(now_s: float) -> None:
            usage.carried(name, now_s, 0, HEADER_BYTES)
            client.connected(called, now_s - at_s, now_s)

        events.at(found.completed_at_s - start_s, connected)

    def change(at_s: float) -> None:
        there = network.up_at(start_s + at_s)
        if there and called not in client.usable:
            connect(at_s)
        elif not there:
            client.detached(called, at_s)
        # A hair later: at the very instant, rounding decides whether it is before or after.
        events.at(network.next_change_s(start_s + at_s) - start_s + 1e-6, change)

    events.at(0.0, change)


class _Carrier:
    """Exchanges over replayed networks."""

    def __init__(
        self,
        events: Events,
        networks: Mapping[str, ReplayedNetwork],
        usage: Usage,
        start_s: float,
    ) -> None:
        self._events, self._networks, self._usage = events, networks, usage
        self._start_s = start_s
        self._under_way: dict[tuple[int, str], Exchange] = {}
        self.client: Client[Request] | None = None

    def start(self, task: Request, way: str, now_s: float) -> None:
        found = self._networks[way].exchange(self._start_s + now_s, task.up_bytes, task.down_bytes)
        self._under_way[task.number, way] = found
        self._events.at(
            found.served_at_s - self._start_s, lambda at_s: self._sent(found, way, at_s)
        )
        self._events.at(
            found.ended_at_s - self._start_s, lambda at_s: self._ended(task, way, found, at_s)
        )

    def cancel(self, task: Request, way: str, now_s: float) -> None:
        """The server hears of it half a round trip later; what it has answered by then comes."""
        found = self._under_way.get((task.number, way))
        if found is None:
            return  # lost at this very instant, and the host is about to notice
        heard_s = now_s + self._start_s + self._networks[way].rtt_s / 2
        self._usage.carried(way, now_s, HEADER_BYTES, 0)
        if found.served_at_s > heard_s:
            del self._under_way[task.number, way]

    def _sent(self, found: Exchange, way: str, at_s: float) -> None:
        up, _ = found.carried(found.served_at_s)
        self._usage.carried(way, at_s, up, 0)

    def _ended(self, task: Request, way: str, found: Exchange, at_s: float) -> None:
        if self._under_way.get((task.number, way)) is not found:
            return
        del self._under_way[task.number, way]
        up, down = found.carried()
        if found.served_at_s < math.inf:
            up -= found.carried(found.served_at_s)[0]
        self._usage.carried(way, at_s, up, down)
        if found.completed_at_s < math.inf:
            assert self.client is not None
            self.client.answered(task.number, way, at_s)
