"""Other machines that have a server's key and its sessions: dialled where the server is not reached.

A network that carries nothing says nothing of any server, and a session that moves to another machine
loses what the one before had in memory. So a spare one has to answer first, and the server gets a last
chance then: it loses the session only to a machine that is reached while it is not.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from cedos.errors import CedosError
from cedos.session.io.connect_attempts import (
    ConnectAttempts,
    Connected,
    Endpoint,
    Usable,
    end_all,
    follow,
)
from cedos.session.io.driver import Driver
from cedos.session.io.server_place import ServerPlace

_PATIENCE_S: Final = 1.0
"""So long the server alone is tried."""

_SILENT_PATIENCE_S: Final = 0.2
"""The same where a path to it has been silent for a while by then."""

_LEAST_CHANCE_S: Final = 0.5
_REFUSED_CHANCE_S: Final = 0.1
_IN_TOUCH_S: Final = 5.0
"""Where its host takes connections, the server may be beginning anew: so long it has to answer them."""

_LOOK_S: Final = 0.1
_RESOLVE_S: Final = 5.0


class SparePlaces:
    """Tries `places` from when the session has no path that speaks (`absent`) until it has (`present`).

    Args:
        usable: over which interfaces endpoints may be dialled.
        last_chance: called when a spare place answers: the server itself is to be tried now.
        in_touch: whether its host has taken a connection, which it has not answered yet.
        move: called with a place and a connection to it, which the session goes on over.
    """

    def __init__(
        self,
        driver: Driver,
        places: Sequence[ServerPlace],
        *,
        usable: Callable[[Sequence[Endpoint]], Usable],
        last_chance: Callable[[], None],
        in_touch: Callable[[], bool],
        move: Callable[[ServerPlace, Connected], None],
    ) -> None:
        self._driver = driver
        self._places = list(places)
        self._usable, self._last_chance, self._move = usable, last_chance, move
        self._in_touch, self._absent_at_s = in_touch, 0.0
        self._endpoints: dict[Endpoint, ServerPlace] = {}
        self._attempts: dict[str, ConnectAttempts] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._lookups: set[asyncio.Task[None]] = set()
        self._looked_up: list[ServerPlace] = []
        self._answered: Connected | None = None
        self._absent = self._trying = self._refused = False
        self.not_before_s = 0.0

    def __bool__(self) -> bool:
        return bool(self._places)

    def absent(self, *, silent: bool = False) -> None:
        """The session has no path that speaks; `silent`: for a while, but they stand."""
        if not self._absent and self._places:
            self._absent, self._absent_at_s = True, self._driver.now()
            self._arm(_SILENT_PATIENCE_S if silent else _PATIENCE_S, self._begin)

    def refused(self) -> None:
        """Somebody answered that nobody listens at the server's address."""
        if self._absent:
            self._refused = True
            if not self._trying:
                self._arm(0.0, self._begin)

    def present(self) -> None:
        """The session has a path, or is over."""
        self._absent = self._trying = self._refused = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        end_all(self._attempts)
        for task in self._lookups:
            task.cancel()
        if self._answered is not None:
            self._answered.connection.close()
            self._answered = None

    def check(self) -> None:
        """Networks may have changed."""
        if not self._trying:
            return
        usable = self._usable(list(self._endpoints))
        if self._answered is not None and self._answered.egress.interface not in usable:
            self._answered.connection.close()
            self._answered = None
        follow(self._attempts, usable, lambda egress: ConnectAttempts(self._driver, self, egress))
        for name in usable:
            if (attempts := self._attempts.get(name)) is not None and self.wanted(name):
                attempts.begin()

    def _arm(self, seconds: float, then: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._driver.loop.call_later(seconds, then)

    def _begin(self) -> None:
        self._timer = None
        self._trying = True
        self._learn(self._places)
        self.check()

    def endpoints(self) -> list[Endpoint]:
        """Those that are known; what has a name is looked up, for the next time."""
        known = list(self._endpoints.values())
        self._learn([each for each in self._places if each not in known])
        return list(self._endpoints)

    def _learn(self, places: Sequence[ServerPlace]) -> None:
        for place in places:
            self._endpoints.update(dict.fromkeys(place.endpoints, place))
            if not place.endpoints and place.resolve is not None and place not in self._looked_up:
                task = self._driver.loop.create_task(self._look_up(place, place.resolve))
                self._lookups.add(task)
                self._looked_up.append(place)
                task.add_done_callback(partial(self._known, place))

    def _known(self, place: ServerPlace, task: "asyncio.Task[None]") -> None:
        # (Here and not in the task, which may be cancelled before it has begun.)
        self._lookups.discard(task)
        self._looked_up.remove(place)

    async def _look_up(
        self, place: ServerPlace, resolve: Callable[[], Awaitable[Sequence[Endpoint]]]
    ) -> None:
        with suppress(TimeoutError, CedosError, OSError):
            async with asyncio.timeout(_RESOLVE_S):
                found = await resolve()
            self._endpoints.update(dict.fromkeys(found, place))
            self.check()

    def _over(self) -> None:
        """The server had its chance."""
        if self._in_touch() and self._driver.now() - self._absent_at_s < _IN_TOUCH_S:
            self._arm(_LOOK_S, self._over)
            return
        made, self._answered, self._timer = self._answered, None, None
        if made is not None:
            place = self._endpoints[made.endpoint]
            self.present()
            self._move(place, made)

    # What attempts ask and tell

    def wanted(self, _interface: str) -> bool:
        return self._trying and self._answered is None

    def others(self, _interface: str) -> Sequence[Endpoint]:
        return ()

    def connected(self, made: Connected) -> None:
        for attempts in self._attempts.values():
            attempts.end()
        if self._answered is not None:
            made.connection.close()
            return
        self._answered = made
        least_s = _REFUSED_CHANCE_S if self._refused else _LEAST_CHANCE_S
        # (A connection and its handshake take the server two round trips.)
        took_s = self._driver.now() - made.began_s
        self._arm(max(least_s, 2 * took_s), self._over)
        self._last_chance()

    def attempt_failed(self, why: str, code: int) -> None:
        pass

    def unanswered(self) -> None:
        pass
