"""A program's connection: a byte stream and messages with labels, over all networks there are."""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from math import ceil
from typing import Final, Self

from cedos.errors import ConfigError, SessionError, SessionRefusedError
from cedos.model import Direction, Label
from cedos.session.io.advice import Adviser, Readers, TransferProgress
from cedos.session.io.dialler import DialledServer
from cedos.session.io.driver import Driver, Waiter
from cedos.session.io.flow import Dialling, FlowObserver, SessionFlow
from cedos.session.io.idle_sessions import IdleSessions
from cedos.session.protocol.buffer_manager import BufferManager
from cedos.session.protocol.handshake.credentials import Credentials
from cedos.session.protocol.handshake.outcome import Failure, FailureKind
from cedos.session.protocol.life import (
    Event,
    Failed,
    Finished,
    PeerClosed,
    Probed,
    ThunkReady,
)
from cedos.session.protocol.packing import MAX_KEEP_ALIVE_S
from cedos.session.protocol.schedulers.interface import FOREGROUND_RANKS, LABELS, RANK, rank_of
from cedos.session.protocol.sender import DEFERRED, NO_ROOM
from cedos.session.protocol.session import ALL, Session
from cedos.session.sockets.message import DatagramCounts, Message, PathReport
from cedos.session.sockets.metered_gate import MeteredGate

STREAM_LABEL: Final = Label()
_DATAGRAM_RANK: Final = 0


class Connection:
    """An end of a session.

    The stream has TCP's semantics; each message (IROB) is delivered whole, with its label, in an
    order that is only as strict as was asked for (dissertation, 2.2). A connection ends when both
    ends have closed it, when its deadline passes without any network, or by the peer's authenticated
    word; never by a network. `server` and `adviser` are of the end that dials, `observer` and
    `peer_address` of the one that accepts; `resumed`: it was idle, and goes on; `rests`: the application
    waits in `first_byte`.
    """

    def __init__(
        self,
        driver: Driver,
        core: Session,
        *,
        credentials: Credentials | None = None,
        resumed: bool = False,
        peer_address: tuple[str, int] = ("", 0),
        server: DialledServer | None = None,
        adviser: Adviser | None = None,
        observer: FlowObserver | None = None,
    ) -> None:
        self._driver = driver
        self._core = core
        self.resumed = resumed
        self.peer_address = peer_address
        self.account = ""  # that of its latest path (`SessionPath`), where it was accepted
        self.kept_state = b""
        self.rests = False
        self._on_sleep: Callable[[], bytes | None] = lambda: b"" if self.rests else None
        self._label = STREAM_LABEL
        self._sent_label, self._sent_rank = STREAM_LABEL, rank_of(STREAM_LABEL)  # the last ones
        self._thunks: dict[int, Callable[[], None]] = {}
        self._tokens = itertools.count(1)
        self._waiters: list[Waiter] = []
        self._on_change: Callable[[], None] | None = None
        self._on_datagrams: Callable[[list[bytes]], None] | None = None
        self._peer_closed = False
        self._over = False
        self._ended: SessionError | None = None
        self._asked_s = 0  # the keep-alive that was asked for last
        self._readers: Callable[[], Readers] = Readers
        dialling = None
        if server is not None:
            dialling = Dialling(
                server,
                self._on_refused,
                lambda: self._metered.open,
                adviser,
                self.transfer_progress,
            )
        self.flow = SessionFlow(
            driver,
            core,
            self._on_core_change,
            credentials=credentials,
            dialling=dialling,
            observer=observer,
        )
        self._metered = MeteredGate(driver, core, self.flow, lambda: self._over)

    # Life

    async def wait_connected(self, timeout_s: float | None = None) -> None:
        """Wait until there is a path.

        SessionError: the session ended first. TimeoutError: not in time.
        """
        async with asyncio.timeout(timeout_s):
            while not self.flow.paths:
                self._check()
                await self._new_waiter()

    async def close(self) -> None:
        """End the session in both directions once everything has been acknowledged.

        SessionError: it ended otherwise, at its deadline for example: not everything arrived.
        """
        if not self._over:
            self._core.close()
            self.flow.pump()
            self._on_core_change()
            while not self._over:
                await self._new_waiter()
        if self._ended is not None:
            raise self._ended
        await self.wait_drained()

    async def leave(self) -> None:
        """Close as a program that ends: do not wait until the peer closes, too."""
        if not self._over:
            self._core.close()
            self.flow.pump()
            self._on_core_change()
            while not (self._over or self._core.control.closing.confirmed):
                await self._new_waiter()

    async def wait_drained(self) -> None:
        """Wait until the other end has received the last frames, two seconds at most."""
        await self.flow.wait_drained()

    def abort(self, why: str = "given up") -> None:
        """End the session at once; tell the peer if there is a path."""
        if not self._over:
            self._core.abort(0, why)
            self._over, self._ended = True, SessionError(f"the session was ended here: {why}")
            self.flow.drain()
            self._on_core_change()

    def transfer_progress(self) -> TransferProgress:
        return TransferProgress(
            self.received_bytes,
            self._metered.expected_bytes,
            self._metered.wanted_at_s,
            RANK[self._label],
            self._readers(),
        )

    def on_change(self, call: Callable[[], None] | None) -> None:
        """Call `call`, in the loop, after any event; None: stop that."""
        self._on_change = call

    def on_advice(self, call: Callable[[], Readers]) -> None:
        """Ask `call`, before networks are chosen, for the programs that read its messages."""
        self._readers = call

    def on_sleep(self, call: Callable[[], bytes | None]) -> None:
        """Ask `call` before an idle session is written down (`listen(idle=...)`).

        It returns up to 8 bytes, the `kept_state` of the connection that wakes; None: the application
        is at work, and a new one could not go on from here. Without a call only an application that
        waits in `first_byte` rests.
        """
        self._on_sleep = call

    @property
    def dials(self) -> bool:
        """Return whether this is the end that dialled: it chooses networks."""
        return self.flow.dialler is not None

    @property
    def has_network(self) -> bool:
        """Return, at the end that dials, whether a network leads to the other end."""
        return self.flow.dialler is not None and self.flow.dialler.has_network

    def check_networks(self) -> None:
        """Ask `connect(networks=...)` again: leave networks that may not be used, dial new ones."""
        if self.flow.dialler is not None and not self._over:
            self.flow.dialler.check()

    @property
    def peer_closed(self) -> bool:
        """Return whether the peer has closed, and all its data is here."""
        return self._peer_closed

    @property
    def ended(self) -> bool:
        return self._over

    @property
    def received_bytes(self) -> int:
        """Return how much of the peer's stream has arrived without a gap."""
        return self._core.receiver.stream.received.floor

    @property
    def held_bytes(self) -> int:
        """Return what the session keeps in memory for its application and its peer."""
        return self._core.held_bytes

    @property
    def unread_bytes(self) -> int:
        """Return what arrived and is kept in memory, as it is unfinished or was not read."""
        partial = sum(path.channel.partial_bytes for path in self.flow.paths.values())
        return self._core.unread_bytes + partial

    @property
    def failure(self) -> SessionError | None:
        return self._ended

    def wait_for(
        self,
        *,
        deadline_s: float | None = None,
        expected_bytes: int = 0,
        buffer: BufferManager | None = None,
        buffered: Callable[[], int] = lambda: 0,
    ) -> None:
        """Use cellular networks only when it would otherwise be too late (Cedos, III-C).

        All that waits in this process is planned together, by the scheduler that the daemon has for
        the host's transfers (`cedos transfers`).

        The session lives as long as it waits: a deadline beyond its keep-alive makes it ask the peer
        for a longer one (DTP, 3.2), unless it was to end with its last path.

        Args:
            deadline_s: from now on; with `expected_bytes`, what the stream should bring by then in all.
            expected_bytes: the stream's size.
            buffer: thresholds of received and unread data, for streams that are played: they say when
                cellular networks are used, whatever the deadline says.
            buffered: what else the application has in store, in bytes.

        Raises:
            ConfigError: a deadline that is no number of seconds.
            SessionError: this end accepted the session.
        """
        if not self.dials:
            raise SessionError("only the end that dialled chooses networks")
        if deadline_s is not None and not deadline_s >= 0.0:
            raise ConfigError(f"a deadline in {deadline_s} s: it must be 0 s or later from now on")
        self._metered.wait_for(self.peer_address[0], deadline_s, expected_bytes, buffer, buffered)
        if deadline_s is not None:
            self._outlive(deadline_s)
        self._metered.check()

    def networks(self) -> dict[str, bool]:
        """Return the interfaces that lead to the peer now, used or not, and whether they are metered."""
        dialler = self.flow.dialler
        return dialler.networks() if dialler is not None else {}

    def received_by_network(self) -> dict[str, int]:
        """Return the bytes received over each interface, with the session's overhead."""
        return self.flow.received_by_network()

    def sent_by_network(self) -> dict[str, int]:
        """Return the bytes that arrived there over each interface, with the overhead."""
        return self.flow.sent_by_network()

    @property
    def acknowledged_bytes(self) -> int:
        """Return how much of the written stream the peer has for certain."""
        return self._core.acknowledged_bytes

    async def wait_acknowledged(self, up_to_bytes: int) -> None:
        """Wait until the peer has so much of what was written.

        SessionError: the session has ended before.
        """
        while self.acknowledged_bytes < up_to_bytes:
            self._check()
            await self._new_waiter()

    @property
    def written_bytes(self) -> int:
        """Return how much was written to the stream so far."""
        return self._core.written_bytes

    def _outlive(self, deadline_s: float) -> None:
        """Ask the peer once for this keep-alive, if less is agreed."""
        agreed_s = self._core.control.terms.seconds
        seconds = ceil(min(deadline_s, MAX_KEEP_ALIVE_S))
        if 0 < agreed_s < seconds and seconds != self._asked_s:
            self._asked_s = seconds
            self._core.control.propose_keep_alive(seconds)
            self.flow.pump_soon()

    @property
    def flow_id(self) -> bytes:
        """The 16 bytes that name the flow; empty before it is set up."""
        credentials = self.flow.credentials
        return b"" if credentials is None else credentials.flow_id

    @property
    def peer_key(self) -> bytes:
        """The other end's public key; empty before it is set up."""
        credentials = self.flow.credentials
        return b"" if credentials is None else credentials.peer_key

    def paths(self) -> list[PathReport]:
        return [PathReport.of(path) for path in self.flow.paths.values()]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            await self.close()
        else:
            self.abort("its program failed")

    # The stream

    async def read(self, most_bytes: int = 1 << 18) -> bytes | memoryview:
        """Return the next bytes of the stream as they came; empty: the peer has finished it.

        SessionError: the session has ended before the stream did.
        """
        while True:
            data = self.read_now(most_bytes)
            if data or self._core.at_eof:
                return data
            self._check()
            await self._new_waiter()

    def read_now(self, most_bytes: int = 1 << 18) -> bytes | memoryview:
        """Return what `read` would, or nothing if no bytes are there yet."""
        data = self._core.read(most_bytes)
        if data:
            self._take_back()
        return data

    async def read_exactly(self, size: int) -> bytes:
        """Return so many bytes of the stream. SessionError: the stream or the session ends before."""
        parts: list[bytes | memoryview] = []
        left = size
        while left:
            part = await self.read(left)
            if not part:
                raise SessionError(
                    f"the stream ended {left} bytes before the {size} that were wanted"
                )
            parts.append(part)
            left -= len(part)
        return b"".join(parts)

    async def first_byte(self) -> bytes:
        """Return the first byte of the peer's next request; empty: the peer has finished the stream.

        Until it comes the application rests: it owes nothing, and its successor begins here.
        SessionError: as of `read`.
        """
        self.rests = True
        try:
            return bytes(await self.read(1))
        finally:
            self.rests = False

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append bytes to the stream; return when there is room to keep them, not when they are sent.

        `bytes` are kept without a copy until the peer has acknowledged them.

        SessionError: the session has ended, or the stream was finished.
        """
        whole = data if isinstance(data, bytes) else bytes(data)
        while whole:
            taken = self.write_now(whole)
            if taken == len(whole):
                return
            whole = whole[taken:]
            await self._new_waiter()

    def write_now(self, data: bytes) -> int:
        """Append as many of the bytes as there is room for now; return how many."""
        self._check()
        taken = self._core.write(data)
        self._pump(RANK[self._label])
        return taken

    async def write_source(
        self, fetch: Callable[[int, int], bytes | memoryview], length: int
    ) -> None:
        """Append bytes that `fetch(offset, count)` gives whenever they are sent (again).

        They take no replay memory: a file, say, that does not change.
        """
        self._check()
        self._core.write_source(fetch, length)
        self._pump(RANK[self._label])

    def finish(self) -> None:
        """End the stream in this direction; the other one goes on."""
        self._check()
        self._core.finish()
        self.flow.pump_soon()

    @property
    def label(self) -> Label:
        """The stream's label; may be set at any time, for data that has not been sent yet."""
        return self._label

    @label.setter
    def label(self, label: Label) -> None:
        rank = rank_of(label)
        self._label = label
        self._core.sender.label_stream(rank)
        self.flow.pump_soon()

    # Messages

    async def send(
        self,
        data: bytes,
        label: Label = STREAM_LABEL,
        *,
        after: tuple[int, ...] | None = ALL,
        thunk: Callable[[], None] | None = None,
    ) -> int | None:
        """Send a message; wait for room in replay memory.

        Args:
            data: the whole message.
            label: foreground or background, small or large.
            after: the ids of messages that are delivered before it; ALL (default) for those before it.
            thunk: called later, instead of sending, if no network is right for the label now.

        Returns:
            The message's id; None where it was not sent and the thunk was kept.

        Raises:
            SessionError: the session has ended, or the message is larger than the peer takes.
            ConfigError: the label is none.
        """
        if thunk is None and after is ALL:
            irob = self.send_now(data, label)
            if irob:
                return irob
        rank = rank_of(label)
        token = self._keep_thunk(thunk)
        while True:
            self._check()
            irob = self._core.send(data, rank, after=after, thunk=token)
            if irob == DEFERRED:
                return None
            if irob != NO_ROOM:
                self._thunks.pop(token or 0, None)
                self._pump(rank)
                return irob
            self.flow.pump_soon()
            await self._new_waiter()

    def send_now(
        self,
        data: bytes | memoryview,
        label: Label = STREAM_LABEL,
        *,
        after: tuple[int, ...] | None = ALL,
        head: bytes = b"",
    ) -> int:
        """Send a message at once or not at all; return its id, 0 where there is no room now.

        The message is `head` and `data`. Large data is not copied: it must not change.
        """
        if label is not self._sent_label:
            self._sent_rank, self._sent_label = rank_of(label), label
        rank = self._sent_rank
        self._check()
        irob = self.flow.send_fast(bytes(data), rank) if after is ALL and not head else 0
        if not irob:
            irob = self._core.send(data, rank, after=after, head=head)
            if irob:
                self._pump(rank)
        return irob

    def tell(self, label: Label, size_bytes: int, direction: Direction) -> None:
        """Announce messages of so many bytes in all: networks are chosen for them now."""
        self.flow.announce(rank_of(label), size_bytes, direction)

    def is_backlogged(self, label: Label) -> bool:
        """Return whether waiting data of a label keeps its networks busy."""
        return self._core.is_backlogged(rank_of(label))

    async def receive(self) -> Message | None:
        """Return the next whole message, the most urgent first; None: the peer has closed.

        SessionError: the session has ended before the peer closed.
        """
        while True:
            message = self.receive_now()
            if message is not None or self._peer_closed:
                return message
            self._check()
            await self._new_waiter()

    def receive_now(self) -> Message | None:
        """Return what `receive` would, or None if no message is there yet."""
        run = self._core.receive_run(1)
        if run is None:
            return None
        self._take_back()
        return Message(run.first, LABELS[run.rank], bytes(run.payloads[0]))

    def receive_data_now(self, most: int = 1024) -> Sequence[bytes | memoryview]:
        """Return the data alone of 0 to `most` messages of one label, large data without a copy."""
        run = self._core.receive_run(most)
        if run is None:
            return ()
        self._take_back()
        return run.payloads

    # Datagrams

    def send_datagram(self, data: bytes, lifetime_s: float) -> None:
        """Send a datagram (65,535 bytes, 60 s at most) that arrives once and in time, or never.

        Where a path does not answer in time another one carries it as well.
        SessionError: the session has ended. ValueError: it is too large, or its lifetime is none.
        """
        self._check()
        self._core.send_datagram(data, lifetime_s, self._driver.now())
        self._pump(_DATAGRAM_RANK)

    def on_datagrams(self, call: Callable[[list[bytes]], None] | None) -> None:
        """Call `call`, in the loop, with received datagrams; None: they wait, and then expire."""
        self._on_datagrams = call
        if self._core.datagrams_wait:  # they came with the session's first record, say
            self._driver.loop.call_soon(self._hand_on)

    @property
    def datagrams(self) -> DatagramCounts:
        """The counts of datagrams that were sent here."""
        sender = self._core.datagrams
        return DatagramCounts(sender.sent, sender.copies, sender.expired)

    # Inside

    def _pump(self, rank: int) -> None:
        if rank in FOREGROUND_RANKS:
            self.flow.foreground()
        self.flow.pump_or_soon()

    def _take_back(self) -> None:
        """Note that data was read: the peer may have to be told that there is room again."""
        if self._core.receiver.owes_window:
            self.flow.pump_soon()

    def _on_core_change(self, *, at_once: bool = False) -> None:
        if self._core.pending_events:
            for event in self._core.events():
                self._event(event)
        self._hand_on()
        if self._on_change is not None:
            self._on_change()
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                waiter.wake(at_once=at_once)

    def _hand_on(self) -> None:
        if self._on_datagrams is not None and self._core.datagrams_wait:
            self._on_datagrams(self._core.receive_datagrams())

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
                path.on_answer(event)
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

    def keep(self, idle: IdleSessions, now: float, unix_s: float) -> bool:
        """Write the session down if it is idle and its application rests; return whether that is so."""
        credentials = self.flow.credentials
        if self._over or credentials is None or (state := self._on_sleep()) is None:
            return False
        return idle.sleep(credentials, self._core, now, unix_s, state)

    def _on_refused(self, failure: Failure) -> None:
        if failure.kind is FailureKind.LOST_STATE:  # it does not know the session any more
            if not self._over:
                self._core.peer_forgot()
                self._on_core_change()
            return
        if failure.kind is FailureKind.WRONG_KEY:
            why = "the server has another key than the one that was given; ask its owner"
        else:
            why = f"the server refuses: {failure.why}"
        self.fail(SessionRefusedError(why))

    def fail(self, error: SessionError) -> None:
        """Fail the session: the other end has said so, or cannot be reached as it should."""
        if not self._over:
            self._end(error)
            self._on_core_change()
            self.flow.end(str(error))

    def _end(self, error: SessionError) -> None:
        if not self._over:
            self._over, self._ended = True, error
            self.flow.drain()

    def _check(self) -> None:
        if self._over:
            raise self._ended or SessionError("the session has been closed")

    def _new_waiter(self) -> Waiter:
        if self._waiters:  # those who gave up, with a time limit say, wait no more
            self._waiters = [each for each in self._waiters if not each.done]
        waiter = Waiter(self._driver.loop)
        self._waiters.append(waiter)
        return waiter

    def _keep_thunk(self, thunk: Callable[[], None] | None) -> int | None:
        if thunk is None:
            return None
        token = next(self._tokens)
        self._thunks[token] = thunk
        return token
