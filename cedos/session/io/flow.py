"""A session's core with its paths: the pure part joined with the sockets. The same at both ends.

RST, refusal and silence end a path. The flow goes on until its own end: an authenticated message of the
peer, or its deadline.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from cedos.errors import SessionError
from cedos.model import Direction
from cedos.session.io.advice import Advice, Adviser, TransferProgress
from cedos.session.io.connect_attempts import RestingNetworks
from cedos.session.io.dialler import DialledServer, Dialler
from cedos.session.io.driver import Driver
from cedos.session.io.path import SessionPath, SessionPathEvent
from cedos.session.io.stall_detector import StallDetector
from cedos.session.protocol.handshake.credentials import Credentials
from cedos.session.protocol.handshake.limits import network_of
from cedos.session.protocol.handshake.outcome import Failure
from cedos.session.protocol.schedulers.interface import ALL_RANKS, LABELS, quickest, widest
from cedos.session.protocol.schedulers.plain import permissions
from cedos.session.protocol.session import BROKEN_PROTOCOL, Session

# A code of Abort, beside those of the protocol core.
SOURCE_FAILED: Final = 3

MOST_PATHS: Final = 16
DRAIN_S: Final = 2.0
_TELL_S: Final = 0.010  # other processes need not know of each message
_RECEIVED: Final = SessionPathEvent.RECEIVED


class Changed(Protocol):
    def __call__(self, *, at_once: bool = False) -> None:
        """Report an event; `at_once`: nothing else is left to do, so waiters may go on."""


@dataclass(frozen=True, slots=True)
class FlowObserver:
    """The observer of an accepting end's flows."""

    # Called with each path, after it is one of the flow's, and once it is none any more.
    came: Callable[[SessionPath], None] = lambda _path: None
    went: Callable[[SessionPath], None] = lambda _path: None
    # Called on each activity, at `SessionFlow.active_s`, before the application reads or data leaves;
    # `sends`: data leaves. None: no observer needs it.
    active: Callable[[bool], None] | None = None
    over: Callable[[], None] = lambda: None  # called once nothing is left of the flow


@dataclass(frozen=True, slots=True)
class Dialling:
    """The additional parts of a dialling end's flow; see `Dialler` and `Advice`."""

    server: DialledServer
    failed: Callable[[Failure], None]
    metered_allowed: Callable[[], bool]
    adviser: Adviser | None
    progress: Callable[[], TransferProgress]


class SessionFlow:
    """The carrier of records between a core and its paths.

    `credentials` prove the flow, None until its first connection is open. A dialling end has a
    `dialler` (`start` begins it). `changed` reports events that the application may wait for.
    """

    def __init__(
        self,
        driver: Driver,
        core: Session,
        changed: Changed,
        *,
        credentials: Credentials | None = None,
        dialling: Dialling | None = None,
        observer: FlowObserver | None = None,
    ) -> None:
        self.driver = driver
        self.core = core
        self.credentials = credentials
        self.paths: dict[int, SessionPath] = {}
        self.last_why = ""
        self.lost_paths = 0
        self.active_s = driver.now()
        self._changed = changed
        self._observer = observer or FlowObserver()
        # A pump is due in this turn of the loop; one is running; a message was sent in this turn.
        self._soon = self._pumping = self._sent = False
        self._timer: asyncio.TimerHandle | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._draining: asyncio.Future[None] | None = None
        self._ended = False
        self._foreground_s = float("-inf")
        self._unconfirmed: dict[int, Callable[[], None]] = {}  # by path: what its proof ends
        self.dialler: Dialler | None = None
        self._advice: Advice | None = None
        # The bytes of closed paths by network.
        self._received: dict[str, int] = {}
        self._resting = RestingNetworks()  # at the accepting end
        self._rests: dict[int, asyncio.TimerHandle] = {}  # by path: when its network has rested
        self._delivered: dict[str, int] = {}
        if dialling is not None:
            self.dialler = Dialler(
                driver,
                dialling.server,
                self.paths,
                credentials=lambda: self.credentials,
                positions=core.positions,
                opened=self.adopt,
                permit=self._permit,
                failed=dialling.failed,
                metered_allowed=dialling.metered_allowed,
            )
            if dialling.adviser is not None:
                self._advice = Advice(core, dialling.adviser, dialling.progress, self.pump_soon)
                driver.watch(self._advice, self._advice.networks_changed, lambda: None)
        self._stalls = StallDetector(
            driver, core, self.paths, self.dialler, self.pump, self._path_pauses
        )
        driver.acquire(core, changed)

    def start(self) -> None:
        if self.dialler is not None:
            self.dialler.start()

    def adopt(
        self,
        path: SessionPath,  # with an open channel
        *,
        # Whether the peer says that it has no other path than this one. An old hello that an
        # attacker held back says so too, but can never be confirmed. Until the confirmation the
        # older paths stay, and their data in flight goes over the new path as well.
        only: bool = False,
        # Called once the peer has confirmed that it is there now, or the path was lost before.
        proved: Callable[[], None] = lambda: None,
    ) -> None:
        """Carry the session over a connection that is open."""
        opened = path.channel.opened
        assert opened is not None
        if self.credentials is None:
            self.credentials = opened.credentials
        now = self.driver.now()
        # The peer has lost its other paths: send their data again, close them once that is proved.
        replaced = list(self.paths.values()) if only else []
        for old in replaced:
            self.core.requeue(old.path_id, now)

        def confirmed() -> None:
            proved()
            if not path.closed:
                for old in replaced:
                    old.close("the other end has lost it", reset=True)

        self._unconfirmed[path.path_id] = confirmed
        before = [p for p in self.paths.values() if path.egress == p.egress != ""]
        path.attach(self.core, self._report)
        path.estimator.poll(path.connection, now, at_once=True)
        self.paths[path.path_id] = path
        self._observer.came(path)
        self.core.path_up(path.path_id, path.facts, now, path.known)
        until_s = 0.0 if self.dialler else self._resting.until_s(network_of(path.peer))
        if now < until_s:
            self.core.allow(path.path_id, 0, now)
            at = self.driver.loop.call_at
            self._rests[path.path_id] = at(until_s, self._has_rested, path.path_id)
        # A path over the same network was silent, or this one would not have been dialled. It ends when
        # this one is there: else the dialler would find none, and replace this one, too, without end.
        for old in before:
            old.close("replaced by a new connection over the same network", reset=True)
        # A peer may join with any number of paths: keep the newest.
        for old in list(self.paths.values())[:-MOST_PATHS]:
            old.close("its session has too many connections", reset=True)
        # Let labels onto the new path, and move the data of silent paths to it.
        self._permit()
        # Silent paths had no other path to leave their data to.
        for other in self.paths.values():
            if other.facts.stalled_at_s is not None:
                self.core.requeue(other.path_id, now)
        # With several paths the detector looks more often: `pump` begins it anew.
        self._stalls.end()
        self._changed()
        self.pump()

    def _report(self, path: SessionPath, event: SessionPathEvent, why: str) -> None:
        if event is _RECEIVED:
            # The application reads first, so that its answer and the acknowledgement share a record.
            # Calls of `pump_soon` meanwhile are served by the pump below.
            if path.facts.stalled_at_s is not None:
                self._stalls.on_heard(path)
            self._on_action()
            if self._advice is not None:
                self._advice.note_use()
            scheduled, self._soon = self._soon, True
            try:
                self._changed(at_once=True)
            # An interrupt in the application must not end all sending.
            finally:
                if not scheduled:
                    self._pump_now()
            self.driver.memory_freed()
        elif event is SessionPathEvent.WRITABLE:
            self.pump()
        elif event is SessionPathEvent.CONFIRMED:
            self._unconfirmed.pop(path.path_id, lambda: None)()
        # In an authenticated record: the peer itself breaks the protocol, so the session cannot go on.
        elif event is SessionPathEvent.WRONG:
            self.core.abort(BROKEN_PROTOCOL, why)
            self.pump()
            self._changed()
        elif event is SessionPathEvent.LOST:
            self._on_lost(path, why)

    def _on_lost(self, path: SessionPath, why: str) -> None:
        self._unconfirmed.pop(path.path_id, lambda: None)()
        self.paths.pop(path.path_id, None)
        self._observer.went(path)
        if (rest := self._rests.pop(path.path_id, None)) is not None:
            rest.cancel()
        # The end that chooses networks keeps the byte counts of its paths.
        if self.dialler is not None:
            network = path.facts.network
            self._received[network] = self._received.get(network, 0) + path.received_bytes
            self._delivered[network] = self._delivered.get(network, 0) + path.acknowledged_bytes()
        self.last_why = f"{path.egress or path.peer}: {why}"
        self.lost_paths += 1
        if self._ended:
            return
        # What arrived at the other end's kernel, as this end's was told, and not at the session.
        sent_bytes = min(self.core.in_flight_bytes(path.path_id), path.acknowledged_bytes())
        arrived_bytes = self.core.sender.arrived_bytes
        self.core.path_lost(path.path_id, self.driver.now())
        self._on_action()
        # While draining no path is dialled again.
        if self._draining is not None:
            if not self.paths:
                self.end("the session is over")
            return
        self._permit()
        if self.dialler is not None:
            self.dialler.path_lost(path, sent_bytes, arrived_bytes)
        else:
            network, now = network_of(path.peer), self.driver.now()
            self._resting.on_lost(network, sent_bytes, arrived_bytes, now)
        self._changed()
        self.pump_soon()

    def _has_rested(self, path_id: int) -> None:
        del self._rests[path_id]
        self.core.allow(path_id, ALL_RANKS, self.driver.now())
        self.pump()

    def _permit(self) -> None:
        """Let labels onto the paths of now, as the daemon advises; onto all that stay without advice."""
        if self._advice is not None:
            self._advice.paths_changed()
        elif self.dialler is not None:
            paths = {path.path_id: path for path in self.core.paths}
            now = self.driver.now()
            for number, mask in permissions([None] * len(LABELS), paths).items():
                self.core.allow(number, mask, now)

    def received_by_network(self) -> dict[str, int]:
        """Return the bytes received over each network, by present and past paths."""
        found = dict(self._received)
        for path in self.paths.values():
            network = path.facts.network
            found[network] = found.get(network, 0) + path.received_bytes
        return found

    def sent_by_network(self) -> dict[str, int]:
        """Return the bytes that arrived over each network, by present and past paths."""
        found = dict(self._delivered)
        for path in self.paths.values():
            network = path.facts.network
            found[network] = found.get(network, 0) + path.acknowledged_bytes()
        return found

    def _on_action(self, *, sends: bool = False) -> None:
        if self._observer.active is not None:
            self.active_s = self.driver.now()
            self._observer.active(sends)

    def send_fast(self, data: bytes, rank: int) -> int:
        """Send a small message at once, if there is nothing else to do; return its id, else 0.

        It does so once in each turn of the loop: the messages that follow share a record.
        """
        fast_path = self.core.fast_path
        only = None if self._sent else fast_path.path(len(data), rank)
        if only is None:
            return 0
        path = self.paths[only.state.path_id]
        # Take the message into the record at once; the core's accounts follow.
        made = None if path.blocked or path.closed else fast_path.send(data, rank)
        if made is None:
            return 0
        irob, plain = made
        self._sent = True
        self._on_action(sends=True)
        path.send_one(plain)
        now = self.driver.now()
        fast_path.on_sent(only, irob, data, rank, now)
        self.pump_soon()
        self._tell_others(now)
        return irob

    def pump_or_soon(self) -> None:
        """Pump at once, but only once in this turn of the loop; later calls pump soon."""
        if not self._sent:
            self._sent = True
            self.pump()
        self.pump_soon()

    def pump_soon(self) -> None:
        """Pump once everything else that is due in the loop has been done."""
        if not self._soon and not self._ended:
            self._soon = True
            self.driver.loop.call_soon(self._pump_now)

    def _pump_now(self) -> None:
        self._soon = self._sent = False
        self.pump()

    def pump(self) -> None:
        if self._pumping or self._ended:
            return
        self._pumping = True
        now = self.driver.now()
        if self._observer.active is not None and self.core.sender.waits:
            self._on_action(sends=True)
        try:
            # Ask each path that has room for its next records.
            while True:
                paths = [path for path in self.paths.values() if not path.blocked]
                moved = [path.pump(now) for path in paths]
                # A scheduler may leave bytes to another path, which then has to be asked again.
                if len(paths) < 2 or not any(moved):
                    break
        except SessionError as error:  # a source that does not give what it promised
            self.core.abort(SOURCE_FAILED, str(error))
            self.driver.loop.call_soon(self._changed)
        finally:
            self._pumping = False
        self._plan(now)

    def announce(self, rank: int, size_bytes: int, direction: Direction) -> None:
        """Announce a size to the adviser; the accepting end has no adviser."""
        if self._advice is not None and not self._ended:
            self._advice.announce(rank, size_bytes, direction)

    def _path_pauses(self, path: SessionPath, waited_s: float) -> None:
        if self._advice is not None:
            self._advice.path_pauses(path.path_id, waited_s)

    def _plan(self, now: float) -> None:
        if self._stalls.timer is None and self.paths:
            self._stalls.begin()
        at = self.core.next_timer()
        if at is None:
            return
        # Keep a timer that is early enough.
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer = self.driver.loop.call_at(max(at, now), self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self._ended:
            return
        now = self.driver.now()
        # Probes and datagrams depend on the kernel's latest numbers.
        if len(self.paths) > 1:
            for path in self.paths.values():
                path.update(now)
                path.confirm_datagrams()
        self.core.tick(now)
        self._changed()
        self.pump()

    def foreground(self) -> None:
        self._tell_others(self.driver.now())

    def _tell_others(self, now: float) -> None:
        if now - self._foreground_s < _TELL_S:
            return
        self._foreground_s = now
        states, shared = self.core.paths, self.driver.foreground
        # Foreground data goes over the quickest or the widest path: others make way on both networks.
        for state in (quickest(states), widest(states)) if states else ():
            path = self.paths.get(state.path_id)
            if path is not None and path.index:
                shared.on_sent(path.index)

    def drain(self) -> None:
        """Send the last frames of an ended session, then wait for the other end to hang up."""
        if self._ended or self._draining is not None:
            return
        self._draining = self.driver.loop.create_future()
        if self.dialler is not None:
            self.dialler.close()
        self.pump()
        for path in list(self.paths.values()):
            path.shut_down()
        if self.paths:
            self._linger = self.driver.loop.call_later(DRAIN_S, self.end, "the session is over")
        else:
            self.end("the session is over")

    async def wait_drained(self) -> None:
        if self._draining is not None and not self._ended:
            await asyncio.shield(self._draining)

    def end(self, why: str) -> None:
        if self._ended:
            return
        self._ended = True
        if self.dialler is not None:
            self.dialler.close()
        if self._advice is not None:
            self.driver.unwatch(self._advice)
            self._advice.close()
        self._stalls.end()
        for timer in (self._timer, self._linger):
            if timer is not None:
                timer.cancel()
        for path in list(self.paths.values()):
            path.close(why)
        if self._draining is not None and not self._draining.done():
            self._draining.set_result(None)
        self.driver.release(self.core)
        self._observer.over()
