"""The connections that one proxy carries through the gateway, and what is to be told of them."""

from collections.abc import Callable, Iterable, Mapping
from itertools import chain, count, islice
from typing import Final, Protocol

from cedos.api.carried import MOST_TOLD, CarriedNews
from cedos.model import Label
from cedos.proxy.local.carried.carried_connection import CarriedConnection, CarriedStream
from cedos.session.sockets.path_report import PathReport

_MOST: Final = 8_192
"""Twice what a proxy carries at once: those that have ended wait to be told of."""

_MOST_UNCHANGED: Final = 16

_Counts = tuple[Mapping[str, int], Mapping[str, int]]


class CarryingSession(Protocol):
    """What is asked of the session that carries: its paths, and its bytes so far by interface."""

    def paths(self) -> list[PathReport]: ...

    def received_by_network(self) -> dict[str, int]: ...

    def sent_by_network(self) -> dict[str, int]: ...


class CarriedConnections:
    """`began` with each; then now and then `look`, and `news` of them until they are `told`.

    `name_of`: the name of an address to which a program connects that looked it up before.
    """

    def __init__(
        self, clock: Callable[[], float], name_of: Callable[[str], str | None] = lambda _: None
    ) -> None:
        self._clock, self._name_of = clock, name_of
        self._numbers = count()
        self._connections: dict[int, CarriedConnection] = {}  # told of longest ago first
        self._sessions: dict[int, CarryingSession] = {}
        self._counted: dict[CarryingSession, _Counts] = {}

    def __len__(self) -> int:
        return len(self._connections)

    def began(
        self,
        session: CarryingSession,
        stream: CarriedStream,
        decided: Callable[[Label], int | None],
    ) -> None:
        """One more; what is beyond 8,192 is not heard of."""
        if session not in self._counted:  # what it carried for others before is not this one's
            self._counted[session] = session.received_by_network(), session.sent_by_network()
        if len(self) < _MOST:
            number = next(self._numbers)
            self._sessions[number] = session
            self._connections[number] = CarriedConnection(
                number, stream, self._clock(), decided, self._name_of(stream.server)
            )

    def look(self) -> None:
        """To be called each second: what went since the last time is spread over the networks."""
        before, self._counted = self._counted, {}
        carried: dict[CarryingSession, _Counts] = {}
        for session in set(self._sessions.values()):
            counts = session.received_by_network(), session.sent_by_network()
            self._counted[session] = counts
            down, up = map(_more, counts, before.get(session, ({}, {})))
            carried[session] = down, up
        for number, connection in self._connections.items():
            connection.look(*carried[self._sessions[number]])

    @property
    def addresses(self) -> set[str]:
        """To which the sessions' own connections lead now."""
        return {path.peer for session in self._counted for path in session.paths()}

    @property
    def changed(self) -> bool:
        """Whether there is something new to be told."""
        return any(each.changed for each in self._connections.values())

    def news(self) -> list[CarriedNews]:
        """Of those that carried something, began or ended; of others some, for a daemon that is new."""
        now_s = self._clock()
        connections = self._connections.values()
        first = [each for each in connections if each.changed]
        others = islice((each for each in connections if not each.changed), _MOST_UNCHANGED)
        return [each.news(now_s) for each in islice(chain(first, others), MOST_TOLD)]

    def told(self, news: Iterable[CarriedNews]) -> None:
        """Somebody has heard it: what has ended is forgotten."""
        for one in news:
            connection = self._connections.pop(one.number)
            if one.ended:
                del self._sessions[one.number]
            else:
                connection.told(one)
                self._connections[one.number] = connection

    def forget_ended(self) -> None:
        """Nobody wants to hear of them."""
        self.told([each.news(0.0) for each in self._connections.values() if each.ended])


def _more(now: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    return {network: max(0, size - before.get(network, 0)) for network, size in now.items()}
