"""Exchanges over emulated networks, live: Mahimahi, real sockets, a real server, a real clock.

Several policies run side by side, each with connections of its own: their few kilobytes are nothing
to the links. The decisions are those of the simulation, by the same code.
"""

import selectors
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from cedos.errors import EmulationError
from cedos.model import NetworkKind
from emu.experiments.meatballs.client import Client, Policy, Record
from emu.experiments.meatballs.exchanges.requests import Request
from emu.experiments.meatballs.exchanges.simulated import AFTER_S
from emu.experiments.meatballs.race import Chosen
from emu.experiments.meatballs.usage import Usage
from emu.lab.simulation.network import HEADER_BYTES, PAYLOAD_BYTES, ReplayedNetwork
from emu.testbed.access import ADDRESSES
from emu.testbed.phones import SERVER, Laptop
from emu.workloads.exchange import ExchangeConnection

PORT = 7400


@dataclass(slots=True)
class Trial:
    """One policy's part of a live run, and how its requests went.

    Attributes:
        policy: decides.
        usage: filled with what was carried.
        requests: with instants from the trial's beginning.
        records: filled, one for each.
        deciding_s: filled: how long each decision took, before anything could be sent.
    """

    policy: Policy[Request]
    usage: Usage
    requests: Sequence[Request]
    records: list[Record] = field(default_factory=list)
    deciding_s: list[float] = field(default_factory=list)


class _Timed:
    """A policy whose decisions are timed: the simulation's take no time."""

    def __init__(self, policy: Policy[Request], spent_s: list[float]) -> None:
        self._policy, self._spent_s = policy, spent_s
        self.measured, self.connected = policy.measured, policy.connected
        self.attached, self.detached = policy.attached, policy.detached

    def choose(
        self, task: Request, now_s: float, usable: frozenset[str], silent: Mapping[str, float]
    ) -> Chosen:
        """The policy's own choice."""
        began_s = time.perf_counter()
        chosen = self._policy.choose(task, now_s, usable, silent)
        self._spent_s.append(time.perf_counter() - began_s)
        return chosen


@contextmanager
def serving(laptop: Laptop, *options: int) -> Iterator[None]:
    """The server of exchanges, in the laptop's server namespace; see its module for what follows."""
    with laptop.server.popen(
        *(sys.executable, "-m", "emu.workloads.exchange_server", *map(str, (PORT, *options))),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            if process.stdout is None or process.stdout.readline().strip() != "ready":
                raise EmulationError("the server of exchanges did not start")
            yield
        finally:
            process.terminate()


def run(
    laptop: Laptop,
    networks: Mapping[str, ReplayedNetwork],
    trials: Mapping[str, Trial],
    *,
    replay_at_s: float,
    start_s: float,
    duration_s: float,
) -> None:
    """Runs all policies side by side; fills in their records.

    Args:
        laptop: with both networks attached and a server running.
        networks: what the laptop replays: when each is there is read from here, as radios would say.
        trials: by policy.
        replay_at_s: the monotonic instant at which the replay stood at `start_s`.
        start_s: the second of the replay at which the trial begins.
        duration_s: of the requests; answers are waited for `AFTER_S` longer.
    """
    with selectors.DefaultSelector() as selector:
        sides = [
            _Side(laptop, selector, trial, networks, start_s, replay_at_s)
            for trial in trials.values()
        ]
        due = [list(trial.requests) for trial in trials.values()]
        for side in sides:
            side.follow(0.0)
        while True:
            now_s = time.monotonic() - replay_at_s
            if now_s > duration_s and (
                now_s > duration_s + AFTER_S or not any(side.client.waiting for side in sides)
            ):
                break
            for side, asked in zip(sides, due, strict=True):
                while asked and asked[0].at_s <= now_s:
                    side.client.begin(asked.pop(0), time.monotonic() - replay_at_s)
            for side in sides:
                side.follow(now_s)
                if side.client.next_wake_s <= now_s:
                    side.client.wake(time.monotonic() - replay_at_s)
            next_s = min(
                [asked[0].at_s for asked in due if asked]
                + [duration_s]
                + [min(side.next_change_s, side.client.next_wake_s) for side in sides]
            )
            wait_s = min(max(next_s - (time.monotonic() - replay_at_s), 0.0), 0.2)
            for key, events in selector.select(wait_s):
                key.data.happened(events)
        for side, trial in zip(sides, trials.values(), strict=True):
            trial.records = side.client.records(time.monotonic() - replay_at_s)
            side.close()


class _Side:
    """One policy's client with its connections; it is the carrier of its own client."""

    def __init__(
        self,
        laptop: Laptop,
        selector: selectors.BaseSelector,
        trial: Trial,
        networks: Mapping[str, ReplayedNetwork],
        start_s: float,
        replay_at_s: float,
    ) -> None:
        self._laptop, self._selector, self._networks = laptop, selector, networks
        self._usage, self._start_s, self._replay_at_s = trial.usage, start_s, replay_at_s
        self._links: dict[str, _Link] = {}
        self.client = Client(_Timed(trial.policy, trial.deciding_s), self)

    @property
    def now_s(self) -> float:
        """Seconds of the trial."""
        return time.monotonic() - self._replay_at_s

    @property
    def next_change_s(self) -> float:
        """When a network comes or goes next, as far as the host would notice."""
        at_s = self._start_s + self.now_s
        return min(net.next_change_s(at_s) for net in self._networks.values()) - self._start_s

    def follow(self, now_s: float) -> None:
        """Connects over networks that have come, gives up what has gone."""
        for name, network in self._networks.items():
            there = network.up_at(self._start_s + now_s)
            if there and (name not in self._links or self._links[name].connection.failed):
                if name in self._links:  # a connection that failed by itself begins anew
                    self.detach(name)
                self._links[name] = _Link(self, name)
                self.client.attached(name, self.now_s)
            elif not there and name in self._links:
                self.detach(name)

    def detach(self, name: str) -> None:
        """The network has gone: its connection ends at once."""
        self._links.pop(name).close()
        self.client.detached(name, self.now_s)

    def start(self, task: Request, way: str, now_s: float) -> None:
        """See `emu.experiments.meatballs.client.Carrier`."""
        self._links[way].connection.ask(task.number, task.up_bytes, task.down_bytes)
        self._links[way].watch()
        self._usage.carried(way, now_s, message_bytes(task.up_bytes), 0)
        self._links[way].expected[task.number] = task.down_bytes

    def cancel(self, task: Request, way: str, now_s: float) -> None:
        """See `emu.experiments.meatballs.client.Carrier`."""
        self._links[way].connection.cancel(task.number)
        self._links[way].watch()
        self._usage.carried(way, now_s, HEADER_BYTES, 0)

    def answered(self, link: "_Link", number: int) -> None:
        """A response is complete."""
        now_s = self.now_s
        self._usage.carried(
            link.name, now_s, HEADER_BYTES, message_bytes(link.expected.pop(number, 1))
        )
        self.client.answered(number, link.name, now_s)

    def connected(self, link: "_Link") -> None:
        """A connection stands."""
        now_s = self.now_s
        self._usage.carried(link.name, now_s, HEADER_BYTES, HEADER_BYTES)
        self.client.connected(link.name, now_s - link.since_s, now_s)

    def opened(self, name: str) -> ExchangeConnection:
        """A new connection over a network."""
        return ExchangeConnection(self._laptop.client, ADDRESSES[NetworkKind(name)], (SERVER, PORT))

    def register(self, link: "_Link", events: int) -> None:
        """Watches a connection's socket, for these events from now on."""
        if link.watched:
            self._selector.modify(link.connection.socket, events, link)
        else:
            self._selector.register(link.connection.socket, events, link)

    def unregister(self, link: "_Link") -> None:
        """Watches a socket no longer."""
        self._selector.unregister(link.connection.socket)

    def close(self) -> None:
        """Ends all connections."""
        for link in self._links.values():
            link.close()
        self._links.clear()


class _Link:
    """One side's connection over one network."""

    def __init__(self, side: _Side, name: str) -> None:
        self._side, self.name = side, name
        self.since_s = side.now_s
        self.expected: dict[int, int] = {}
        self.watched = 0
        self.connection = side.opened(name)
        self.watch()

    def watch(self) -> None:
        """Watches for what the connection waits for now."""
        events = selectors.EVENT_READ | (
            selectors.EVENT_WRITE if self.connection.wants_to_write else 0
        )
        if events != self.watched:
            self._side.register(self, events)
            self.watched = events

    def happened(self, events: int) -> None:
        """The selector says that the socket can be read or written."""
        if not self.watched:
            return  # closed by an earlier event of the same round
        if events & selectors.EVENT_WRITE and self.connection.writable():
            self._side.connected(self)
        if events & selectors.EVENT_READ and self.watched:
            for response in self.connection.readable():
                self._side.answered(self, response.number)
        if self.watched and not self.connection.failed:
            self.watch()
        elif self.watched:
            self._side.unregister(self)
            self.watched = 0

    def close(self) -> None:
        """Ends it at once."""
        if self.watched:
            self._side.unregister(self)
            self.watched = 0
        self.connection.abort()


def message_bytes(payload: int) -> int:
    """Bytes on the wire of a message."""
    return payload + HEADER_BYTES * -(-payload // PAYLOAD_BYTES)
