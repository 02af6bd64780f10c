"""A session: a stream and IROBs over any number of paths that come and go. No I/O, no clock.

An IROB is a message of Intentional Networking, and a thunk is a send that waits for an appropriate
network (dissertation, chapter 2). The driver hands in records and the time. It asks for the next record
of each path that has room.

`PathFlight` remembers what was sent over a path until the peer has acknowledged it. If the path is lost,
the session sends that again over another path, but only once the peer has said there what it has
received (Sync), so that little is sent twice. Small foreground messages do not wait for that.

A *statement* is the group of control frames that tells all that holds now: positions (Sync), all
acknowledgements, and the window. A new path begins with one. A path owes one (`owes_statement`) when
frames on another path may have been lost.
"""

from collections.abc import Callable
from typing import Any, Final

from cedos.errors import SessionError
from cedos.session.protocol import frames as f
from cedos.session.protocol import packing
from cedos.session.protocol.crypto import TAG_BYTES
from cedos.session.protocol.datagrams import (
    LARGEST_BYTES,
    LONGEST_S,
    DatagramReceiver,
    DatagramSender,
)
from cedos.session.protocol.delivery import Run
from cedos.session.protocol.fast_path import FastPath
from cedos.session.protocol.frames import Chunk, Order
from cedos.session.protocol.handshake.messages import HEADER_BYTES
from cedos.session.protocol.in_flight import InFlight, PathFlight
from cedos.session.protocol.life import (
    MOST_DUE,
    Control,
    Event,
    Failed,
    KeepAliveTerms,
    SessionLimits,
    SessionState,
    ThunkReady,
    lost_state,
    path_says,
)
from cedos.session.protocol.path_watch import FALL_S, FlappingNetworks, PathProber, PathVoice
from cedos.session.protocol.receiver import DelayedAcks, Receiver
from cedos.session.protocol.room import ReplayMemory
from cedos.session.protocol.schedulers.interface import (
    Backlog,
    PathFacts,
    PathState,
    Scheduler,
    ahead_bytes,
    allowed_paths,
)
from cedos.session.protocol.send_queues import Fetch
from cedos.session.protocol.sender import DEFERRED, SMALL_BYTES, Sender
from cedos.session.protocol.unpacking import unpack

# The value of `after` that makes an IROB wait for everything sent before it, as a plain send does.
ALL: Final = None

# Codes of Abort.
BROKEN_PROTOCOL, LOST_STATE = 1, 2

_HEADER_BYTES: Final = 40  # of an Extent or a Messages frame, without its lengths and dependencies
# Room in a record stays empty if it is smaller than this, as another frame would cost more,
_WORTH_BYTES: Final = 256
# or smaller than a sixteenth of the record's room: a piece cut to fit would have to be joined again by
# the peer, with a copy.
_WORTH_SHARE: Final = 16

_PADDED_BYTES: Final = packing.PING.size  # a Ping that is longer has padding
# Memory of a piece beside its data, and of a gap in what is acknowledged.
_PIECE_BYTES: Final = 240
_GAP_BYTES: Final = 80
_LEAST_ROOM: Final = SMALL_BYTES + 2 * _HEADER_BYTES
_RECORD_COST: Final = HEADER_BYTES + TAG_BYTES
# Of fewer bytes the peer is not asked whether they have arrived.
_ASKED_BYTES: Final = 1_024
# Paths count as equally recent if the peer's last records arrived within this time of each other.
_HEARD_S: Final = 0.050
_DEFAULTS: Final = SessionLimits()
_SENDS: Final = (SessionState.OPEN, SessionState.CLOSING)


class Session:
    """A session; the same at both ends. Times are the driver's monotonic seconds."""

    def __init__(
        self,
        scheduler: Scheduler,  # decides which bytes go on which path
        now: float,  # the time. The session begins without a path.
        *,
        limits: SessionLimits = _DEFAULTS,  # the memory, windows and delays of this session
        # The replay memory that all sessions share; None: one for this session alone.
        memory: ReplayMemory | None = None,
        # How long the session outlives its last path, as granted at set-up; 0: not at all.
        keep_alive_s: int = 0,
        # When the last path was lost; None: there was no path yet.
        absent_since_s: float | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.limits = limits
        self.sender = Sender(
            memory or ReplayMemory(16 * limits.send_bytes), limits.send_bytes, self
        )
        self.receiver = Receiver(limits.stream_window, limits.irob_window, limits.irob_bytes)
        self.pending_events: list[Event] = []
        terms = KeepAliveTerms(keep_alive_s, limits.keep_alive_s)
        self.control = Control(self.sender, self.receiver, terms, self.pending_events)
        self.thunks: dict[int, int] = {}  # rank by token: sends that wait for a path of their label
        self.in_flight = InFlight(self.sender)
        self.backlog = Backlog()
        self._now = now
        self.absent_since_s = absent_since_s
        # The path that came up while there was no other: its first Sync tells whether an end lost state.
        self._resumed_on: int | None = None
        self._positions_then = self.positions()  # this end's, when that path was dialled
        self.delayed_acks = DelayedAcks(
            self.receiver, limits.acknowledge_bytes, limits.acknowledge_delay_s
        )
        self.fast_path = FastPath(
            scheduler, self.sender, self.in_flight, self.control, self.delayed_acks, self.backlog
        )
        self.prober = PathProber(
            self.in_flight, self.sender, self.control, self.pending_events, wanted=limits.probes
        )
        # Networks that fall silent again and again are relied on only after a while.
        self.flapping = FlappingNetworks()
        self.datagrams = DatagramSender(now)
        self._datagrams_received = DatagramReceiver()
        self._synced = False
        self._handlers: dict[type[Any], Callable[[PathFlight, Any, float], None]] = {
            **self.control.handlers,
            f.Ack: self._on_ack,
            f.Ask: self._on_ask,
            f.Datagram: self._on_datagram,
            f.Pong: self._on_pong,
            f.Sync: self._on_sync,
            f.Window: self._on_window,
        }

    # Paths

    @property
    def paths(self) -> list[PathState]:
        return self.in_flight.states

    def path_up(
        self, path_id: int, facts: PathFacts, now: float, known: f.Sync | None = None
    ) -> None:
        """Add an authenticated connection to the peer; the caller may change `facts` at any time.

        `known`: the end that dialled gives its `positions` of before the connection's first message;
        None at the other end. The peer's first Sync here may be older than acknowledgements that came
        over older paths in the meantime, so it is compared with those positions.
        """
        if path_id in self.in_flight.paths:
            raise SessionError(f"path {path_id} is up already")
        # The first path after none was up: its Sync tells whether an end has lost its state.
        if not self.in_flight.paths:
            self._resumed_on = path_id
            self._positions_then = known or self.positions()
        self.in_flight.on_up(path_id, facts, now, dialled=known is not None)
        self._came_back(self.in_flight.paths[path_id], now)
        self.absent_since_s = None
        self.sender.replay.set_absent(False)
        self._tell_thunks(now)

    def path_facts(self, path_id: int, facts: PathFacts, now: float) -> None:
        """Tell the peer and thunks that the facts of a path have changed notably."""
        path = self._path(path_id)
        path.state.facts = facts
        path.control.append(path_says(path))
        self._tell_thunks(now)

    def in_flight_bytes(self, path_id: int) -> int:
        """Return the bytes of data sent over a path whose arrival the peer has not confirmed."""
        return self._path(path_id).state.in_flight_bytes

    def path_lost(self, path_id: int, now: float) -> None:
        path = self._path(path_id)
        silent_at_s = path.state.facts.stalled_at_s
        # The loss is a fall of the network, unless its silence was counted as one already.
        if not path.fell:
            self.flapping.on_fell(path.state.facts.network, now)
        self.in_flight.on_path_lost(path_id)
        self.prober.path_lost(path_id)
        self.datagrams.path_lost(path_id, now)
        self._count_stuck()
        # Control frames of either end may be lost with this path: on the others send a statement, and ask
        # the peer for one.
        others = self.in_flight.paths.values()
        for other in others:
            if len(other.control) < MOST_DUE:  # its peer reads, or it has been asked already
                other.control.append(packing.pack_fixed(f.Ask()))
            other.owes_statement = True
        # Without a path the keep-alive runs, and written data may fill the session's replay memory.
        if not others:
            self.absent_since_s = now if silent_at_s is None else min(now, silent_at_s)
            self.sender.replay.set_absent(True)
        self._tell_thunks(now)

    def requeue(self, path_id: int, now: float) -> None:
        """Send what is in flight on a path, which may be dead, over other paths as well."""
        self._path(path_id)
        self._now = now
        self.in_flight.requeue(path_id)

    def path_voice(self, path_id: int, voice: PathVoice, now: float) -> bool:
        """Note whether a path answers while data waits there; return whether the doubt about it changed.

        If the path is silent or crawls, the data in flight there goes over another path as well, the
        first bytes first. The control frames that were sent there may be lost, too. They are repeated on
        other paths as soon as the path pauses: a peer that misses an acknowledgement may have no room to
        send. A path that answers again is relied on at once, unless its network flaps.
        """
        path = self._path(path_id)
        facts = path.state.facts
        before, silent_at_s = facts.doubt, facts.stalled_at_s
        self._now = now
        # A long silence counts as a fall of the network, once.
        if silent_at_s is not None and not path.fell and now - silent_at_s >= FALL_S:
            path.fell = True
            self.flapping.on_fell(facts.network, now)
        # Update the doubt about the path; repeat its frames and data elsewhere.
        if voice is PathVoice.SILENT and silent_at_s is None:
            path.silent_since(now)
            self._fell_silent(path)
        elif voice is not PathVoice.SPEAKS:
            pauses, crawls = voice is not PathVoice.SILENT, voice is PathVoice.CRAWLS
            if pauses and not facts.pauses:
                self._state_all_elsewhere(path)
            if crawls and not facts.crawls:
                self.in_flight.requeue(path_id)
            path.silent_since(silent_at_s, pauses=pauses, crawls=crawls)
        else:
            path.silent_since(None)
        # The path is back: data of paths that are still silent had no other path, and now has this one.
        if voice is PathVoice.SPEAKS and silent_at_s is not None:
            self._came_back(path, now)
            for other in self.in_flight.states:
                if other.facts.stalled_at_s is not None:
                    self.in_flight.requeue(other.path_id)
        changed = facts.doubt is not before
        if changed:
            self._count_stuck()
        return changed

    def ask_arrived(self, path_id: int, sent_bytes: int) -> None:
        """Ask the peer by a Ping whether the bytes sent over a path until now have arrived.

        The Pong proves it: a path's records come in order, or not at all.
        """
        path = self._path(path_id)
        if len(path.control) < MOST_DUE and sent_bytes >= path.asked_bytes + _ASKED_BYTES:
            path.asked_bytes = sent_bytes
            path.control.append(packing.ping(sent_bytes))

    def allow(self, path_id: int, ranks: int, now: float) -> bool:
        """Set which labels (a mask of ranks) may use a path, both ways; return whether that is new.

        If all paths of a label are silent or flap, its data may use better ones. Data of a label without
        a path waits.
        """
        path = self._path(path_id)
        if path.allowed_here == ranks:
            return False
        path.allow_here(ranks)
        path.control.append(path_says(path))
        self._tell_thunks(now)
        return True

    # The stream

    def write(self, data: bytes) -> int:
        """Append as much of `data` to the stream as there is room for; return how many bytes."""
        self._check_open()
        return self.sender.write(data)

    def write_source(self, fetch: Fetch, length: int) -> None:
        """Append `length` bytes to the stream; each send reads them by `fetch(offset, count)`."""
        self._check_open()
        self.sender.write_source(fetch, length)

    def finish(self) -> None:
        self._check_open()
        self.sender.finish()

    def read(self, limit_bytes: int = 1 << 30) -> bytes | memoryview:
        return self.receiver.read(limit_bytes)

    @property
    def readable_bytes(self) -> int:
        return self.receiver.stream.ready_bytes

    @property
    def held_bytes(self) -> int:
        """Return the bytes in memory: sent and not acknowledged, received and not read."""
        account_bytes = _PIECE_BYTES * self.in_flight.pieces + _GAP_BYTES * self.sender.gaps
        sent_bytes = self.sender.replay.held_bytes + self.datagrams.held_bytes
        return sent_bytes + account_bytes + self.unread_bytes

    @property
    def unread_bytes(self) -> int:
        """Return the bytes in memory that were received and not read."""
        return self.receiver.held_bytes + self._datagrams_received.held_bytes

    @property
    def at_eof(self) -> bool:
        """Return whether the peer has ended its half of the stream and all of it was read."""
        return self.receiver.at_end

    @property
    def acknowledged_bytes(self) -> int:
        return self.sender.acknowledged_bytes

    @property
    def written_bytes(self) -> int:
        return self.sender.stream.written

    # IROBs

    def send(
        self,
        data: Chunk,
        rank: int,
        *,
        after: tuple[int, ...] | None = ALL,
        thunk: int | None = None,
        head: bytes = b"",
    ) -> int:
        """Send a whole IROB; return its id, `NO_ROOM` (not taken) or `DEFERRED` (the thunk waits).

        `after`: the IROBs that the peer delivers first: `ALL` before this one, the ids of some, or
        `()` for none. The IROB's bytes are `head`, then `data`. Large data is not copied, so the
        caller must not change it.
        """
        self._check_open()
        if thunk is not None and self._defer(rank, thunk):
            return DEFERRED
        return self.sender.send(data, rank, _order(after), after or (), head)

    def receive_run(self, limit: int = 1 << 30) -> Run | None:
        """Return the next IROBs in order, at most `limit`, of one label and with consecutive ids."""
        return self.receiver.pop(limit)

    # Datagrams

    def send_datagram(self, data: bytes, lifetime_s: float, now: float) -> None:
        """Send a datagram within `lifetime_s`, or never.

        ValueError: it is too large, or the lifetime is out of bounds.
        """
        self._check_open()
        if len(data) > LARGEST_BYTES or not 0 < lifetime_s <= LONGEST_S:
            raise ValueError(
                f"a datagram of {len(data)} bytes that is good for {lifetime_s} s: at most"
                f" {LARGEST_BYTES} bytes and {LONGEST_S:g} s are possible"
            )
        self.datagrams.send(data, lifetime_s, now)

    def receive_datagrams(self) -> list[bytes]:
        """Return the datagrams that came in time, each once."""
        return self._datagrams_received.take() if len(self._datagrams_received) else []

    @property
    def datagrams_wait(self) -> bool:
        return len(self._datagrams_received) > 0

    @property
    def state(self) -> SessionState:
        return self.control.state

    def events(self) -> list[Event]:
        events = self.pending_events[:]
        self.pending_events.clear()
        return events

    # Records

    def receive(self, path_id: int, record: bytes | memoryview, now: float) -> None:
        """Take the plaintext of a record. Of a view, the session copies the bytes that it keeps.

        ProtocolError: the peer broke the protocol; the caller has to call `abort`.
        """
        path = self._path(path_id)
        path.on_record(len(record) + _RECORD_COST, now)
        if self.control.state is SessionState.FAILED:
            return
        # Data frames first: nearly all frames are. Others have a handler by type.
        receiver = self.receiver
        for frame in unpack(record):
            kind = type(frame)
            if kind is f.StreamData:
                receiver.on_stream(frame, record)  # type: ignore[arg-type] # by its type, above
            elif kind is f.Messages:
                receiver.on_messages(frame)  # type: ignore[arg-type]
            elif kind is f.Extent:
                receiver.on_extent(frame, record)  # type: ignore[arg-type]
            else:
                self._handlers[kind](path, frame, now)
                if self.control.failure is not None:
                    return
        # A Sync came: the acknowledgements behind it in the record are taken, too. Resend the rest.
        if self._synced:
            self._synced = False
            self.in_flight.release()
        # Acknowledge soon, or at once when the peer is closing.
        self.delayed_acks.on_received(now)
        if self.control.closing.theirs is not None:
            self.delayed_acks.at_once()
            self.control.check_close()

    def next_record(self, path_id: int, room_bytes: int, now: float) -> list[Chunk]:
        """Return the parts of one record's plaintext for a path that has room; empty: nothing to send.

        Stream and IROB bytes are added to the path's `unsent_bytes`. A record has at most 262,144 bytes.
        It may exceed `room_bytes`: by control frames, and by a little data, so that a small message
        need not be cut.
        """
        path = self.in_flight.paths.get(path_id)
        if path is None:
            return []
        parts: list[Chunk] = []
        # Control frames go first: the peer may be waiting for them.
        used = self._control_frames(path, parts, now) if self._has_control(path) else 0
        # Control frames that are left did not fit, or are a padded Ping, which needs a record of its own.
        # They go before any data, so this record ends here.
        if path.control or self.control.state not in _SENDS:
            return parts
        # The rest of the record is for data.
        room = min(max(room_bytes, _LEAST_ROOM), packing.RECORD_BYTES) - used - _HEADER_BYTES
        queues, backlog, states = self.sender.send_queues, self.backlog, self.in_flight.states
        scheduler, state, in_flight = self.scheduler, path.state, self.in_flight
        # Datagrams are more urgent than any stream.
        if self.datagrams.waits and (frames := self.datagrams.take(state, states, room, now)):
            size = sum(map(len, frames))
            parts += frames
            room -= size
            state.sent_bytes += size
            state.last_sent_at_s = backlog.foreground_at_s = backlog.small_at_s = now
        # Ask the scheduler for one grant after the other, until the record is full enough.
        worth = max(_WORTH_BYTES, room // _WORTH_SHARE)
        while room > worth and not in_flight.unheard:
            waiting = backlog.waiting_bytes = [queue.waiting_bytes for queue in queues]
            if waiting[0] or waiting[1]:
                backlog.foreground_at_s = now
                if waiting[0]:
                    backlog.small_at_s = now
            # Redundant schedulers may send copies although nothing new waits.
            if scheduler.copies:
                in_flight.count_copyable(path_id, backlog)
            elif not (waiting[0] or waiting[1] or waiting[2] or waiting[3]):
                break
            grant = scheduler.choose(state, states, backlog, room, now)
            if grant is None:
                break
            piece = in_flight.take(path, grant, room)
            if piece is None:
                break
            frame = piece.frame()
            size = sum(map(len, frame))
            parts += frame
            room -= size
            state.sent_bytes += size
            state.facts.unsent_bytes += size
            state.last_sent_at_s = now
        return parts

    def wants(self, path_id: int) -> bool:
        """Return whether there is something to send on a path."""
        path = self.in_flight.paths.get(path_id)
        return path is not None and (
            self._has_control(path)
            or (self.sender.waits and not self.in_flight.unheard)
            or self.datagrams.waits
        )

    # Life

    @property
    def failure(self) -> Failed | None:
        return self.control.failure

    def close(self) -> None:
        """Take no more data. Once all written data is delivered, the session is `FINISHED`."""
        if self.control.state is SessionState.OPEN:
            self.sender.finish()
            self.control.close()

    def abort(self, code: int, why: str) -> None:
        """End the session at once and tell the peer, if a path is up."""
        if self.control.failure is None:
            for path in self.in_flight.paths.values():
                path.control.append(packing.abort(code, why))
            self.control.fail(why, by_peer=False)

    def peer_forgot(self) -> None:
        """End the session, which the peer does not know: finished if all was delivered, else failed."""
        if not self.control.ended_without_us():
            self.control.fail("the peer does not know this session any more", by_peer=True)

    def is_backlogged(self, rank: int) -> bool:
        """Return whether so many bytes of a label wait to be sent that more would only queue up."""
        waiting_bytes = self.sender.send_queues[rank].waiting_bytes
        return waiting_bytes > ahead_bytes(self.in_flight.states, rank)

    def appropriate(self, rank: int) -> bool:
        return bool(allowed_paths(self.in_flight.states, rank))

    def next_timer(self) -> float | None:
        """Return when `tick` is due; None: there is no timer, only another call can change that."""
        if self.control.state is SessionState.FAILED:
            return None
        # An acknowledgement that was delayed, and the end of the keep-alive without a path.
        at = [self.delayed_acks.at] if self.delayed_acks.at is not None else []
        if self.absent_since_s is not None and self.control.state in _SENDS:
            at.append(self.absent_since_s + self.control.terms.seconds)
        # A probe of a path at rest, a Ping to a path that was held back because its network flaps, and a
        # datagram that is not acknowledged in time.
        probe = self.prober.next_at()
        if probe is not None:
            at.append(probe)
        asks_at = [path.asks_at() for path in self.in_flight.paths.values()]
        at += [each for each in asks_at if each is not None]
        if (datagram_at := self.datagrams.next_at(self.in_flight.states)) is not None:
            at.append(datagram_at)
        # The scheduler may choose otherwise after a time, though nothing happens; that matters only while
        # data waits.
        check_s = self.scheduler.next_check_s(self.in_flight.states, self._now)
        if check_s is not None and (self.thunks or self.sender.waits):
            at.append(self._now + check_s)
        return min(at) if at else None

    def tick(self, now: float) -> None:
        self._now = now
        self.delayed_acks.tick(now)
        self.prober.tick(now)
        self.datagrams.check(self.in_flight.states, now)
        for path in self.in_flight.paths.values():
            if path.asks(now):
                path.control.append(packing.ping(0))
        # The keep-alive expires without a message (DTP, 3.2).
        keep_alive_s = self.control.terms.seconds
        if self.absent_since_s is not None and self.absent_since_s + keep_alive_s <= now:
            self.control.fail(f"no path for the agreed {keep_alive_s} s", by_peer=False)
        self._tell_thunks(now)

    # Inside

    def _defer(self, rank: int, thunk: int) -> bool:
        if self.appropriate(rank):
            return False
        self.thunks[thunk] = rank
        return True

    def _check_open(self) -> None:
        if self.control.state is not SessionState.OPEN:
            failure = self.control.failure
            raise SessionError(failure.why if failure else "the session has been closed")

    def _path(self, path_id: int) -> PathFlight:
        path = self.in_flight.paths.get(path_id)
        if path is None:
            raise SessionError(f"there is no path {path_id}; up are {sorted(self.in_flight.paths)}")
        return path

    def _fell_silent(self, path: PathFlight) -> None:
        """Send over other paths what is in flight on a silent one, and repeat its control frames."""
        if self._state_all_elsewhere(path):
            self.in_flight.requeue(path.state.path_id)

    def _count_stuck(self) -> None:
        """Let the sender hold more bytes: as many as may be stuck on paths that do not answer."""
        states = self.in_flight.states
        stuck_bytes = sum(
            each.in_flight_bytes
            for each in states
            if len(states) > 1 and (each.facts.pauses or each.facts.stalled_at_s is not None)
        )
        self.sender.replay.set_stuck(stuck_bytes)

    def _state_all_elsewhere(self, path: PathFlight) -> bool:
        """Make all other paths that are not silent send a statement; return whether there are any.

        It replaces the control frames that the peer may have missed on this path.
        """
        others = [
            each
            for each in self.in_flight.paths.values()
            if each is not path and each.state.facts.stalled_at_s is None
        ]
        for other in others:
            other.owes_statement = True
        return bool(others)

    def _came_back(self, path: PathFlight, now: float) -> None:
        """Rely on a path again: at once, or after a time if its network flaps."""
        hold_s = self.flapping.hold_s(path.state.facts.network, now)
        path.came_back(now + hold_s if hold_s > 0 else None)

    def _has_control(self, path: PathFlight) -> bool:
        if path.owes_statement or path.control:
            return True
        owes = (
            self.delayed_acks.due
            or self.receiver.owes_window
            or self.control.due
            or (self.delayed_acks.along and self.sender.waits)
        )
        return bool(owes) and self._takes_shared_frames(path)

    def _takes_shared_frames(self, path: PathFlight) -> bool:
        """Return whether this path carries control frames that any path could carry, as acknowledgements.

        They go on the paths with the least doubt, and among these on those where the peer sent last: a
        path that brings data is alive. Another one may be dead without any doubt about it so far, since
        that shows only once something was sent there.
        """
        if self.in_flight.only is not None:
            return True
        paths = self.in_flight.paths.values()
        doubt = min(each.state.facts.doubt for each in paths)
        heard_at_s = max(each.heard_at_s for each in paths if each.state.facts.doubt is doubt)
        return path.state.facts.doubt is doubt and heard_at_s - path.heard_at_s <= _HEARD_S

    def _control_frames(self, path: PathFlight, parts: list[Chunk], now: float) -> int:
        """Put as many control frames into a record as fit; return their bytes."""
        receiver, control = self.receiver, path.control
        # Frames that wait because the peer does not read get no others behind them.
        if self.control.state is not SessionState.FAILED and len(control) < MOST_DUE:
            # A path that owes a statement gets all of it. A path for shared frames gets those that are
            # due.
            everything, shared = path.owes_statement, self._takes_shared_frames(path)
            if everything:
                control.append(packing.pack_fixed(self.positions()))
            if everything or (shared and (self.delayed_acks.due or self.delayed_acks.along)):
                control += receiver.acknowledgements(everything=everything)
                self.delayed_acks.on_sent(now)
            if everything or (shared and receiver.owes_window):
                control.append(receiver.window())
            if everything:
                path.owes_statement = False
                control += self.control.statement(path)
            if shared:
                control += self.control.due
                self.control.due.clear()
        # Fill the record with whole frames.
        used = 0
        while control and used + len(control[0]) <= packing.RECORD_BYTES:
            if used and len(control[0]) > _PADDED_BYTES and control[0][0] == packing.K_PING:
                break  # in a record of its own: the short Ping before it must be answered first
            used += len(control[0])
            parts.append(control.popleft())
        return used

    def positions(self) -> f.Sync:
        """Return how far all is acknowledged by the peer and received here, of the stream and IROBs."""
        sender, receiver = self.sender, self.receiver
        return f.Sync(
            sender.stream.acked.floor,
            sender.irobs.floor,
            receiver.stream.received.floor,
            receiver.irobs.floor,
        )

    def has_moved(self, since: f.Sync) -> bool:
        """Return whether data has come or gone since the session was idle at these positions."""
        idle = self.receiver.idle and self.sender.everything_acknowledged()
        return not idle or self.positions() != since

    def _tell_thunks(self, now: float) -> None:
        self._now = now
        for token in [each for each, rank in self.thunks.items() if self.appropriate(rank)]:
            del self.thunks[token]
            self.pending_events.append(ThunkReady(token))

    def _on_ack(self, _path: PathFlight, ack: f.Ack, _now: float) -> None:
        self.sender.acknowledge(ack)
        self.in_flight.drop_acknowledged()

    def _on_datagram(self, _path: PathFlight, frame: f.Datagram, now: float) -> None:
        self._datagrams_received.on_datagram(frame, now)

    def _on_window(self, _path: PathFlight, window: f.Window, _now: float) -> None:
        self.sender.window(window)

    def _on_ask(self, path: PathFlight, _ask: f.Ask, now: float) -> None:
        """Answer a peer that lost a path: send a statement, and send here what is in flight elsewhere.

        The peer does not say which path it lost, so all others count as silent until they answer.
        """
        path.owes_statement = True
        for other in self.in_flight.paths.values():
            if other is not path and other.state.facts.stalled_at_s is None:
                other.silent_since(now)
                self.in_flight.requeue(other.state.path_id)
                # A path that answers is alive after all.
                other.control.append(packing.ping(0))

    def _on_pong(self, path: PathFlight, pong: f.Pong, now: float) -> None:
        if path.arrived_bytes < pong.token <= path.asked_bytes:
            path.arrived_bytes = pong.token
        self.prober.on_pong(path, pong, now)

    def _on_sync(self, path: PathFlight, sync: f.Sync, _now: float) -> None:
        if path.state.path_id == self._resumed_on:
            self._resumed_on = None
            # Compare with this end's positions when the path was dialled: since then, other paths may
            # have brought newer acknowledgements.
            sent = (self.sender.stream.fresh, self.sender.next_irob)
            why = lost_state(sync, self.positions(), self._positions_then, sent)
            if why is not None:
                self.abort(LOST_STATE, why)
        self._synced = True


def _order(after: tuple[int, ...] | None) -> Order:
    if after is None:
        return Order.AFTER_ALL
    return Order.LISTED if after else Order.FREE
