"""A session's core with its paths: the pure part joined with the sockets. The same at both ends.

RST, refusal and silence end a path here; the flow goes on until its own end: an authenticated word of
the peer, or its deadline.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from cedos.errors import ProtocolError, SessionError
from cedos.session.io.path import Path
from cedos.session.io.stall_detector import Vigil
from cedos.session.protocol.handshake.credentials import Credentials
from cedos.session.protocol.schedulers.estimates import quickest, widest
from cedos.session.protocol.session import BROKEN_PROTOCOL, Session

if TYPE_CHECKING:
    from cedos.session.io.advice import Advice
    from cedos.session.io.dialler import Dialler
    from cedos.session.io.driver import Driver

SOURCE_FAILED: Final = 3
"""Code of Abort, beside those of the core."""

_DRAIN_S: Final = 2.0
_TELL_S: Final = 0.010  # other processes need not know of each message


class Changed(Protocol):
    """Something happened; `at_once`: nothing else is left to do, those who wait may go on."""

    def __call__(self, *, at_once: bool = False) -> None:
        """Tells it."""


class Flow:
    """Moves records between a core and its paths.

    Attributes:
        core: the session's.
        credentials: what proves the flow; None until its first connection is open.
        paths: those that are open, by id.
        dialler: on the end that dials.
        advice: on the end that dials, where somebody chooses networks for it.
        presence: called when the first path has come or the last one has gone.
        active: called whenever something happens, at `active_s`, by those who want to know who is idle.

    Args:
        driver: of this loop.
        core: a live session.
        changed: something happened that the application may wait for.
        over: called once nothing is left of it.
    """

    def __init__(
        self,
        driver: "Driver",
        core: Session,
        changed: "Changed",
        over: Callable[[], None] = lambda: None,
    ) -> None:
        self.driver = driver
        self.core = core
        self.credentials: Credentials | None = None
        self.paths: dict[int, Path] = {}
        self.dialler: Dialler | None = None
        self.advice: Advice | None = None
        self.last_why = ""
        self.lost_paths = 0
        self._changed = changed
        self.over = over
        self._soon = self._pumping = self._sent = False
        self._timer: asyncio.TimerHandle | None = None
        self._vigil = Vigil(self)
        self._linger: asyncio.TimerHandle | None = None
        self._draining: asyncio.Future[None] | None = None
        self._ended = False
        self._foreground_s = float("-inf")
        self.presence: Callable[[], None] | None = None
        self.active: Callable[[], None] | None = None
        self.active_s = driver.now()
        driver.hold(self)
        driver.cores[id(core)] = self

    def adopt(self, path: Path) -> None:
        """A connection of this flow is open: it carries the session from now on."""
        opened = path.channel.opened
        assert opened is not None
        if self.credentials is None:
            self.credentials = opened.credentials
        now = self.driver.now()
        # A path over the same way was silent, or this one would not have been dialled.
        for old in [p for p in self.paths.values() if path.way and p.way == path.way]:
            old.close("replaced by a new connection over the same network", reset=True)
        path.owner = self
        path.attach(self.core)
        path.on_room = self.pump
        path.scout.look(path.connection, now, at_once=True)
        self.paths[path.path_id] = path
        if len(self.paths) == 1 and self.presence is not None:
            self.presence()
        self.core.path_up(path.path_id, path.facts, now, path.known)
        if self.advice is not None:
            self.advice.apply()
        for other in self.paths.values():
            if other.facts.stalled_at_s is not None:  # it had nobody to leave its data to
                self.core.requeue(other.path_id, now)
        self._changed()
        self.pump()

    def path_opened(self, path: Path) -> None:
        """Adopted paths are open."""

    def path_confirmed(self, path: Path) -> None:
        """The peer is there, as was believed: what it said it has lost can go."""
        for old in path.replaces:
            old.close("the other end has lost it", reset=True)
        path.replaces = []

    def replace_by(self, path: Path) -> None:
        """The peer says that it has no other path than this one.

        A hello that somebody kept back says so too, but can never be confirmed. Until then the older
        paths stay, and what is in flight there goes over the new one as well.
        """
        path.replaces = list(self.paths.values())
        now = self.driver.now()
        for old in path.replaces:
            self.core.requeue(old.path_id, now)

    def path_received(self, path: Path) -> None:
        """Records came: tells the application first, so that its answer and ours go together."""
        if path.facts.stalled_at_s is not None:
            self._vigil.speaks(path)
        self._acted()
        if self.advice is not None:
            self.advice.used()
        scheduled, self._soon = self._soon, True
        try:
            self._changed(at_once=True)
        finally:  # an interrupt there must not end all sending
            if not scheduled:
                self._pump_now()
        self.driver.memory_freed()

    def path_lost(self, path: Path, why: str) -> None:
        """A connection is over."""
        self.paths.pop(path.path_id, None)
        self.last_why = f"{path.way or path.peer}: {why}"
        self.lost_paths += 1
        if self._ended:
            return
        self.core.path_lost(path.path_id, self.driver.now())
        silent_s = path.facts.stalled_at_s
        if silent_s is not None and self.core.absent_since_s is not None:
            self.core.absent_since_s = min(self.core.absent_since_s, silent_s)
        if not self.paths and self.presence is not None:
            self.presence()
        self._acted()
        if self._draining is not None:
            if not self.paths:
                self.end("the session is over")
            return
        if self.advice is not None:
            self.advice.apply()
        if self.dialler is not None:
            self.dialler.lost(path)
        self._changed()
        self.pump_soon()

    def _acted(self) -> None:
        if self.active is not None:
            self.active_s = self.driver.now()
            self.active()

    def express(self, data: bytes, rank: int) -> int:
        """Sends a small message at once, if nothing else is there to do; its id, else 0.

        Only one in each turn of the loop: those that follow go together.
        """
        express = self.core.fast_path
        only = None if self._sent else express.path(len(data), rank)
        if only is None:
            return 0
        path = self.paths[only.state.path_id]
        made = None if path.blocked or path.closed else express.send(data, rank)
        if made is None:
            return 0
        irob, plain = made
        self._sent = True
        path.send_one(plain)
        now = self.driver.now()
        express.sent(only, irob, data, rank, now)
        self.pump_soon()
        self._tell_others(now)
        return irob

    def turn_over(self) -> None:
        """What follows need not go together with what was sent: nobody's loop turns between them."""
        self._sent = False

    def pump_or_soon(self) -> None:
        """Pumps at once, but not again for every further call of this turn of the loop."""
        if not self._sent:
            self._sent = True
            self.pump()
        self.pump_soon()

    def pump_soon(self) -> None:
        """Pumps once everything else that is due in the loop has been done."""
        if not self._soon and not self._ended:
            self._soon = True
            self.driver.loop.call_soon(self._pump_now)

    def _pump_now(self) -> None:
        self._soon = self._sent = False
        self.pump()

    def pump(self) -> None:
        """Sends what can be sent, on all paths."""
        if self._pumping or self._ended:
            return
        self._pumping = True
        now = self.driver.now()
        try:
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

    def path_wrong(self, path: Path, error: ProtocolError) -> None:
        """The peer broke the protocol in an authenticated record: the session cannot go on."""
        self.core.abort(BROKEN_PROTOCOL, str(error))
        self.pump()
        self._changed()

    def _plan(self, now: float) -> None:
        if self._vigil.timer is None and self.paths:
            self._vigil.begin()
        at = self.core.next_timer()
        if at is None:
            return
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
        if len(self.paths) > 1:
            for path in self.paths.values():
                path.look(now)  # what is probed depends on it
        self.core.tick(now)
        self._changed()
        self.pump()

    def has_room(self) -> None:
        """Replay memory was full and has room again."""
        self.core.woken()
        self._changed()

    def foreground(self) -> None:
        """The application sends something that somebody waits for."""
        self._tell_others(self.driver.now())

    def _tell_others(self, now: float) -> None:
        if now - self._foreground_s < _TELL_S:
            return
        self._foreground_s = now
        states, shared = self.core.paths, self.driver.foreground
        for state in (quickest(states), widest(states)) if states else ():  # where it may go
            path = self.paths.get(state.path_id)
            if path is not None and path.index:
                shared.sent(path.index)

    def drain(self) -> None:
        """The session is over: says what is left to say, then waits for the other end to hang up."""
        if self._ended or self._draining is not None:
            return
        self._draining = self.driver.loop.create_future()
        if self.dialler is not None:
            self.dialler.close()
        self.pump()
        for path in list(self.paths.values()):
            path.shut()
        if self.paths:
            self._linger = self.driver.loop.call_later(_DRAIN_S, self.end, "the session is over")
        else:
            self.end("the session is over")

    async def drained(self) -> None:
        """Waits for the end of `drain`."""
        if self._draining is not None and not self._ended:
            await asyncio.shield(self._draining)

    def end(self, why: str) -> None:
        """Closes all connections; the core is done."""
        if self._ended:
            return
        self._ended = True
        if self.dialler is not None:
            self.dialler.close()
        if self.advice is not None:
            self.advice.close()
        self._vigil.end()
        for timer in (self._timer, self._linger):
            if timer is not None:
                timer.cancel()
        for path in list(self.paths.values()):
            path.close(why)
        if self._draining is not None and not self._draining.done():
            self._draining.set_result(None)
        self.driver.cores.pop(id(self.core), None)
        self.driver.release(self)
        self.over()
