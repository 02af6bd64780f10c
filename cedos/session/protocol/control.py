"""Everything two ends say to each other besides data and its acknowledgements.

What is sent here may be lost with its path, and is sent again on the next one (`statement`): every such
frame states how things are and can come twice.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from cedos.errors import ProtocolError
from cedos.session.protocol.events import (
    Event,
    Failed,
    Finished,
    KeepAliveAgreed,
    PeerClosed,
    PeerWishes,
    Ponged,
)
from cedos.session.protocol.frames import frames as f
from cedos.session.protocol.frames import packing
from cedos.session.protocol.life import CloseHandshake, KeepAliveTerms, SessionState
from cedos.session.protocol.receiving.receiver import Receiver
from cedos.session.protocol.schedulers.interface import PathFacts
from cedos.session.protocol.sending.in_flight import PathFlight
from cedos.session.protocol.sending.sender import Sender

NO_DEADLINE: Final = float("inf")
_MOST_DUE: Final = 64


class Control:
    """`due` holds frames for whichever path is asked first."""

    def __init__(
        self, sender: Sender, receiver: Receiver, terms: KeepAliveTerms, events: list[Event]
    ) -> None:
        self.state = SessionState.OPEN
        self.failure: Failed | None = None
        self.terms = terms
        self.closing = CloseHandshake()
        self.due: deque[bytes] = deque()
        self.wish: tuple[int, float] | None = None  # bytes, deadline
        self._sender = sender
        self._receiver = receiver
        self._events = events
        self._pings: dict[tuple[int, int], float] = {}
        self.handlers: dict[type[Any], Callable[[PathFlight, Any, float], None]] = {
            f.Abort: self._on_abort,
            f.Close: self._on_close,
            f.Closed: self._on_closed,
            f.Deadline: self._on_deadline,
            f.KeepAlive: self._on_keep_alive,
            f.PathSays: self._on_path_says,
            f.Ping: self._on_ping,
            f.Pong: self.on_pong,
        }

    # Said by us

    def propose_keep_alive(self, seconds: int) -> None:
        self.terms.propose(seconds)
        self.due.append(_keep_alive(self.terms.proposed))

    def set_wish(self, expected_bytes: int, deadline_at_s: float, now: float) -> None:
        self.wish = (expected_bytes, deadline_at_s)
        self.due.append(self._wish(now))

    def ping(self, path: PathFlight, token: int, pad_bytes: int, now: float) -> None:
        self._pings[path.state.path_id, token] = now
        path.control.append(packing.ping(token, pad_bytes))

    def path_lost(self, path_id: int) -> None:
        self._pings = {key: at_s for key, at_s in self._pings.items() if key[0] != path_id}

    def close(self) -> None:
        self.state = SessionState.CLOSING
        self.closing.asked = True
        self.due.append(self._close())

    def fail(self, why: str, *, by_peer: bool) -> None:
        """The first reason counts."""
        if self.failure is None and self.state is not SessionState.FINISHED:
            self.state = SessionState.FAILED
            sender = self._sender
            self.failure = Failed(why, by_peer, sender.acknowledged_bytes)
            self._events.append(self.failure)
            self._sender.forget()

    def ended_without_us(self) -> bool:
        """The peer is gone: whether that is how it should be, since it had all and told us all."""
        closing = self.closing
        self.closing.confirmed = (
            closing.asked and closing.answered and self._sender.everything_acknowledged()
        )
        self._check_finished()
        return self.state is SessionState.FINISHED

    def statement(self, path: PathFlight, now: float) -> list[bytes]:
        """All that holds now and that a new path's other end might have missed."""
        frames = [path_says(path)]
        if self.terms.proposed is not None:
            frames.append(_keep_alive(self.terms.proposed))
        if self.terms.theirs is not None:
            frames.append(_keep_alive(self.terms.theirs))
        if self.wish is not None:
            frames.append(self._wish(now))
        if self.closing.asked:
            frames.append(self._close())
        if self.closing.answered:
            frames.append(packing.closed())
        return frames

    def _wish(self, now: float) -> bytes:
        expected, at_s = self.wish or (0, NO_DEADLINE)
        left_ms = 0 if at_s == NO_DEADLINE else max(1, int((at_s - now) * 1000))
        return packing.deadline(expected, min(left_ms, packing.MAX_POSITION - 1))

    def _close(self) -> bytes:
        return packing.close(self._sender.stream.written, self._sender.next_irob)

    # Said by the peer

    def check_close(self) -> None:
        closing, receiver = self.closing, self._receiver
        if closing.theirs is None or closing.answered:
            return
        closing.check(receiver.stream.received.top, receiver.irobs.top)
        if closing.complete(receiver.stream.received.floor, receiver.irobs.floor):
            closing.answered = True
            self.due.append(packing.closed())
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
        if self.terms.receive(frame):
            self._events.append(KeepAliveAgreed(self.terms.seconds))
        if not frame.agreed and len(self.due) < _MOST_DUE:
            self.due.append(_keep_alive(self.terms.theirs))

    def _on_deadline(self, _path: PathFlight, frame: f.Deadline, now: float) -> None:
        at_s = now + frame.milliseconds / 1000 if frame.milliseconds else NO_DEADLINE
        self._events.append(PeerWishes(frame.expected_bytes, at_s))

    def _on_path_says(self, path: PathFlight, frame: f.PathSays, _now: float) -> None:
        peer = PathFacts(
            kind=packing.KINDS[frame.kind],
            metered=frame.metered,
            rtt_s=frame.rtt_us / 1e6 if frame.rtt_us else None,
            rate_bps=float(frame.rate_bps) if frame.rate_bps else None,
            loss=frame.loss_ppm / 1e6,
        )
        path.allow_there(frame.allowed, peer)

    def _on_ping(self, path: PathFlight, frame: f.Ping, _now: float) -> None:
        if len(path.control) < _MOST_DUE:  # whoever asks faster than answers leave gets fewer
            path.control.append(packing.pong(frame.token))

    def on_pong(self, path: PathFlight, frame: f.Pong, now: float) -> None:
        path_id = path.state.path_id
        asked = self._pings.pop((path_id, frame.token), None)
        if asked is not None:
            self._events.append(Ponged(path_id, frame.token, now - asked))


def path_says(path: PathFlight) -> bytes:
    facts = path.state.facts
    return packing.path_says(
        f.PathSays(
            packing.KINDS.index(facts.kind),
            facts.metered,
            path.allowed_here,
            min(int((facts.rtt_s or 0.0) * 1e6), 2**32 - 1),
            int(facts.rate_bps or 0),
            int(min(max(facts.loss, 0.0), 1.0) * 1e6),
        )
    )


def _keep_alive(frame: f.KeepAlive | None) -> bytes:
    assert frame is not None
    return packing.keep_alive(frame.agreed, frame.serial, frame.seconds)
