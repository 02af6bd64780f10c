"""Keep the connections that proxies on this host carry through a gateway, by the proxies' reports."""

import asyncio
import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import msgspec

from cedos.api.messages import CarriedReport, server_matches
from cedos.errors import ConfigError
from cedos.model import MOST_AGE_S, CarriedConnection, Decision, Network, is_address
from cedos.storage.history import History

_VALID_S: Final = 5.0
_SILENT_S: Final = 60.0
_MOST_PROGRAMS: Final = 128
# The most programs of one user, which leaves room for others.
_MOST_OF_A_USER: Final = 96

# The most connections of all programs together.
_MOST_CONNECTIONS: Final = 8192

_MOST_PROBLEMS: Final = 8
_REMEMBERED: Final = 8192
# The most rows of silent programs: the history has room for 1,000 between two writes.
_BOOKED_AT_ONCE: Final = 500


@dataclass(slots=True)
class _Told:
    """A connection as it was last reported, with its bytes by interface.

    Attributes:
        moved_at_s: when more bytes were last reported.
        carriers: the interfaces that carried those bytes, most first.
        first_decision: the first number that was reported.
        written: what the history has of it.
        over_unix_s: when it ended, or its program fell silent, by the daemon's clock; 0: it lives.
    """

    connection: CarriedConnection
    began_at_s: float
    moved_at_s: float
    written: CarriedConnection | None = None
    over_unix_s: float = 0.0
    carriers: tuple[str, ...] = ()
    first_decision: int | None = None

    @property
    def bytes(self) -> int:
        return self.connection.bytes_down + self.connection.bytes_up

    @property
    def unwritten(self) -> CarriedConnection:
        """Return the connection with the bytes that the history does not have yet."""
        return (
            self.connection if self.written is None else self.connection.growth_since(self.written)
        )

    def record(
        self, addresses: tuple[str, ...], ended_unix_s: float, names: Mapping[str, str]
    ) -> CarriedConnection:
        """Return its next record for the history; `names`: of the networks, by interface."""
        return msgspec.structs.replace(
            self.unwritten.with_names(names),
            number=0,
            age_s=0.0,
            strategy=None,
            addresses=addresses,
            ended_unix_s=ended_unix_s,
        )


@dataclass(slots=True)
class _Program:
    gateway: str
    addresses: tuple[str, ...] = ()
    heard_at_s: float = 0.0
    problem: str = ""
    connections: dict[int, _Told] = field(default_factory=dict)

    def on_report(self, report: CarriedReport, now_s: float) -> None:
        if report.gateway != self.gateway:  # one text for all that it tells of
            self.gateway = report.gateway
        self.addresses = tuple(filter(is_address, report.addresses))
        self.heard_at_s, self.problem = now_s, report.problem


class ToldConnections:
    """The newest word on each connection, until it has ended or its program is silent for a minute.

    Then it goes to the history. One that is told of again after that is written only by what is more.
    What lives when the daemon ends is not written: the next one hears all of it.

    Args:
        networks: those that there are.
        decided: the decision with this number; None: unknown.
        history: None: nothing is kept.
    """

    def __init__(
        self,
        networks: Callable[[], Sequence[Network]],
        decided: Callable[[int], Decision | None],
        history: History | None,
    ) -> None:
        self._networks, self._decided, self._history = networks, decided, history
        self._programs: dict[tuple[int, str], _Program] = {}
        self._over: dict[tuple[int, str, int], _Told] = {}
        # An interface that went away keeps its network's name: its bytes must not count under two.
        self._names: dict[str, str] = {}

    def on_report(self, report: CarriedReport, uid: int, now_s: float, now_unix_s: float) -> None:
        """Take a proxy's report. ConfigError: too many processes report."""
        key = uid, report.program
        program = self._programs.get(key)
        if program is None:
            of_the_user = sum(each == uid for each, _ in self._programs)
            if len(self._programs) >= _MOST_PROGRAMS or of_the_user >= _MOST_OF_A_USER:
                raise ConfigError(
                    f"carried: more than {_MOST_PROGRAMS} programs, or {_MOST_OF_A_USER} of one"
                    " user, tell of their connections"
                )
            program = self._programs[key] = _Program(report.gateway)
        program.on_report(report, now_s)
        self._names.update((each.egress, each.name) for each in self._networks())
        for news in report.connections:
            self._on_told(key, program, news, now_s)
            if news.ended_unix_s is not None:
                self._book(key, program, news.number, now_unix_s)
        many = sum(len(each.connections) for each in self._programs.values()) - _MOST_CONNECTIONS
        known = program.connections
        for number in heapq.nsmallest(many, known, key=lambda each: known[each].moved_at_s):
            self._book(key, program, number, now_unix_s)

    def check(self, now_s: float, now_unix_s: float) -> None:
        """Write what silent programs had reported; called about once a second."""
        room = _BOOKED_AT_ONCE
        for key, program in list(self._programs.items()):
            silent_s = now_s - program.heard_at_s
            if silent_s < _SILENT_S:
                continue
            for number in list(islice(program.connections, room)):
                self._book(key, program, number, now_unix_s - silent_s)
                room -= 1
            if not program.connections:
                del self._programs[key]

    def problems(self, now_s: float) -> list[str]:
        """Return which gateways let their clients in no more."""
        told = {
            f"gateway {each.gateway}: {each.problem}. `cedos join` with a new line of its owner mends it"
            for each in self._programs.values()
            if each.problem and now_s - each.heard_at_s <= _VALID_S
        }
        return sorted(told)[:_MOST_PROBLEMS]

    def largest(self, most: int, now_s: float) -> tuple[list[CarriedConnection], int]:
        """Return the living connections that carried most, oldest first, and the number of others."""
        living = [
            each
            for program in self._programs.values()
            if now_s - program.heard_at_s <= _VALID_S
            for each in program.connections.values()
        ]
        shown = heapq.nlargest(most, living, key=lambda each: each.bytes)
        shown.sort(key=lambda each: each.began_at_s)
        messages = [
            msgspec.structs.replace(
                each.connection.with_names(self._names),
                age_s=min(max(0.0, now_s - each.began_at_s), MOST_AGE_S),
            )
            for each in shown
        ]
        return messages, len(living) - len(shown)

    def unwritten(self, now_unix_s: float) -> list[CarriedConnection]:
        """Return what the history does not have yet, as if all ended now."""
        records = (
            each.record(program.addresses, now_unix_s, self._names)
            for program in self._programs.values()
            for each in program.connections.values()
        )
        return [record for record in records if record.bytes_by_network]

    async def find(self, wanted: str, now_unix_s: float) -> CarriedConnection | None:
        """Return a living connection with this server (`server_matches`), else the last one.

        Of several at once the one with the latest decision.
        """
        found = _find_latest(wanted, self._living())
        if found is not None:
            return found.record((), now_unix_s, self._names)
        found = _find_latest(wanted, self._over.values())
        if found is not None:
            return found.record((), found.over_unix_s, self._names)
        if self._history is None:
            return None

        def is_meant(server: str, port: int) -> bool:
            return server_matches(wanted, server, port)

        return next(
            iter(await asyncio.to_thread(self._history.carried_connections, 1, server=is_meant)),
            None,
        )

    def lives(self, wanted: str) -> tuple[list[str], int | None] | None:
        """Return where the living connection is that `find` returns, and its first decision.

        The networks are those that carried its last bytes, most first. None: there is no such connection.
        """
        found = _find_latest(wanted, self._living())
        if found is None:
            return None
        return [self._names.get(each, each) for each in found.carriers], found.first_decision

    def _living(self) -> list[_Told]:
        return [
            each for program in self._programs.values() for each in program.connections.values()
        ]

    def _on_told(
        self, key: tuple[int, str], program: _Program, news: CarriedConnection, now_s: float
    ) -> None:
        told = program.connections.get(news.number)
        if told is None:
            over = self._over.get((*key, news.number))
            if (
                over is not None
                and over.connection.ended_unix_s is not None
                and news.ended_unix_s is None
            ):
                return  # a report that was sent before the end came after it
            told = self._over.pop((*key, news.number), None) or _Told(
                CarriedConnection(server=news.server, port=news.port, gateway=program.gateway),
                now_s - news.age_s,
                now_s,
            )
            told.over_unix_s = 0.0
            program.connections[news.number] = told
        before = told.connection
        decision, strategy = before.decision, before.strategy
        if news.decision is not None and news.decision != decision:
            decided = self._decided(news.decision)
            decision, strategy = news.decision, decided.choice if decided is not None else None
        told.connection = msgspec.structs.replace(
            before.at_least(news),
            gateway=before.gateway,
            addresses=(),
            decision=decision,
            strategy=strategy,
        )
        told.first_decision = told.first_decision or decision
        if told.connection.totals != before.totals:
            told.moved_at_s = now_s
            more = told.connection.growth_since(before).bytes_by_network
            told.carriers = tuple(sorted(more, key=lambda name: -more[name])) or told.carriers

    def _book(
        self, key: tuple[int, str], program: _Program, number: int, ended_unix_s: float
    ) -> None:
        told = program.connections.pop(number)
        if self._history is not None and any(told.unwritten.totals):
            self._history.add_carried(told.record(program.addresses, ended_unix_s, self._names))
        told.written, told.over_unix_s = told.connection, ended_unix_s
        self._over[*key, number] = told
        if len(self._over) > _REMEMBERED:
            del self._over[next(iter(self._over))]


def _find_latest(wanted: str, connections: Iterable[_Told]) -> _Told | None:
    return max(
        (
            each
            for each in connections
            if server_matches(wanted, each.connection.server, each.connection.port)
        ),
        key=lambda each: (each.over_unix_s, each.connection.decision or 0),
        default=None,
    )
