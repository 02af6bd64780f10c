"""The accepting end's flows: those that live, and those that sleep in a file.

A flow that nothing waits for is written down after a moment, so that a program that is killed knows it
again. One that has no path either is put to sleep: nothing of it stays in memory.
"""

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cedos.errors import SessionAsleepError, SessionError
from cedos.session.io.driver import Driver
from cedos.session.io.flow import FlowObserver
from cedos.session.io.idle_sessions import IdleSessions
from cedos.session.protocol.handshake.accepting import (
    FlowGrant,
    FlowRefusal,
    FlowRefusalReason,
    OpenRequest,
)
from cedos.session.protocol.handshake.credentials import CREDENTIALS_BYTES, PEER_KEY, Credentials
from cedos.session.protocol.handshake.limits import HostLedger
from cedos.session.protocol.handshake.outcome import ConnectionKind, Opened
from cedos.session.protocol.living import unpack_living
from cedos.session.protocol.schedulers.interface import Scheduler
from cedos.session.protocol.session import Session
from cedos.session.protocol.session_limits import SessionLimits
from cedos.session.sockets.connection import Connection
from cedos.session.sockets.handed_flow import HandedFlow
from cedos.session.sockets.shared_flows import FlowsHere, FoundFlow, SharedFlows

LONGEST_S: Final = 30 * 86_400
_AGAIN_S: Final = 60
_SOON_S: Final = 0.02  # between two requests a flow is quiet for so long, or it costs too much
_LOOKS: Final = 25  # so often: what was sent last may be acknowledged only a round trip later
_NOTE_S: Final = 1.0
_ASLEEP_S: Final = 3.0
# What a session was are objects that hold each other. Python looks for those only as others are made, and
# while all sleep none are: so it is asked to, but not again for each few, as it looks at all that live.
_COLLECTED: Final = 64
_COLLECTED_SHARE: Final = 4


class FlowTable:
    """Flows by their id; those that sleep are in the file `idle`, if any.

    `allow`: whether the holder of a public key may open flows; everybody without. `shared`: where other
    machines find those of the file, and this one theirs.

    Raises:
        SessionError: the file cannot be used.
    """

    def __init__(
        self,
        driver: Driver,
        allow: Callable[[bytes], bool] | None,
        ledger: HostLedger,
        idle: Path | None,
        shared: SharedFlows | None = None,
    ) -> None:
        self._driver = driver
        self._allow = allow
        self._ledger = ledger
        self._living: dict[bytes, Connection] = {}
        self._shared = None if idle is None else shared
        # Of other machines: who found them is not proved to be here.
        self._unproved: dict[bytes, bytes] = {}
        self._asked_for = b""
        written = self._share if self._shared is not None else (lambda _record: None)
        self._idle = None if idle is None else IdleSessions(idle, written)
        # The one that was quiet for the longest time first; how often it was not idle since then.
        self._active: dict[bytes, int] = {}
        self._not_idle: set[bytes] = (
            set()
        )  # quiet ones that could not be written down, or have no path
        self._soon: asyncio.TimerHandle | None = None
        self._absent: dict[bytes, bytes] = {}  # flows without a path, and their hosts
        self._timer: asyncio.TimerHandle | None = None
        self._slept = 0  # since what they were was collected
        self._ended = False
        self._only_known = False
        if self._idle is not None:
            if allow is not None:  # who was let in once may not be any more
                self._idle.keep_only(allow)
            self._plan()
        if self._shared is not None:
            here = FlowsHere(self._proved, self._records, self._knows, self._renew, self._taken)
            self._shared.begin(here)

    def find(self, flow_id: bytes) -> Credentials | None:
        connection = self._living.get(flow_id)
        if connection is not None:
            return connection.flow.credentials
        return None if self._idle is None else self._idle.find(flow_id)

    def asks_for(self, flow_id: bytes, joins: bool) -> bool:
        """Whether another machine may know more of a flow, and was not asked yet.

        Who `joins` has a path somewhere, so a flow that is here may live elsewhere by now.
        """
        if self._shared is None or flow_id == self._asked_for:
            return False
        if joins and self.find(flow_id) is not None:
            return self._shared.answers or not self._has_path(flow_id)
        return self._shared.answers and flow_id not in self._living

    def elsewhere(self, flow_id: bytes, found: FoundFlow) -> bool:
        """Whether another machine has seen more of a flow that lives here, or this one has not got it."""
        connection = self._living.get(flow_id)
        mine = None if connection is None else connection.flow.credentials
        return mine is None or found.seen > mine.seen

    def may_join(self, flow_id: bytes, found: FoundFlow) -> bool:
        """Whether a further path of a flow is answered here, after others were asked.

        None wakes what sleeps here, and none goes to a flow of which nobody says where it lives now.
        """
        if self._shared is None or self.find(flow_id) is None:
            return True
        if flow_id not in self._living or self.elsewhere(flow_id, found):
            return False
        return self._shared.answers or self._has_path(flow_id)

    def _has_path(self, flow_id: bytes) -> bool:
        return (living := self._living.get(flow_id)) is not None and bool(living.flow.paths)

    async def ask(self, flow_id: bytes) -> FoundFlow | None:
        """What other machines know of a flow; None: there was no time to ask."""
        return FoundFlow() if self._shared is None else await self._shared.find(flow_id)

    @contextmanager
    def asked(self, flow_id: bytes, record: bytes | None, *, joins: bool) -> Iterator[None]:
        """What was asked for is known meanwhile.

        Who `joins` has paths to the machine that it is at: nobody takes the flow away from there.
        """
        self._asked_for = flow_id
        found = None if record is None else Credentials.from_bytes(record[:CREDENTIALS_BYTES])
        known = self.find(flow_id)
        newer = found is not None and (known is None or known.seen < found.seen)
        if record is not None and newer and flow_id not in self._living and self._lets_in(record):
            self._disown(flow_id)
            if not joins:
                self._adopt(record)
                self._unproved[flow_id] = record
        try:
            yield
        finally:
            self._asked_for = b""
            if flow_id in self._unproved and flow_id not in self._living:
                self._disown(flow_id)

    def proved(self, flow_id: bytes, *, here: bool) -> None:
        """Whether the peer of a flow has shown that it is there now."""
        record = self._unproved.get(flow_id)
        if record is None or (connection := self._living.get(flow_id)) is None:
            return
        if not here:
            connection.fail(SessionError("its peer was not there"))
            return
        del self._unproved[flow_id]
        credentials = connection.flow.credentials
        if credentials is not None and self._shared is not None:
            self._shared.came(credentials.to_bytes() + record[CREDENTIALS_BYTES:])

    def get(self, flow_id: bytes) -> Connection | None:
        return self._living.get(flow_id)

    def lives(self, flow_id: bytes) -> bytes | None:
        """The key of a flow's other end, if the flow lives here and that end was here itself."""
        if (connection := self._living.get(flow_id)) is None or flow_id in self._unproved:
            return None
        credentials = connection.flow.credentials
        return None if credentials is None else credentials.peer_key

    def admit(self, request: OpenRequest) -> FlowGrant | FlowRefusal:
        if self.find(request.flow_id) is not None:
            return FlowRefusal(FlowRefusalReason.DUPLICATE)
        if self._only_known or (self._allow is not None and not self._allow(request.peer_key)):
            return FlowRefusal(FlowRefusalReason.NOT_ALLOWED)
        kept = 0 if self._idle is None else self._idle.of_host(request.peer_key)
        if not self._ledger.may_open(request.host_id, kept):
            return FlowRefusal(FlowRefusalReason.LIMIT, _AGAIN_S)
        return FlowGrant(min(request.deadline_s, LONGEST_S))

    def close_to_new(self) -> None:
        self._only_known = True

    def add(
        self,
        opened: Opened,
        core: Session,
        peer_address: tuple[str, int],
        *,
        resumed: bool = False,
    ) -> Connection:
        flow_id, host = opened.credentials.flow_id, opened.host_id

        def presence(present: bool) -> None:
            if present:
                self._absent.pop(flow_id, None)
            else:
                self._absent[flow_id] = host
                self._plan()

        def over() -> None:
            failure = self._living.pop(flow_id).failure
            self._absent.pop(flow_id, None)
            self._ledger.close_flow(host)
            self._active.pop(flow_id, None)
            self._not_idle.discard(flow_id)
            if flow_id in self._unproved:
                self._disown(flow_id)
            elif self._idle is not None and not isinstance(failure, SessionAsleepError):
                self._idle.forget(flow_id)
                if self._shared is not None:
                    self._shared.forget(opened.credentials)
            elif self._shared is not None:
                self._shared.sleeps(opened.credentials)

        def active() -> None:
            self._active.pop(flow_id, None)
            self._active[flow_id] = 0
            if self._soon is None and not self._ended:
                self._soon = self._driver.loop.call_later(_SOON_S, self._note_quiet)

        connection = self._living[flow_id] = Connection(
            self._driver,
            core,
            credentials=opened.credentials,
            resumed=resumed,
            peer_address=peer_address,
            observer=FlowObserver(presence, None if self._idle is None else active, over),
        )
        self._ledger.open_flow(host)
        if self._idle is not None and not resumed:
            self._idle.note(opened.credentials, opened.deadline_s, time.time())
        if self._shared is not None and flow_id not in self._unproved:
            self._shared.lives(opened.credentials)
        return connection

    def wake(
        self,
        opened: Opened,
        peer_address: tuple[str, int],
        scheduler: Callable[[], Scheduler],
        limits: SessionLimits,
    ) -> Connection | None:
        """A flow that slept lives again; None: it has expired meanwhile, or may live elsewhere."""
        further = self._shared is not None and opened.kind is ConnectionKind.JOIN
        if self._idle is None or further:
            return None
        found = self._idle.wake(
            opened.credentials.flow_id, scheduler(), self._driver.now(), time.time(),
            limits=limits, memory=self._driver.memory,
        )  # fmt: skip
        if found is None:
            return None
        core, state = found
        connection = self.add(opened, core, peer_address, resumed=True)
        connection.kept_state = state
        return connection

    def leave(self, connection: Connection) -> bool:
        """Leaves an idle flow to another machine; False: it is not idle, or nobody would find it."""
        credentials = connection.flow.credentials
        if self._shared is None or not self._shared.answers or credentials is None:
            return False
        flow_id, now = credentials.flow_id, self._driver.now()
        known = self._living.get(flow_id) is connection and self._idle is not None
        if not known or not self._keep(flow_id, now, time.time()):
            return False
        connection.fail(SessionAsleepError("another machine goes on with it"))
        return True

    def take_over(
        self, handed: HandedFlow, scheduler: Scheduler, limits: SessionLimits
    ) -> Connection:
        """A session of the process before this one goes on. ValueError: it is none of this version."""
        credentials = Credentials.from_bytes(handed.credentials)
        core = unpack_living(
            handed.session, scheduler, self._driver.now(), limits=limits, memory=self._driver.memory
        )
        opened = Opened(ConnectionKind.RESUME, credentials, core.control.terms.seconds)
        connection = self.add(opened, core, ("", 0), resumed=True)
        self._absent[credentials.flow_id] = opened.host_id
        self._plan()
        connection.flow.pump_soon()
        return connection

    def _plan(self) -> None:
        if self._timer is None and not self._ended:
            self._timer = self._driver.loop.call_later(_NOTE_S, self._check)

    def _check(self) -> None:
        """Holds absent hosts to what they may cost; writes down who is idle."""
        self._timer = None
        self._bound()
        if self._idle is not None:
            self._write_down(self._idle)
        if self._idle is not None or self._absent:
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

    def _note_quiet(self) -> None:
        """Writes down those that have just fallen quiet."""
        self._soon = None
        now, unix_s = self._driver.now(), time.time()
        while self._active and self._idle is not None:
            flow_id = next(iter(self._active))
            flow = self._living[flow_id].flow
            if (left_s := flow.active_s + _SOON_S - now) > 0:
                self._soon = self._driver.loop.call_later(left_s, self._note_quiet)
                return
            looks = self._active.pop(flow_id)
            kept = self._keep(flow_id, now, unix_s)
            if not kept and flow.paths and looks < _LOOKS:
                flow.active_s = now
                self._active[flow_id] = looks + 1
            elif not kept or not flow.paths:
                self._not_idle.add(flow_id)

    def _write_down(self, idle_sessions: IdleSessions) -> None:
        """Writes down who has become idle, and puts to sleep who has no path."""
        now, unix_s = self._driver.now(), time.time()
        for flow_id in list(self._not_idle):
            connection = self._living[flow_id]
            flow = connection.flow
            if now - flow.active_s < _NOTE_S or flow.credentials is None:
                continue
            idle = self._keep(flow_id, now, unix_s)
            if idle and flow.paths:
                self._not_idle.discard(flow_id)
            elif idle and now - flow.active_s > _ASLEEP_S:
                connection.fail(SessionAsleepError("the session sleeps until a network comes back"))
                self._slept += 1
        idle_sessions.expire(unix_s, self._living.__contains__)
        if self._slept >= max(_COLLECTED, len(self._living) // _COLLECTED_SHARE):
            self._slept = 0
            self._driver.loop.call_later(_NOTE_S, gc.collect)  # their tasks have ended by then

    def _keep(self, flow_id: bytes, now: float, unix_s: float) -> bool:
        if flow_id in self._unproved or self._idle is None:
            return False
        return self._living[flow_id].keep(self._idle, now, unix_s)

    # What is shared with other machines

    def _lets_in(self, record: bytes) -> bool:
        return self._idle is not None and (self._allow is None or self._allow(record[PEER_KEY]))

    def _share(self, record: bytes) -> None:
        if self._shared is not None and record[:16] not in self._unproved:
            self._shared.write(record)

    def _adopt(self, record: bytes) -> None:
        if self._idle is not None:
            self._idle.adopt(record)

    def _disown(self, flow_id: bytes) -> None:
        """Forgets what another machine still has."""
        self._unproved.pop(flow_id, None)
        if self._idle is not None:
            self._idle.forget(flow_id)

    def _proved(self) -> Iterator[Credentials]:
        for flow_id, connection in list(self._living.items()):
            credentials = connection.flow.credentials
            if credentials is not None and flow_id not in self._unproved:
                yield credentials

    def _records(self) -> Iterator[bytes]:
        if self._idle is not None:
            yield from (each for each in self._idle.records() if each[:16] not in self._unproved)

    def _knows(self, flow_id: bytes) -> bool:
        return self._idle is not None and self._idle.record(flow_id) is not None

    def _renew(self, flow_id: bytes) -> None:
        if flow_id in self._living:
            self._keep(flow_id, self._driver.now(), time.time())

    def _taken(self, flow_id: bytes) -> None:
        if (connection := self._living.get(flow_id)) is not None:
            connection.fail(SessionError("another machine of this server has it now"))
        elif self._idle is not None:
            self._idle.forget(flow_id)

    def close(self) -> None:
        """Writes down who is idle; what is in the file stays."""
        self._ended = True
        for timer in (self._timer, self._soon):
            if timer is not None:
                timer.cancel()
        self._timer = self._soon = None
        if self._idle is not None:
            for flow_id in self._living:
                self._keep(flow_id, self._driver.now(), time.time())
            self._idle.sync()
            self._idle.close()
            self._idle = None
