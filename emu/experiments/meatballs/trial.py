"""A trial of a client in virtual time: tasks, the ways they are raced over, and what each way used.

A task is raced over one or several ways: the first answer wins, the others are cancelled (dissertation,
4.3.4 and 4.4.3). All decisions and all learning are the policy's. Networks are replayed and simulated
(`emu.experiments.replayed_network`).
"""

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from cedos.errors import ConfigError
from cedos.selector.energy import Radio, RadioWatch
from cedos.storage.model_files import radios
from emu.experiments.replayed_network import HEADER_BYTES, Exchange, ReplayedNetwork
from emu.statistics import beside_simple, trials_figure

# The seconds that a trial continues after its last request, for pending answers.
AFTER_S = 60.0


class Task(Protocol):
    """A task that a person waits for, begun at `at_s` of the trial."""

    @property
    def number(self) -> int: ...

    @property
    def at_s(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Chosen:
    """A decision on a task: the ways to begin, and when to reevaluate."""

    # Names; one that is under way stays, whether named or not. None at all: wait.
    ways: frozenset[str]
    # Seconds from now after which the choice is to be made again if nothing has happened; None:
    # never. A function is asked only when everything has been begun: what is begun must not wait for
    # it.
    reevaluate_after_s: float | Callable[[], float | None] | None = None


T = TypeVar("T", bound=Task)
T_contra = TypeVar("T_contra", bound=Task, contravariant=True)


@dataclass(slots=True)
class Race(Generic[T]):
    """A task from its beginning to its answer, or to the end of the trial."""

    task: T
    began_s: float  # when the person began to wait
    running: dict[str, float] = field(default_factory=dict)  # what is under way, and since when
    done_s: float | None = None  # when the first answer was there; None: not yet
    ended_s: float = math.inf  # when the trial ended
    winner: str | None = None
    # Every way begun and when, in order.
    starts: list[tuple[str, float]] = field(default_factory=list)
    decided_s: float = 0.0
    again: float | Callable[[], float | None] | None = None

    @property
    def wake_at_s(self) -> float:
        """Return when to decide again, unless something happens; infinite: not at all."""
        if callable(self.again):
            self.again = self.again()
        return math.inf if self.again is None else self.decided_s + self.again

    @property
    def wait_s(self) -> float:
        return (self.ended_s if self.done_s is None else self.done_s) - self.began_s

    @property
    def redundant(self) -> bool:
        """Report whether more than one way was used, at once or later."""
        return len({way for way, _ in self.starts}) > 1

    @property
    def hedged(self) -> bool:
        """Report whether two ways were begun at the same time."""
        times = [at_s for _, at_s in self.starts]
        return len(set(times)) < len(times)


class Policy(Protocol[T_contra]):
    """A policy that says how tasks are carried out, and learns from the results."""

    def choose(
        self, task: T_contra, now_s: float, usable: frozenset[str], silent: Mapping[str, float]
    ) -> Chosen:
        """Choose among the usable ways; `silent`: running ways with their seconds without an answer."""
        ...

    def measured(self, task: T_contra, way: str, time_s: float, now_s: float) -> None:
        """Learn that an answer took so many seconds in this way, still wanted or not."""
        ...

    def on_attach(self, way: str, now_s: float) -> None: ...

    def connected(self, way: str, rtt_s: float, now_s: float) -> None:
        """Learn that a connection was set up in so many seconds: the first fact of a network."""
        ...

    def detached(self, way: str, now_s: float) -> None: ...


# Begin a task in a way, or cancel it there, now. An answer that is under way may still come.
Carry = Callable[[T, str, float], None]


class Client(Generic[T]):
    """A client with all tasks of one trial under one policy.

    `start`, `cancel`: carry out what was decided; answers come to `on_answer`.
    """

    def __init__(self, policy: Policy[T], start: Carry[T], cancel: Carry[T]) -> None:
        self._policy = policy
        self._start, self._cancel = start, cancel
        self._usable: set[str] = set()
        self._races: dict[int, Race[T]] = {}
        self._begun_s: dict[tuple[int, str], float] = {}

    @property
    def usable(self) -> frozenset[str]:
        """The ways that there are now, as far as the host knows."""
        return frozenset(self._usable)

    @property
    def next_wake_s(self) -> float:
        """Return when to call `wake`; infinite: not at all."""
        return min((each.wake_at_s for each in self._waiting()), default=math.inf)

    @property
    def waiting(self) -> bool:
        return bool(self._waiting())

    def _waiting(self) -> list[Race[T]]:
        return [each for each in self._races.values() if each.done_s is None]

    def begin(self, task: T, now_s: float) -> None:
        race = self._races[task.number] = Race(task, now_s)
        self._decide(race, now_s)

    def on_answer(self, number: int, way: str, now_s: float) -> None:
        race = self._races[number]
        began_s = self._begun_s.pop((number, way), None)
        if began_s is None:
            return
        race.running.pop(way, None)
        # A late one, after another's, only teaches.
        if race.done_s is None:
            race.done_s, race.winner = now_s, way
            # Cancelled first: the others' answers may be prevented, and learning takes its time.
            for other in race.running:
                self._cancel(race.task, other, now_s)
            race.running.clear()
        self._policy.measured(race.task, way, now_s - began_s, now_s)

    def wake(self, now_s: float) -> None:
        """Decide again where a time has passed without an answer: the silence is new information."""
        for race in self._waiting():
            if now_s >= race.wake_at_s:
                self._decide(race, now_s)

    def on_attach(self, way: str, now_s: float) -> None:
        self._usable.add(way)
        self._policy.on_attach(way, now_s)
        for race in self._waiting():
            self._decide(race, now_s)

    def connected(self, way: str, rtt_s: float, now_s: float) -> None:
        self._policy.connected(way, rtt_s, now_s)

    def detached(self, way: str, now_s: float) -> None:
        """Note that a way has gone, and with it the tasks under way there."""
        if way not in self._usable:
            return
        self._usable.discard(way)
        self._policy.detached(way, now_s)
        for number, race in self._races.items():
            self._begun_s.pop((number, way), None)
            if race.running.pop(way, None) is not None:
                self._decide(race, now_s)

    def records(self, end_s: float) -> list[Race[T]]:
        """Return all tasks by the order of their beginnings; the trial ends at `end_s`."""
        for each in self._races.values():
            each.ended_s = end_s
        return list(self._races.values())

    def _decide(self, race: Race[T], now_s: float) -> None:
        silent = {way: now_s - since_s for way, since_s in race.running.items()}
        usable = self.usable
        chosen = self._policy.choose(race.task, now_s, usable, silent)
        race.decided_s, race.again = now_s, chosen.reevaluate_after_s
        begun = sorted((chosen.ways & usable) - race.running.keys())
        for way in begun:
            race.running[way] = self._begun_s[race.task.number, way] = now_s
            race.starts.append((way, now_s))
        for way in begun:
            self._start(race.task, way, now_s)


def radios_of(device: str, *technologies: str) -> list[Radio]:
    """Return a device's radios, in the order of the technologies.

    ConfigError: no such device, or it has no such radio; says which there are.
    """
    known = radios()
    if device not in known:
        raise ConfigError(f"no device {device!r}; there are {', '.join(known)}")
    found = []
    for technology in technologies:
        if technology not in known[device]:
            has = ", ".join(known[device])
            raise ConfigError(f"{device} has no radio {technology!r}; it has {has}")
        found.append(known[device][technology])
    return found


class Usage:
    """Counts for each network what was carried, and lets the radios' states follow."""

    def __init__(self, of: Mapping[str, Radio]) -> None:
        self._watches = {name: RadioWatch(radio) for name, radio in of.items()}
        self._bytes = Counter[str]()

    def add_bytes(self, network: str, now_s: float, up_bytes: int, down_bytes: int) -> None:
        """Count bytes that pass the link now; instants must not go back."""
        if up_bytes or down_bytes:
            self._bytes[network] += up_bytes + down_bytes
            self._watches[network].add_bytes(now_s, up_bytes, down_bytes)

    def idle_s(self, network: str, now_s: float) -> float | None:
        """Return seconds since the network was last used; None: never."""
        return self._watches[network].idle_s(now_s)

    def bytes_of(self, network: str) -> int:
        return self._bytes[network]

    def energy_j(self, now_s: float) -> float:
        return sum(watch.energy_j(now_s) for watch in self._watches.values())


# Handle an event at an instant in seconds of the trial.
Event = Callable[[float], None]


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

    def follow(self, client: Client[Any], way: str) -> None:
        """Tell the client when its way over this network comes and goes, from the beginning on."""

        def change(now_s: float) -> None:
            there = self._network.up_at(self._start_s + now_s)
            if there and way not in client.usable:
                client.on_attach(way, now_s)
                self._connect(now_s, lambda at_s: client.connected(way, at_s - now_s, at_s))
            elif not there:
                client.detached(way, now_s)
            next_s = self._network.next_change_s(self._start_s + now_s) - self._start_s
            # A hair later: at the very instant, rounding decides whether it is before or after.
            self._agenda.at(next_s + 1e-6, change)

        self._agenda.at(0.0, change)

    def _connect(self, now_s: float, connected: Callable[[float], None]) -> None:
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


def play(
    agenda: Agenda, client: Client[T], tasks: Sequence[T], *, duration_s: float
) -> list[Race[T]]:
    """Play one trial of one policy; return what became of each task.

    `agenda`: that of the client's networks, which it follows already; an answer is an event in it.
    `duration_s`: when no more requests are made; answers are waited for `AFTER_S` longer.
    """
    for task in tasks:
        agenda.at(task.at_s, partial(client.begin, task))
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


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting: the cost of a joule and a metered byte in seconds of waiting (4.5.3, Table 4.3)."""

    name: str
    s_per_j: float
    s_per_byte: float


SETTINGS: Mapping[str, Setting] = {
    each.name: each
    for each in (
        Setting("no", 0.0, 0.0),
        Setting("low", 1 / 100, 1 / 100e3),
        Setting("mid", 1 / 10, 1 / 10e3),
        Setting("high", 1.0, 1 / 1e3),
    )
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """A trial under one policy; bytes are those on the wire."""

    records: Sequence[Race[Any]]
    energy_j: float
    metered_bytes: float = 0.0
    all_bytes: float = 0.0

    @property
    def wait_s(self) -> float:
        return sum(record.wait_s for record in self.records)

    def cost_s(self, setting: Setting) -> float:
        """Return the weighted cost of 4.3, in seconds."""
        return (
            self.wait_s + setting.s_per_j * self.energy_j + setting.s_per_byte * self.metered_bytes
        )


def compared(
    spent: Mapping[str, Mapping[str, Sequence[Outcome]]],
    simple: Collection[str],
    deciding: Collection[str],
    figures: Callable[[Sequence[Outcome]], Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the `policies`' figures under each setting, and how those that decide do `beside` others.

    `figures`: an experiment's own, beside those that all have.
    """
    policies: dict[str, Any] = {}
    against: dict[str, Any] = {}
    for name, by in spent.items():
        setting = SETTINGS[name]
        policies[name] = {
            policy: {**_figures(of, setting), **figures(of)} for policy, of in by.items()
        }
        costs = {policy: [each.cost_s(setting) for each in of] for policy, of in by.items()}
        against[name] = beside_simple(costs, simple, deciding)
    return {"policies": policies, "beside": against}


def _figures(of: Sequence[Outcome], setting: Setting) -> dict[str, Any]:
    records = [record for each in of for record in each.records]
    second_thoughts = [each.redundant and not each.hedged for each in records]
    return {
        **trials_figure("energy_j", [each.energy_j for each in of], 2),
        **trials_figure("cost_s", [each.cost_s(setting) for each in of], 4),
        # The shares begun in two ways at once, and in a second one later.
        "hedged_share": round(float(np.mean([each.hedged for each in records])), 4),
        "second_thought_share": round(float(np.mean(second_thoughts)), 4),
        "unanswered": sum(each.done_s is None for each in records),
    }
