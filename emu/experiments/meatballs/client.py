"""A client's tasks, the ways they are carried, and what each way used. Without I/O or a clock.

The simulation brings a `Carrier` and reports events. All decisions and all learning are here and in the
policy.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from cedos.errors import ConfigError
from cedos.selector.energy import Radio
from cedos.storage.model_files import radios
from emu.experiments.meatballs.race import Cancel, Chosen, Command, Race


class Task(Protocol):
    """A task that a person waits for."""

    @property
    def number(self) -> int: ...


T = TypeVar("T", bound=Task)
T_contra = TypeVar("T_contra", bound=Task, contravariant=True)


class Policy(Protocol[T_contra]):
    """A policy that says how tasks are carried out, and learns from the results."""

    def choose(
        self, task: T_contra, now_s: float, usable: frozenset[str], silent: Mapping[str, float]
    ) -> Chosen: ...

    def measured(self, task: T_contra, way: str, time_s: float, now_s: float) -> None:
        """Learn that an answer took so many seconds in this way, still wanted or not."""
        ...

    def on_attach(self, way: str, now_s: float) -> None: ...

    def connected(self, way: str, rtt_s: float, now_s: float) -> None:
        """Learn that a connection was set up in so many seconds: the first fact of a network."""
        ...

    def detached(self, way: str, now_s: float) -> None: ...


class Carrier(Protocol[T_contra]):
    """Carries out what was decided; answers come to `Client.answered`."""

    def start(self, task: T_contra, way: str, now_s: float) -> None: ...

    def cancel(self, task: T_contra, way: str, now_s: float) -> None:
        """Cancel what was begun; an answer that is under way may still come."""
        ...


@dataclass(frozen=True, slots=True)
class Record:
    """The record of one task.

    Attributes:
        began_s: when the person began to wait.
        wait_s: until the first answer, or until the trial ended.
        starts: the ways begun, with the seconds after `began_s`.
    """

    number: int
    began_s: float
    wait_s: float
    answered: bool
    winner: str | None
    starts: tuple[tuple[str, float], ...]
    decisions: int

    @property
    def redundant(self) -> bool:
        """Report whether more than one way was used, at once or later."""
        return len({way for way, _ in self.starts}) > 1

    @property
    def hedged(self) -> bool:
        """Report whether two ways were begun at the same time."""
        times = [after_s for _, after_s in self.starts]
        return len(set(times)) < len(times)


class Client(Generic[T]):
    """A client with all tasks of one trial under one policy."""

    def __init__(self, policy: Policy[T], carrier: Carrier[T]) -> None:
        self._policy = policy
        self._carrier = carrier
        self._usable: set[str] = set()
        self._tasks: dict[int, T] = {}
        self._races: dict[int, Race] = {}
        self._begun_s: dict[tuple[int, str], float] = {}

    @property
    def usable(self) -> frozenset[str]:
        """The ways that there are now, as far as the host knows."""
        return frozenset(self._usable)

    @property
    def next_wake_s(self) -> float:
        """Return when to call `wake`; infinite: not at all."""
        return min(
            (each.wake_at_s for each in self._races.values() if each.done_s is None),
            default=math.inf,
        )

    @property
    def waiting(self) -> bool:
        return any(each.done_s is None for each in self._races.values())

    def begin(self, task: T, now_s: float) -> None:
        def choose(at_s: float, usable: frozenset[str], silent: Mapping[str, float]) -> Chosen:
            return self._policy.choose(task, at_s, usable, silent)

        race = Race(now_s, choose)
        self._tasks[task.number], self._races[task.number] = task, race
        self._do(task, race.begin(self.usable), now_s)

    def on_answer(self, number: int, way: str, now_s: float) -> None:
        task, race = self._tasks[number], self._races[number]
        began_s = self._begun_s.pop((number, way), None)
        if began_s is None:
            return
        # Cancelled first: the others' answers may be prevented, and learning takes its time.
        self._do(task, race.on_answer(way, now_s), now_s)
        self._policy.measured(task, way, now_s - began_s, now_s)

    def wake(self, now_s: float) -> None:
        """Time has passed: decides again where that is due."""
        for number, race in list(self._races.items()):
            self._do(self._tasks[number], race.wake(now_s, self.usable), now_s)

    def on_attach(self, way: str, now_s: float) -> None:
        self._usable.add(way)
        self._policy.on_attach(way, now_s)
        for number, race in list(self._races.items()):
            self._do(self._tasks[number], race.on_attach(now_s, self.usable), now_s)

    def connected(self, way: str, rtt_s: float, now_s: float) -> None:
        self._policy.connected(way, rtt_s, now_s)

    def detached(self, way: str, now_s: float) -> None:
        """Note that a way has gone, and with it the tasks under way there."""
        if way not in self._usable:
            return
        self._usable.discard(way)
        self._policy.detached(way, now_s)
        for number, race in list(self._races.items()):
            self._begun_s.pop((number, way), None)
            self._do(self._tasks[number], race.on_loss(way, now_s, self.usable), now_s)

    def records(self, end_s: float) -> list[Record]:
        """Return the records of all tasks by the order of their beginnings; the trial ends at `end_s`."""
        return [
            Record(
                number,
                each.began_s,
                (end_s if each.done_s is None else each.done_s) - each.began_s,
                each.done_s is not None,
                each.winner,
                tuple((way, at_s - each.began_s) for way, at_s in each.starts),
                each.decisions,
            )
            for number, each in self._races.items()
        ]

    def _do(self, task: T, commands: list[Command], now_s: float) -> None:
        for command in commands:
            if isinstance(command, Cancel):
                self._carrier.cancel(task, command.way, now_s)
            else:
                self._begun_s[task.number, command.way] = now_s
                self._carrier.start(task, command.way, now_s)


class Watch(Protocol):
    """A radio's states as its traffic makes them (`cedos.selector.energy`)."""

    def add_bytes(self, now_s: float, bytes_up: float, bytes_down: float) -> None: ...

    def idle_s(self, now_s: float) -> float | None: ...

    def energy_j(self, now_s: float) -> float:
        """Joules spent from the beginning until now."""
        ...


@dataclass(slots=True)
class _Bytes:
    up: int = 0
    down: int = 0


def radios_of(device: str, *technologies: str) -> list[Radio]:
    """Return a device's radios, in the order of the technologies.

    Raises:
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
    """Counts for each network what was carried, and lets the radios' states follow.

    Args:
        watches: one per network that costs energy.
    """

    def __init__(self, watches: Mapping[str, Watch]) -> None:
        self._watches = watches
        self._bytes = {name: _Bytes() for name in watches}

    def add_bytes(self, network: str, now_s: float, up_bytes: int, down_bytes: int) -> None:
        """Count bytes that pass the link now; instants must not go back."""
        if up_bytes or down_bytes:
            counted = self._bytes[network]
            counted.up += up_bytes
            counted.down += down_bytes
            self._watches[network].add_bytes(now_s, up_bytes, down_bytes)

    def idle_s(self, network: str, now_s: float) -> float | None:
        """Return seconds since the network was last used; None: never."""
        return self._watches[network].idle_s(now_s)

    def bytes_of(self, network: str) -> int:
        return self._bytes[network].up + self._bytes[network].down

    def energy_j(self, now_s: float) -> float:
        return sum(watch.energy_j(now_s) for watch in self._watches.values())
