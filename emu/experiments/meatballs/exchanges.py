"""Small exchanges: simulated over replayed networks, or live over emulated ones."""

import selectors
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cedos.model import NetworkKind
from emu.experiments.meatballs.client import Client, Policy, Record, Usage
from emu.experiments.meatballs.connections import Connections, message_bytes
from emu.experiments.meatballs.driver import (
    Agenda,
    RealClock,
    Side,
    SimulatedNetwork,
    VirtualClock,
    play,
    reconnect,
)
from emu.experiments.meatballs.exchange_policy import Request
from emu.experiments.meatballs.race import Chosen
from emu.simulation.network import HEADER_BYTES, ReplayedNetwork
from emu.testbed.access import ADDRESSES
from emu.testbed.phones import Laptop


def simulate(
    requests: Sequence[Request],
    networks: Mapping[str, ReplayedNetwork],
    policy: Policy[Request],
    usage: Usage,
    *,
    start_s: float = 0.0,
    duration_s: float,
) -> list[Record]:
    """Simulate one trial; ways are named like the networks, `usage` is filled, as in `driver.play`."""
    agenda = Agenda()
    simulated = {
        name: SimulatedNetwork(agenda, name, network, usage, start_s)
        for name, network in networks.items()
    }
    sides = [Side(SimulatedExchanges(simulated, policy), requests)]
    clock = VirtualClock()
    return play(clock, agenda, sides, networks, start_s=start_s, duration_s=duration_s)[0]


class SimulatedExchanges:
    def __init__(self, networks: Mapping[str, SimulatedNetwork], policy: Policy[Request]) -> None:
        self._networks = networks
        self.client = Client(policy, self)

    def connect(self, way: str, now_s: float) -> None:
        self._networks[way].connect(
            now_s, lambda at_s: self.client.connected(way, at_s - now_s, at_s)
        )

    def disconnect(self, way: str, now_s: float) -> None:
        """Exchanges end by themselves where their network does."""

    def start(self, task: Request, way: str, now_s: float) -> None:
        self._networks[way].start(
            task.number,
            task.up_bytes,
            task.down_bytes,
            now_s,
            lambda at_s, _: self.client.answered(task.number, way, at_s),
        )

    def cancel(self, task: Request, way: str, now_s: float) -> None:
        self._networks[way].cancel(task.number, now_s)


@dataclass(frozen=True, slots=True)
class Trial:
    """The part of one policy in a live run.

    Attributes:
        deciding_s: filled: how long each decision took, before anything could be sent.
    """

    policy: Policy[Request]
    usage: Usage
    requests: Sequence[Request]
    deciding_s: list[float] = field(default_factory=list)


def run(
    laptop: Laptop,
    networks: Mapping[str, ReplayedNetwork],
    trials: Mapping[str, Trial],
    *,
    replay_at_s: float,
    start_s: float,
    duration_s: float,
) -> dict[str, list[Record]]:
    """Run all policies side by side; their records.

    `laptop`: with both networks attached and a server running.
    `networks`: what the laptop replays: when each is there is read from here, as radios would say.
    `replay_at_s`: the monotonic instant at which the replay stood at `start_s`.
    `start_s`: the second of the replay at which the trial begins.
    """
    agenda = Agenda()
    with selectors.DefaultSelector() as selector:
        clock = RealClock(selector, replay_at_s)
        carriers = [
            LiveExchanges(laptop, clock, agenda, trial, networks, start_s)
            for trial in trials.values()
        ]
        records = play(
            clock,
            agenda,
            [
                Side(carrier, trial.requests)
                for carrier, trial in zip(carriers, trials.values(), strict=True)
            ],
            networks,
            start_s=start_s,
            duration_s=duration_s,
        )
        for carrier in carriers:
            carrier.close()
    return dict(zip(trials, records, strict=True))


class _TimedPolicy:
    """A policy whose decisions are timed: the simulation's take no time."""

    def __init__(self, policy: Policy[Request], spent_s: list[float]) -> None:
        self._policy, self._spent_s = policy, spent_s
        self.measured, self.connected = policy.measured, policy.connected
        self.attached, self.detached = policy.attached, policy.detached

    def choose(
        self, task: Request, now_s: float, usable: frozenset[str], silent: Mapping[str, float]
    ) -> Chosen:
        began_s = time.perf_counter()
        chosen = self._policy.choose(task, now_s, usable, silent)
        self._spent_s.append(time.perf_counter() - began_s)
        return chosen


class LiveExchanges:
    def __init__(
        self,
        laptop: Laptop,
        clock: RealClock,
        agenda: Agenda,
        trial: Trial,
        networks: Mapping[str, ReplayedNetwork],
        start_s: float,
    ) -> None:
        self._clock, self._agenda, self._usage = clock, agenda, trial.usage
        self._networks, self._start_s = networks, start_s
        self._response_bytes = {task.number: task.down_bytes for task in trial.requests}
        self._connections = Connections(
            clock.selector,
            laptop,
            {name: ADDRESSES[NetworkKind(name)] for name in networks},
            answered=self._answered,
            connected=self._connected,
            failed=self._failed,
        )
        self.client = Client(_TimedPolicy(trial.policy, trial.deciding_s), self)

    def connect(self, way: str, now_s: float) -> None:
        self._connections.of(way)

    def disconnect(self, way: str, now_s: float) -> None:
        self._connections.drop(way)

    def start(self, task: Request, way: str, now_s: float) -> None:
        self._connections.of(way).ask(task.number, task.up_bytes, task.down_bytes)
        self._usage.carried(way, now_s, message_bytes(task.up_bytes), 0)

    def cancel(self, task: Request, way: str, now_s: float) -> None:
        self._connections.of(way).cancel(task.number)
        self._usage.carried(way, now_s, HEADER_BYTES, 0)

    def close(self) -> None:
        self._connections.close()

    def _answered(self, way: str, number: int) -> None:
        now_s = self._clock.now_s
        down_bytes = message_bytes(self._response_bytes[number])
        self._usage.carried(way, now_s, HEADER_BYTES, down_bytes)
        self.client.answered(number, way, now_s)

    def _connected(self, way: str, took_s: float) -> None:
        now_s = self._clock.now_s
        self._usage.carried(way, now_s, HEADER_BYTES, HEADER_BYTES)
        self.client.connected(way, took_s, now_s)

    def _failed(self, way: str) -> None:
        network = self._networks[way]
        reconnect(self._agenda, self, way, network, self._start_s, self._clock.now_s)
