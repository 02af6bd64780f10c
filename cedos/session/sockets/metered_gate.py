"""Keeps a connection off metered networks as long as it may wait (`hold` decides)."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from cedos.model import NetworkKind
from cedos.session.io.networks import kind_of
from cedos.session.protocol.metered_policy import MeteredPolicy, Situation

if TYPE_CHECKING:
    from cedos.session.sockets.connection import Connection

_LOOK_S: Final = 0.5


class Holding:
    """Asks a `MeteredPolicy` twice a second while it has something to decide.

    Args:
        connection: whose networks these are; it has to be the dialling end.

    Attributes:
        buffered: how many bytes the application has in store beyond the session's own buffer.
    """

    def __init__(self, connection: "Connection") -> None:
        self.hold = MeteredPolicy()
        self._connection = connection
        self.buffered: Callable[[], int] = lambda: 0
        self._allowed = True
        self._rates: dict[bool, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def permitted(self, interface: str) -> bool:
        """Whether the interface may be used now."""
        return self._allowed or kind_of(interface) is not NetworkKind.CELLULAR

    def look(self) -> None:
        """Decides; tells the dialler if it comes out otherwise than before."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        connection = self._connection
        dialler = connection.flow.dialler
        if connection.ended or dialler is None:
            return
        loop = asyncio.get_running_loop()
        up: set[bool] = set()
        for path in connection.flow.paths.values():
            up.add(path.facts.metered)
            rate_bps = path.rate_towards_us_bps()
            if rate_bps is not None:
                self._rates[path.facts.metered] = rate_bps
        situation = Situation(
            received_bytes=connection.received_bytes,
            buffered_bytes=connection.readable_bytes + self.buffered(),
            unmetered_bps=self._rates.get(False),
            unmetered_up=False in up,
            metered_bps=self._rates.get(True),
        )
        allowed = self.hold.metered_allowed(situation, loop.time())
        if allowed is not self._allowed:
            self._allowed = allowed
            dialler.look()
        if self.hold.active:
            self._timer = loop.call_later(_LOOK_S, self.look)
