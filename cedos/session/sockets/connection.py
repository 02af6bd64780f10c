"""What a program holds: a byte stream, and messages with labels, over whatever networks there are."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from types import TracebackType
from typing import Self

from cedos.errors import ConfigError, SessionError
from cedos.session.io.advice import Progress
from cedos.session.io.driver import Driver
from cedos.session.io.flow import Flow
from cedos.session.io.idle_sessions import Sleepers
from cedos.session.io.waiter import Waiter
from cedos.session.protocol.events import (
    Event,
    Failed,
    Finished,
    PeerClosed,
    PeerWishes,
    Probed,
    ThunkReady,
)
from cedos.session.protocol.frames.packing import MAX_KEEP_ALIVE_S
from cedos.session.protocol.schedulers.interface import FOREGROUND_RANKS, RANK
from cedos.session.protocol.session import Session
from cedos.session.sockets.metered_gate import Holding
from cedos.session.sockets.streamed import Streamed


@dataclass(frozen=True, slots=True)
class PathReport:
    """One path as it is now; rates and times None where they are not measured yet."""

    network: str
    peer: str
    rtt_s: float | None
    rate_bps: float | None
    unsent_bytes: int
    stalled: bool


class Connection(Streamed):
    """One end of a session.

    The stream has TCP's semantics; each message (IROB) is delivered whole, with its label, in an order
    that is only as strict as was asked for. A connection ends when both ends have closed it, when its
    deadline passes without any network, or by the peer's authenticated word; never by a network.
    """

    def __init__(self, driver: Driver, core: Session, *, resumed: bool = False) -> None:
        self._driver = driver
        super().__init__(core)
        self._waiters: list[Waiter] = []
        self._ended: SessionError | None = None
        self._over = False
        self._asked_s = 0  # the keep-alive that was asked for last
        self.peer_wishes: PeerWishes | None = None
        self.resumed = resumed
        self.peer_address = ("", 0)  # where it first came from; at the end that accepted
        self.flow = Flow(driver, core, self._changed)
        self.on_change: Callable[[], None] | None = None
        self.holding: Holding | None = None

    # Life

    async def connected(self, timeout_s: float | None = None) -> None:
        """Waits until there is a path.

        Raises:
            SessionError: the session ended first.
            TimeoutError: not in time.
        """
        async with asyncio.timeout(timeout_s):
            while not self.flow.paths:
                self._check()
                await self._something()

    async def close(self) -> None:
        """Ends the session in both directions once everything has been acknowledged.

        Raises:
            SessionError: it ended otherwise, at its deadline for example: not everything arrived.
        """
        if not self._over:
            self._core.close()
            self.flow.pump()
            self._changed()
            while not self._over:
                await self._something()
        if self._ended is not None:
            raise self._ended
        await self.told()

    async def told(self) -> None:
        """Waits until the other end has heard the last of it, two seconds at most."""
        await self.flow.drained()

    def abort(self, why: str = "given up") -> None:
        """Ends the session at once; tells the peer if there is a path."""
        if not self._over:
            self._core.abort(0, why)
            self._over, self._ended = True, SessionError(f"the session was ended here: {why}")
            self.flow.drain()
            self._changed()

    def progress(self) -> Progress:
        """How far the peer's stream has come, and what is known of the rest."""
        hold = None if self.holding is None else self.holding.hold
        return Progress(
            self.received_bytes,
            hold.expected_bytes if hold else 0,
            hold.deadline_at_s if hold else None,
            RANK[self._label],
        )

    @property
    def ended(self) -> bool:
        """Whether the session is over, in whatever way."""
        return self._over

    @property
    def received_bytes(self) -> int:
        """How much of the peer's stream has arrived without a gap."""
        return self._core.receiver.stream.received.floor

    @property
    def readable_bytes(self) -> int:
        """How much of it can be read now."""
        return self._core.readable_bytes

    @property
    def held_bytes(self) -> int:
        """What the session keeps in memory for its application and its peer."""
        return self._core.held_bytes

    @property
    def at_eof(self) -> bool:
        """Whether the peer has finished its stream and all of it was read."""
        return self._core.at_eof

    @property
    def receivable(self) -> int:
        """How many messages are here."""
        return self._core.receivable

    @property
    def room_bytes(self) -> int:
        """How much of the stream the session would keep now; 0 once it is over."""
        return 0 if self._over else self._core.sender.room_bytes

    @property
    def failure(self) -> SessionError | None:
        """Why the session ended before its time; None as long as it has not."""
        return self._ended

    def wait_for(
        self,
        *,
        deadline_s: float | None = None,
        expected_bytes: int = 0,
        low_bytes: int | None = None,
        high_bytes: int | None = None,
        buffered: Callable[[], int] = lambda: 0,
    ) -> None:
        """Uses cellular networks only when it would otherwise be too late (Cedos, III-C).

        The session lives as long as it waits: a deadline beyond its keep-alive makes it ask the peer for
        a longer one (DTP, 3.2), unless it was to end with its last path.

        Args:
            deadline_s: from now on; with `expected_bytes`, what the stream should bring by then in all.
            expected_bytes: the stream's size.
            low_bytes: a threshold of what has arrived and was not taken: below it cellular networks are
                used, whatever the deadline says.
            high_bytes: until this threshold is reached.
            buffered: what else the application has in store, in bytes.

        Raises:
            ConfigError: a deadline that is no number of seconds.
            SessionError: this end accepted the session.
        """  # fmt: skip
        if self.holding is None:
            raise SessionError("only the end that dialled chooses networks")
        if deadline_s is not None and not deadline_s >= 0.0:
            raise ConfigError(f"a deadline in {deadline_s} s: it must be 0 s or later from now on")
        hold = self.holding.hold
        hold.deadline_at_s = None if deadline_s is None else self._driver.now() + deadline_s
        hold.expected_bytes = expected_bytes
        hold.low_bytes, hold.high_bytes = low_bytes, high_bytes
        self.holding.buffered = buffered
        if deadline_s is not None:
            self._outlive(deadline_s)
        if deadline_s is not None or expected_bytes:
            self.wish(expected_bytes, deadline_s if deadline_s is not None else float("inf"))
        self.holding.look()

    @property
    def acknowledged_bytes(self) -> int:
        """How much of what was written the peer has for certain."""
        return self._core.acknowledged_bytes

    def wish(self, expected_bytes: int, deadline_s: float) -> None:
        """Tells the peer how much is expected of it, and within how many seconds (Cedos, III-C)."""
        now = self._driver.now()
        self._core.wish(expected_bytes, now + deadline_s, now=now)
        self.flow.pump_soon()

    def _outlive(self, deadline_s: float) -> None:
        """Asks the peer for a keep-alive of this, once, where less is agreed."""
        agreed_s = self._core.control.terms.seconds
        seconds = ceil(min(deadline_s, MAX_KEEP_ALIVE_S))
        if 0 < agreed_s < seconds and seconds != self._asked_s:
            self._asked_s = seconds
            self._core.keep_alive(seconds)
            self.flow.pump_soon()

    @property
    def flow_id(self) -> bytes:
        """16 bytes that name the flow; empty before it is set up."""
        credentials = self.flow.credentials
        return b"" if credentials is None else credentials.flow_id

    @property
    def peer_key(self) -> bytes:
        """The other end's public key; empty before it is set up."""
        credentials = self.flow.credentials
        return b"" if credentials is None else credentials.peer_key

    def paths(self) -> list[PathReport]:
        """The paths that are open."""
        found = []
        for path in self.flow.paths.values():
            facts = path.facts
            found.append(
                PathReport(
                    facts.network,
                    path.peer,
                    facts.rtt_s,
                    facts.rate_bps,
                    facts.unsent_bytes,
                    path.facts.stalled_at_s is not None,
                )
            )
        return found

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.close()
        else:
            self.abort("its program failed")

    # Inside

    def _sent(self, rank: int) -> None:
        if rank in FOREGROUND_RANKS:
            self.flow.foreground()
        self.flow.pump_or_soon()

    def _take_back(self) -> None:
        """Something was taken: the peer may have to be told that there is room again."""
        if self._core.receiver.owes_window:
            self.flow.pump_soon()

    def _changed(self, *, at_once: bool = False) -> None:
        if self._core.pending_events:
            for event in self._core.events():
                self._event(event)
        if self.on_change is not None:
            self.on_change()
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                waiter.wake(at_once=at_once)

    def _event(self, event: Event) -> None:
        if isinstance(event, PeerClosed):
            self._peer_closed = True
        elif isinstance(event, ThunkReady):
            thunk = self._thunks.pop(event.token, None)
            if thunk is not None:
                self._driver.loop.call_soon(thunk)
        elif isinstance(event, Probed):
            path = self.flow.paths.get(event.path_id)
            if path is not None:
                path.answered(event)
        elif isinstance(event, PeerWishes):
            self.peer_wishes = event
        elif isinstance(event, Finished):
            self._over = True
            self.flow.drain()
        elif isinstance(event, Failed):
            self._end(
                SessionError(
                    f"the session has ended: {event.why}; the other end had acknowledged "
                    f"{event.acknowledged_bytes} bytes"
                )
            )

    def keep(self, sleepers: Sleepers, now: float, unix_s: float) -> bool:
        """Writes the session down, if it is idle; whether it is."""
        credentials = self.flow.credentials
        if self._over or credentials is None:
            return False
        return sleepers.sleep(credentials, self._core, now, unix_s)

    def forgotten(self) -> None:
        """The peer says, authenticated, that it does not know the session any more."""
        if not self._over:
            self._core.peer_forgot()
            self._changed()

    def fail(self, error: SessionError) -> None:
        """The session cannot go on: the other end has said so, or cannot be had."""
        if not self._over:
            self._end(error)
            self._changed()
            self.flow.end(str(error))

    def _end(self, error: SessionError) -> None:
        if not self._over:
            self._over, self._ended = True, error
            self.flow.drain()

    def _check(self) -> None:
        if self._over:
            raise self._ended or SessionError("the session has been closed")

    def _something(self) -> Waiter:
        """Until anything has happened."""
        if self._waiters:  # those who gave up, with a time limit say, wait no more
            self._waiters = [each for each in self._waiters if not each.done]
        waiter = Waiter(self._driver.loop)
        self._waiters.append(waiter)
        return waiter
