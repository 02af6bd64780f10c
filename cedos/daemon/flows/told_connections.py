"""Connections that proxies on this host carry through a gateway: what they tell, what is kept of it."""

import asyncio
import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from cedos.api.carried import CarriedNews, CarriedReport
from cedos.api.messages import CarriedMessage, server_matches
from cedos.daemon.flows.carried_bytes import CarriedBytes
from cedos.daemon.flows.told_connection import ToldConnection
from cedos.errors import ConfigError
from cedos.model import Network, Strategy, is_address
from cedos.storage.carried_record import CarriedRecord
from cedos.storage.history import History

_VALID_S: Final = 5.0
_SILENT_S: Final = 60.0
_MOST_PROGRAMS: Final = 128
_MOST_OF_A_USER: Final = 96
"""Programs, so that one user leaves room for others. (Each `cedos forward -W` is one.)"""

_MOST_CONNECTIONS: Final = 8192
"""Of all programs together."""

_REMEMBERED: Final = 8192
_BOOKED_AT_ONCE: Final = 500
"""Of silent programs: the history has room for 1,000 between two writes."""


@dataclass(slots=True)
class _Program:
    gateway: str
    addresses: tuple[str, ...] = ()
    heard_at_s: float = 0.0
    connections: dict[int, ToldConnection] = field(default_factory=dict)

    def heard(self, report: CarriedReport, now_s: float) -> None:
        if report.gateway != self.gateway:  # one text for all that it tells of
            self.gateway = report.gateway
        self.addresses = tuple(filter(is_address, report.addresses))
        self.heard_at_s = now_s


class ToldConnections:
    """The newest word on each connection, until it has ended or its program is silent for a minute.

    Then it goes to the history. One that is told of again after that is written only by what is more.
    What lives when the daemon ends is not written: the next one hears all of it.

    Args:
        networks: those that there are.
        choice: what the decision with this number chose; None: nobody knows.
        history: None: nothing is kept.
    """

    def __init__(
        self,
        networks: Callable[[], Sequence[Network]],
        choice: Callable[[int], Strategy | None],
        history: History | None,
    ) -> None:
        self._networks, self._choice, self._history = networks, choice, history
        self._programs: dict[tuple[int, str], _Program] = {}
        self._over: dict[tuple[int, str, int], ToldConnection] = {}
        # An interface that went away keeps its network's name: its bytes must not count under two.
        self._names: dict[str, str] = {}

    def told(self, report: CarriedReport, uid: int, now_s: float, now_unix_s: float) -> None:
        """Takes a proxy's word. ConfigError: too many tell of theirs."""
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
        program.heard(report, now_s)
        self._names.update((each.interface, each.name) for each in self._networks())
        for news in report.connections:
            self._told(key, program, news, now_s)
            if news.ended:
                self._book(key, program, news.number, now_unix_s)
        many = sum(len(each.connections) for each in self._programs.values()) - _MOST_CONNECTIONS
        known = program.connections
        for number in heapq.nsmallest(many, known, key=lambda each: known[each].moved_at_s):
            self._book(key, program, number, now_unix_s)

    def check(self, now_s: float, now_unix_s: float) -> None:
        """To be called about once a second: writes what silent programs had told of."""
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

    def listed(self, most: int, now_s: float) -> tuple[list[CarriedMessage], int]:
        """The living that carried most, oldest first, and how many others there are."""
        living = [
            each
            for program in self._programs.values()
            if now_s - program.heard_at_s <= _VALID_S
            for each in program.connections.values()
        ]
        shown = heapq.nlargest(most, living, key=lambda each: each.carried.down + each.carried.up)
        shown.sort(key=lambda each: each.began_at_s)
        return [each.message(now_s, self._names) for each in shown], len(living) - len(shown)

    def unwritten(self, now_unix_s: float) -> list[CarriedRecord]:
        """What the history does not have yet, as if all ended now."""
        records = (
            each.record(program.addresses, now_unix_s, self._names)
            for program in self._programs.values()
            for each in program.connections.values()
        )
        return [record for record in records if record.bytes_by_network]

    async def find(self, wanted: str, now_unix_s: float) -> CarriedRecord | None:
        """A connection with this server (`server_matches`): one that lives, else the last one that did.

        Of several at once the one with the latest decision.
        """
        living = [
            each for program in self._programs.values() for each in program.connections.values()
        ]
        found = _latest(wanted, living)
        if found is not None:
            return found.record((), now_unix_s, self._names)
        found = _latest(wanted, self._over.values())
        if found is not None:
            return found.record((), found.ended_unix_s, self._names)
        if self._history is None:
            return None

        def meant(server: str, port: int) -> bool:
            return server_matches(wanted, server, port)

        return next(iter(await asyncio.to_thread(self._history.carried, 1, server=meant)), None)

    def _told(
        self, key: tuple[int, str], program: _Program, news: CarriedNews, now_s: float
    ) -> None:
        connection = program.connections.get(news.number)
        if connection is None:
            over = self._over.get((*key, news.number))
            if over is not None and over.ended and not news.ended:
                return  # said before its end, which came first
            connection = self._over.pop((*key, news.number), None) or ToldConnection(
                program.gateway, news.server, news.port, now_s - news.age_s, now_s
            )
            program.connections[news.number] = connection
        connection.told(news, now_s)
        if news.decision is not None and news.decision != connection.decision:
            connection.decided(news.decision, self._choice(news.decision))

    def _book(
        self, key: tuple[int, str], program: _Program, number: int, ended_unix_s: float
    ) -> None:
        connection = program.connections.pop(number)
        if self._history is not None and connection.carried != (
            connection.booked or CarriedBytes()
        ):
            self._history.add_carried(
                connection.record(program.addresses, ended_unix_s, self._names)
            )
        connection.book(ended_unix_s)
        self._over[*key, number] = connection
        if len(self._over) > _REMEMBERED:
            del self._over[next(iter(self._over))]


def _latest(wanted: str, connections: Iterable[ToldConnection]) -> ToldConnection | None:
    return max(
        (each for each in connections if server_matches(wanted, each.server, each.port)),
        key=lambda each: (each.ended_unix_s, each.decision or 0),
        default=None,
    )
