"""The life of a session: keep-alive, closing, failing, and the control frames about it. Pure.

The states of `SessionState`:

| state | next | when |
|---|---|---|
| OPEN | CLOSING | the application closes: Close is sent |
| CLOSING | FINISHED | the peer has everything (Closed), and all data of the peer is here |
| OPEN, CLOSING | FAILED | an abort of either end, lost state, or the keep-alive expires without a path |

Only a frame in an authenticated record ends a session; a lost path never does by itself. Without a path
the session waits for `keep_alive_s` (DTP, 3.2) and expires without a message, as in D2TP (III-B).

A control frame may be lost with its path, and is sent again on the next one (`statement`). So every
such frame states how things are, and may arrive twice.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias

from msgspec import Struct

from cedos.errors import ProtocolError, SessionError
from cedos.session.protocol import frames as f
from cedos.session.protocol import packing
from cedos.session.protocol.frames import Close, KeepAlive, Sync
from cedos.session.protocol.in_flight import PathFlight
from cedos.session.protocol.receiver import Receiver
from cedos.session.protocol.schedulers.interface import PathFacts
from cedos.session.protocol.sender import Sender


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Limits of one session. The peer may send a window before the application has read it.

    Without `probes`, paths that carry nothing are not measured.
    """

    send_bytes: int = 16 * 1024 * 1024
    stream_window: int = 8 * 1024 * 1024
    irob_window: int = 16 * 1024 * 1024
    irob_bytes: int = 4 * 1024 * 1024
    acknowledge_bytes: int = 256 * 1024
    acknowledge_delay_s: float = 0.025
    keep_alive_s: int = 30 * 86_400
    probes: bool = True


class ThunkReady(Struct, frozen=True):
    """The label of a deferred send has an appropriate network now (dissertation, 2.2.5)."""

    token: int


class Probed(Struct, frozen=True):
    """The measured rate of a path without traffic, and a short Ping's round trip.

    `at_least`: the path may carry far more.
    """

    path_id: int
    rate_bps: float
    round_trip_s: float
    at_least: bool


class PeerClosed(Struct, frozen=True):
    """The peer's data has arrived completely; the application may not have read it yet."""


class Finished(Struct, frozen=True):
    """Both ends know that the other one has everything: sockets can be drained."""


class Failed(Struct, frozen=True):
    """The end of a session; acknowledged data has reached the peer, other data perhaps."""

    why: str
    by_peer: bool
    acknowledged_bytes: int


Event: TypeAlias = ThunkReady | Probed | PeerClosed | Finished | Failed


class SessionState(Enum):
    OPEN = "open"
    CLOSING = "closing"  # we have sent Close
    FINISHED = "finished"  # both have, and both know
    FAILED = "failed"


class KeepAliveTerms:
    """The agreed keep-alive: each end proposes, the other one may lower it; the smaller one counts.

    A proposal may be repeated on a new path, and so may its answer. The serial tells which proposal an
    answer belongs to.
    """

    __slots__ = ("_agreed", "_limit_s", "_serial", "proposed", "theirs")

    def __init__(self, seconds: int, limit_s: int) -> None:
        self._limit_s = limit_s
        self._agreed: list[int | None] = [seconds, None, None]  # from the set-up, ours, theirs
        self._serial = 0
        self.proposed: KeepAlive | None = None  # ours, until it is answered
        self.theirs: KeepAlive | None = None  # our answer to theirs, to be sent again on a new path

    @property
    def seconds(self) -> int:
        later = [each for each in self._agreed[1:] if each is not None]
        return min(later) if later else self._agreed[0] or 0

    def propose(self, seconds: int) -> KeepAlive:
        """Return a proposal to send; it counts once the peer has answered."""
        if not 0 <= seconds <= packing.MAX_KEEP_ALIVE_S:
            raise SessionError(
                f"a keep-alive of {seconds} s; allowed are 0 to {packing.MAX_KEEP_ALIVE_S}"
            )
        self._serial += 1
        self.proposed = KeepAlive(False, self._serial, seconds)
        return self.proposed

    def receive(self, frame: KeepAlive) -> KeepAlive | None:
        """Take a proposal, and return the answer; or take an answer."""
        if not frame.agreed:
            seconds = min(frame.seconds, self._limit_s)
            self.theirs = KeepAlive(True, frame.serial, seconds)
            self._agreed[2] = seconds
            return self.theirs
        # An answer to an earlier proposal is out of date.
        if self.proposed is not None and frame.serial == self.proposed.serial:
            if frame.seconds > self.proposed.seconds:
                raise ProtocolError(
                    f"a keep-alive of {frame.seconds} s in answer to {self.proposed.seconds} s proposed"
                )
            self._agreed[1] = frame.seconds
            self.proposed = None
        return None


class CloseHandshake:
    """The close of both directions: Close names all data, Closed acknowledges all of it."""

    __slots__ = ("answered", "asked", "confirmed", "theirs")

    def __init__(self) -> None:
        self.asked = False  # this end has sent Close
        self.confirmed = False  # the peer has said that it has everything
        self.theirs: Close | None = None
        self.answered = False  # this end has said that it has everything of the peer

    def receive(self, frame: Close) -> None:
        if self.theirs is not None and frame != self.theirs:
            raise ProtocolError(f"a session closed at {self.theirs} closes at {frame}")
        self.theirs = frame

    def check(self, stream_top: int, irob_top: int) -> None:
        theirs = self.theirs
        # The end of the stream takes a position behind the last byte.
        if theirs and (stream_top > theirs.stream_end + 1 or irob_top > theirs.irob_end):
            raise ProtocolError("the peer sends more than it said there would be when it closed")

    def complete(self, stream_floor: int, irob_floor: int) -> bool:
        theirs = self.theirs
        return (
            theirs is not None
            and stream_floor > theirs.stream_end
            and irob_floor >= theirs.irob_end
        )


def lost_state(theirs: Sync, ours: Sync, known: Sync, sent: tuple[int, int]) -> str | None:
    """Return which end has lost what the other relies on, or None.

    It compares the first Sync on a path after none was up. `ours` are this end's positions now,
    `known` those when the path was dialled; `sent` is behind the last byte and the last IROB that
    this end has sent.
    """
    if theirs.stream_received < known.stream_kept or theirs.irobs_received < known.irobs_kept:
        return "the peer has lost what it had acknowledged"
    if (
        theirs.stream_kept > ours.stream_received
        or theirs.irobs_kept > ours.irobs_received
        or theirs.stream_received > sent[0]
        or theirs.irobs_received > sent[1]
    ):
        return "this end has lost what it had sent or acknowledged"
    return None


# The most frames that are queued for the peer: a peer that asks on must not fill this end's memory.
MOST_DUE: Final = 64


class Control:
    """The control frames of a session; `due` holds frames for the path that is asked first."""

    def __init__(
        self, sender: Sender, receiver: Receiver, terms: KeepAliveTerms, events: list[Event]
    ) -> None:
        self.state = SessionState.OPEN
        self.failure: Failed | None = None
        self.terms = terms
        self.closing = CloseHandshake()
        self.due: deque[bytes] = deque()
        self._sender = sender
        self._receiver = receiver
        self._events = events
        self.handlers: dict[type[Any], Callable[[PathFlight, Any, float], None]] = {
            f.Abort: self._on_abort,
            f.Close: self._on_close,
            f.Closed: self._on_closed,
            f.KeepAlive: self._on_keep_alive,
            f.PathSays: self._on_path_says,
            f.Ping: self._on_ping,
        }

    # Said by us

    def propose_keep_alive(self, seconds: int) -> None:
        """Propose how long the session outlives its last path; the peer may agree to less."""
        self.due.append(packing.pack_fixed(self.terms.propose(seconds)))

    def close(self) -> None:
        self.state = SessionState.CLOSING
        self.closing.asked = True
        self.due.append(self._close())

    def fail(self, why: str, *, by_peer: bool) -> None:
        """Fail; the first reason counts."""
        if self.failure is None and self.state is not SessionState.FINISHED:
            self.state = SessionState.FAILED
            sender = self._sender
            self.failure = Failed(why, by_peer, sender.acknowledged_bytes)
            self._events.append(self.failure)
            self._sender.forget()

    def ended_without_us(self) -> bool:
        """Return whether the peer ended properly: it had all data, and had sent all of its own."""
        # The peer's Closed may have been lost with its path. It is not needed if the peer has
        # acknowledged all data, and this end has answered the peer's Close.
        closing = self.closing
        self.closing.confirmed = (
            closing.asked and closing.answered and self._sender.everything_acknowledged()
        )
        self._check_finished()
        return self.state is SessionState.FINISHED

    def statement(self, path: PathFlight) -> list[bytes]:
        """Return frames for all that holds now and that the peer may have missed."""
        frames = [path_says(path)]
        terms = (self.terms.proposed, self.terms.theirs)
        frames += [packing.pack_fixed(each) for each in terms if each is not None]
        if self.closing.asked:
            frames.append(self._close())
        if self.closing.answered:
            frames.append(packing.pack_fixed(f.Closed()))
        return frames

    def _close(self) -> bytes:
        return packing.pack_fixed(f.Close(self._sender.stream.written, self._sender.next_irob))

    # Said by the peer

    def check_close(self) -> None:
        closing, receiver = self.closing, self._receiver
        if closing.theirs is None or closing.answered:
            return
        closing.check(receiver.stream.received.top, receiver.irobs.top)
        if closing.complete(receiver.stream.received.floor, receiver.irobs.floor):
            closing.answered = True
            self.due.append(packing.pack_fixed(f.Closed()))
            self._events.append(PeerClosed())
            self._check_finished()

    def _check_finished(self) -> None:
        if self.closing.confirmed and self.closing.answered and self.state is SessionState.CLOSING:
            self.state = SessionState.FINISHED
            self._events.append(Finished())
            self._sender.forget()

    def _on_close(self, _path: PathFlight, frame: f.Close, _now: float) -> None:
        self.closing.receive(frame)

    def _on_closed(self, _path: PathFlight, _frame: f.Closed, _now: float) -> None:
        if not self.closing.asked:
            raise ProtocolError("the peer answers a Close that was never sent")
        self.closing.confirmed = True
        self._check_finished()

    def _on_abort(self, _path: PathFlight, frame: f.Abort, _now: float) -> None:
        self.fail(frame.reason or f"the peer gave up (code {frame.code})", by_peer=True)

    def _on_keep_alive(self, _path: PathFlight, frame: f.KeepAlive, _now: float) -> None:
        answer = self.terms.receive(frame)
        if answer is not None and len(self.due) < MOST_DUE:
            self.due.append(packing.pack_fixed(answer))

    def _on_path_says(self, path: PathFlight, frame: f.PathSays, _now: float) -> None:
        peer = PathFacts(
            kind=packing.KINDS[frame.kind],
            metered=bool(frame.metered),
            rtt_s=frame.rtt_us / 1e6 if frame.rtt_us else None,
            rate_bps=float(frame.rate_bps) if frame.rate_bps else None,
            loss=frame.loss_ppm / 1e6,
            source=frame.source,
        )
        path.allow_there(frame.allowed, peer)

    def _on_ping(self, path: PathFlight, frame: f.Ping, _now: float) -> None:
        if len(path.control) < MOST_DUE:
            path.control.append(packing.pack_fixed(f.Pong(frame.token)))


def path_says(path: PathFlight) -> bytes:
    facts = path.state.facts
    return packing.pack_fixed(
        f.PathSays(
            packing.KINDS.index(facts.kind),
            facts.metered,
            path.allowed_here,
            min(int((facts.rtt_s or 0.0) * 1e6), 2**32 - 1),
            int(facts.rate_bps or 0),
            int(min(max(facts.loss, 0.0), 1.0) * 1e6),
            facts.source,
        )
    )
