"""Sessions with one server for files that can wait: no more than are carried at once, mostly one."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final, Protocol

from cedos.commands.sessions.shared.transfers import Endpoints
from cedos.files.server_link import ServerLink
from cedos.model import Direction
from cedos.session.sockets.connection import Connection

_LINGER_S: Final = 3.0
"""So long nobody's session keeps the paths that it has: for the next file, or for the goodbye."""


class SessionUser(Protocol):
    """A file that has a session for a while."""

    def may_use(self, interface: str) -> bool:
        """Whether it may use this network now."""
        ...

    async def mine(self) -> None:
        """Returns when there is a network that it may use."""
        ...


class PooledSession:
    """One session, made again where it has ended; it uses the networks of who has it.

    Nobody's uses those alone over which it is connected, and soon none.
    """

    def __init__(self, ends: Endpoints) -> None:
        self._dial = ends.dialling(made=self._made, may_use=self._may_use)
        self.link = ServerLink(self._connect)
        self._user: SessionUser | None = None
        self._connection: Connection | None = None
        self._had: frozenset[str] = frozenset()
        self._kept: frozenset[str] = frozenset()
        self._lingering: asyncio.TimerHandle | None = None
        self._earlier: dict[Direction, dict[str, int]] = _nothing()
        self._before: dict[Direction, dict[str, int]] = _nothing()

    def given(self, user: SessionUser | None) -> None:
        """From now on it is this one's."""
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None
        if user is None and self._connection is not None:
            self._had = frozenset(path.network for path in self._connection.paths())
            self._lingering = asyncio.get_running_loop().call_later(_LINGER_S, self._leave)
        self._kept = self._had if user is None else frozenset()
        self._user, self._earlier = user, _nothing()
        self._before = {way: self._counted(way) for way in Direction}
        self.networks_changed()

    @property
    def reached(self) -> bool:
        return self._connection is not None

    def _leave(self) -> None:
        """A metered network is not held for who may come much later."""
        self._lingering, self._kept = None, frozenset()
        self.networks_changed()

    async def close(self) -> None:
        """Says goodbye: over what is in use still, else over what costs nothing or was in use last."""
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None
        connection = self._connection
        if connection is not None and not connection.ended:
            if not connection.paths():
                free = {name for name, metered in connection.networks().items() if not metered}
                self._kept = frozenset(free) or self._had
                connection.networks_changed()
            if not connection.has_network:  # it would have no way
                connection.abort("goodbye")
        await self.link.close()

    def networks_changed(self) -> None:
        """Its user may use other networks than before."""
        if self._connection is not None:
            self._connection.networks_changed()

    def networks(self) -> Mapping[str, bool]:
        """Interfaces that lead to the server, whether each is metered; empty: it is not known now."""
        alive = self._connection is not None and not self._connection.ended
        return self._connection.networks() if alive and self._connection is not None else {}

    def carried(self, way: Direction) -> dict[str, int]:
        """Bytes by network since its user has it."""
        found, before = dict(self._earlier[way]), self._before[way]
        for name, count in self._counted(way).items():
            found[name] = found.get(name, 0) + max(count - before.get(name, 0), 0)
        return found

    def _counted(self, way: Direction) -> dict[str, int]:
        if self._connection is None:
            return {}
        if way is Direction.UP:
            return self._connection.sent_by_network()
        return self._connection.received_by_network()

    async def _connect(self) -> Connection:
        if self._user is not None:
            await self._user.mine()
        return await self._dial()

    def _made(self, connection: Connection) -> None:
        self._earlier = {way: self.carried(way) for way in Direction}
        self._connection, self._before = connection, _nothing()

    def _may_use(self, interface: str) -> bool:
        return interface in self._kept if self._user is None else self._user.may_use(interface)


def _nothing() -> dict[Direction, dict[str, int]]:
    return {way: {} for way in Direction}


class SessionPool:
    """`ends`: this host's and the server's."""

    def __init__(self, ends: Endpoints) -> None:
        self.ends = ends
        self._all: list[PooledSession] = []
        self._idle: list[PooledSession] = []
        self._leading: Mapping[str, bool] = {}

    @property
    def reached(self) -> bool:
        """Whether the server has ever answered."""
        return any(each.reached for each in self._all)

    @asynccontextmanager
    async def session(self, user: SessionUser) -> AsyncIterator[PooledSession]:
        """One that nobody else has."""
        if self._idle:
            session = self._idle.pop()
        else:
            session = PooledSession(self.ends)
            self._all.append(session)
        session.given(user)
        try:
            yield session
        finally:
            session.given(None)
            self._idle.append(session)

    def networks(self) -> Mapping[str, bool]:
        """Interfaces that lead to the server, as known last; each with whether it is metered."""
        for each in self._all:
            if found := each.networks():
                self._leading = found
                break
        return self._leading

    async def close(self) -> None:
        """Says goodbye to the server."""
        await asyncio.gather(*(each.close() for each in self._all))
