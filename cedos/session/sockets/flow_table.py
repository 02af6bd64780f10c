"""The accepting end's flows: those that live, and those that sleep in a file.

A flow that nothing waits for is written down after a second, so that a program that is killed knows it
again. One that has no path either is put to sleep: nothing of it stays in memory.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cedos.errors import SessionAsleepError, SessionError
from cedos.session.io.idle_sessions import Sleepers
from cedos.session.protocol.handshake.accepting import (
    FlowGrant,
    OpenRequest,
    Refusal,
    RefusalReason,
)
from cedos.session.protocol.handshake.credentials import Credentials
from cedos.session.protocol.handshake.limits import HostLedger
from cedos.session.protocol.handshake.outcome import Opened
from cedos.session.protocol.schedulers.interface import Scheduler
from cedos.session.protocol.session_limits import SessionLimits
from cedos.session.sockets.connection import Connection

if TYPE_CHECKING:
    from cedos.session.io.driver import Driver

LONGEST_S: Final = 30 * 86_400
_AGAIN_S: Final = 60
_NOTE_S: Final = 1.0
_ASLEEP_S: Final = 3.0


class Book:
    """Flows by their id (`FlowBook` of the handshakes).

    Args:
        driver: of this loop.
        allow: whether the holder of a public key may open flows; everybody without.
        ledger: counts what each host has.
        idle: the file of those that sleep; without one, all stay in memory.

    Raises:
        SessionError: the file cannot be used.
    """

    def __init__(
        self,
        driver: "Driver",
        allow: Callable[[bytes], bool] | None,
        ledger: HostLedger,
        idle: Path | None,
    ) -> None:
        self._driver = driver
        self._allow = allow
        self._ledger = ledger
        self._living: dict[bytes, Connection] = {}
        self._sleepers = None if idle is None else Sleepers(idle)
        self._active: set[bytes] = set()
        self._absent: dict[bytes, bytes] = {}  # flows without a path, and their hosts
        self._timer: asyncio.TimerHandle | None = None
        self._ended = False
        self.closed = False
        if self._sleepers is not None:
            self._plan()

    def find(self, flow_id: bytes) -> Credentials | None:
        """A flow's credentials; None where it is not known."""
        connection = self._living.get(flow_id)
        if connection is not None:
            return connection.flow.credentials
        return None if self._sleepers is None else self._sleepers.find(flow_id)

    def get(self, flow_id: bytes) -> Connection | None:
        """A living flow."""
        return self._living.get(flow_id)

    def admit(self, request: OpenRequest) -> FlowGrant | Refusal:
        """Whether there may be a new flow."""
        if self.find(request.flow_id) is not None:
            return Refusal(RefusalReason.DUPLICATE)
        if self.closed or (self._allow is not None and not self._allow(request.peer_key)):
            return Refusal(RefusalReason.NOT_ALLOWED)
        kept = 0 if self._sleepers is None else self._sleepers.of_host(request.peer_key)
        if not self._ledger.may_open(request.host_id, kept):
            return Refusal(RefusalReason.LIMIT, _AGAIN_S)
        return FlowGrant(min(request.deadline_s, LONGEST_S))

    def add(self, opened: Opened, connection: Connection) -> None:
        """A flow lives, until its `flow.over`."""
        flow_id, host, flow = opened.credentials.flow_id, opened.host_id, connection.flow
        self._living[flow_id] = connection
        self._ledger.open_flow(host)
        if self._sleepers is not None:
            if not connection.resumed:
                self._sleepers.note(opened.credentials, opened.deadline_s, time.time())
            flow.active = lambda: self._active.add(flow_id)

        def presence() -> None:
            if flow.paths:
                self._absent.pop(flow_id, None)
            else:
                self._absent[flow_id] = host
                self._plan()

        def over() -> None:
            del self._living[flow_id]
            self._absent.pop(flow_id, None)
            self._ledger.close_flow(host)
            self._active.discard(flow_id)
            if self._sleepers is not None and not isinstance(
                connection.failure, SessionAsleepError
            ):
                self._sleepers.forget(flow_id)

        flow.presence, flow.over = presence, over

    def wake(
        self, opened: Opened, scheduler: Callable[[], Scheduler], limits: SessionLimits
    ) -> Connection | None:
        """A flow that slept lives again; None where it has expired meanwhile."""
        if self._sleepers is None:
            return None
        driver = self._driver
        found = self._sleepers.wake(
            opened.credentials.flow_id, scheduler(), driver.now(), time.time(),
            limits=limits, memory=driver.memory,
        )  # fmt: skip
        if found is None:
            return None
        connection = Connection(driver, found[1], resumed=True)
        connection.flow.credentials = opened.credentials
        self.add(opened, connection)
        return connection

    def _plan(self) -> None:
        if self._timer is None and not self._ended:
            self._timer = self._driver.loop.call_later(_NOTE_S, self._look)

    def _look(self) -> None:
        """Holds absent hosts to what they may cost; writes down who is idle."""
        self._timer = None
        self._bound()
        if self._sleepers is not None:
            self._write_down(self._sleepers)
        if self._sleepers is not None or self._absent:
            self._plan()

    def _bound(self) -> None:
        """Ends flows of hosts that are away and cost more memory than they may, the largest first.

        Somebody may ask for very much on many flows and go (DTP, section 7, "State Explosion Attacks").
        """
        most_bytes = self._ledger.limits.idle_bytes_per_host
        held: dict[bytes, int] = {}
        for flow_id, host in self._absent.items():
            held[host] = held.get(host, 0) + self._living[flow_id].held_bytes
        for host in [host for host, held_bytes in held.items() if held_bytes > most_bytes]:
            flows = [self._living[each] for each, of in self._absent.items() if of == host]
            for connection in sorted(flows, key=lambda each: -each.held_bytes):
                if held[host] <= most_bytes:
                    break
                held[host] -= connection.held_bytes
                connection.fail(
                    SessionError(
                        f"its host is away and has more than {most_bytes} bytes kept here for it"
                    )
                )

    def _write_down(self, sleepers: Sleepers) -> None:
        """Writes down who has become idle, and puts to sleep who has no path."""
        now, unix_s = self._driver.now(), time.time()
        for flow_id in list(self._active):
            connection = self._living[flow_id]
            flow = connection.flow
            if now - flow.active_s < _NOTE_S or flow.credentials is None:
                continue
            idle = connection.keep(sleepers, now, unix_s)
            if flow.paths:
                self._active.discard(flow_id)
            elif idle and now - flow.active_s > _ASLEEP_S:
                connection.fail(SessionAsleepError("the session sleeps until a network comes back"))
        sleepers.expire(unix_s, self._living.__contains__)

    def close(self) -> None:
        """Writes down who is idle; what is in the file stays."""
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._sleepers is not None:
            for connection in self._living.values():
                connection.keep(self._sleepers, self._driver.now(), time.time())
            self._sleepers.sync()
            self._sleepers.close()
            self._sleepers = None
