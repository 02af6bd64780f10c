"""What an application does with a session: its stream, its IROBs, its events."""

from typing import Final

from cedos.errors import SessionError
from cedos.session.protocol.control import NO_DEADLINE, Control
from cedos.session.protocol.events import Event, Writable
from cedos.session.protocol.frames.frames import Order
from cedos.session.protocol.life import KeepAliveTerms, State
from cedos.session.protocol.receiving.delivery import Run
from cedos.session.protocol.receiving.receiver import Receiver
from cedos.session.protocol.sending.outgoing import Fetch
from cedos.session.protocol.sending.sender import Sender
from cedos.session.protocol.sending.thunks import DEFERRED, Thunks

ALL: Final = None
"""As `after`: an IROB that waits for all that came before it, as a plain send does."""


class ApplicationSide:
    """The half of a session that faces the application; the other half is `core.Session`."""

    def __init__(self, sender: Sender, receiver: Receiver, terms: KeepAliveTerms) -> None:
        self.sender = sender
        self.receiver = receiver
        self.happened: list[Event] = []
        self.control = Control(sender, receiver, terms, self.happened)
        self.thunks = Thunks()

    # The stream

    def write(self, data: bytes) -> int:
        """Appends to the stream what there is room for; how many bytes. `Writable` follows if not all."""
        self._check_open()
        return self.sender.write(data)

    def write_source(self, fetch: Fetch, length: int) -> None:
        """Appends `length` bytes; `fetch(offset, count)` gives them whenever they are sent."""
        self._check_open()
        self.sender.write_source(fetch, length)

    def finish(self) -> None:
        """Ends our half of the stream, as TCP's shutdown does."""
        self._check_open()
        self.sender.finish()

    def read(self, limit_bytes: int = 1 << 30) -> bytes | memoryview:
        """The stream's next bytes, at most so many; empty: none now, or `at_eof`."""
        return self.receiver.read(limit_bytes)

    @property
    def readable_bytes(self) -> int:
        """Bytes of the stream that can be read now."""
        return self.receiver.stream.ready_bytes

    @property
    def held_bytes(self) -> int:
        """What is kept in memory: sent and not acknowledged, received and not taken."""
        return self.sender.held_bytes + self.receiver.held_bytes

    @property
    def at_eof(self) -> bool:
        """Whether the peer has ended its half of the stream and all of it was read."""
        return self.receiver.at_end

    @property
    def acknowledged_bytes(self) -> int:
        """How much of our half of the stream the peer has for certain."""
        return min(self.sender.stream.acked.floor, self.sender.stream.written)

    # IROBs

    def send(
        self,
        data: bytes,
        rank: int,
        *,
        after: tuple[int, ...] | None = ALL,
        thunk: int | None = None,
    ) -> int:
        """Sends an IROB, whole; its id, `NO_ROOM` (nothing taken) or `DEFERRED` (the thunk will be told).

        `after`: `ALL` that came before, the ids of some, or `()` for none.
        """
        self._check_open()
        if thunk is not None and self._deferred(rank, thunk):
            return DEFERRED
        return self.sender.send(data, rank, _order(after), after or ())

    def send_many(self, many: list[bytes], rank: int, *, ordered: bool = True) -> range:
        """Sends small IROBs, as many as there is room for; their ids."""
        self._check_open()
        first = self.sender.next_irob
        order = Order.AFTER_ALL if ordered else Order.FREE
        return range(first, first + self.sender.send_many(many, rank, order))

    def begin(
        self, rank: int, *, after: tuple[int, ...] | None = ALL, thunk: int | None = None
    ) -> int:
        """Begins an IROB; its id, `NO_ROOM` or `DEFERRED`."""
        self._check_open()
        if thunk is not None and self._deferred(rank, thunk):
            return DEFERRED
        return self.sender.begin(rank, _order(after), after or ())

    def append(self, irob: int, data: bytes) -> int:
        """Appends to an open IROB what there is room for; how many bytes."""
        self._check_open()
        return self.sender.append(irob, data)

    def end(self, irob: int) -> None:
        """Ends an open IROB: the peer can deliver it."""
        self._check_open()
        self.sender.end(irob)

    def abandon(self, irob: int) -> None:
        """Takes an open IROB back: the peer will never deliver it."""
        self._check_open()
        self.sender.abandon(irob)

    def cancel_thunk(self, token: int) -> bool:
        """The deferred send is not wanted any more; False if it was told already."""
        return self.thunks.cancel(token)

    def receive_run(self, limit: int = 1 << 30) -> Run | None:
        """The next IROBs in order, at most `limit`, all of one label and with consecutive ids."""
        return self.receiver.pop(limit)

    @property
    def receivable(self) -> int:
        """How many IROBs can be received now."""
        return self.receiver.delivery.count

    def keep_alive(self, seconds: int) -> None:
        """Proposes how long the session outlives its last path; the peer may agree to less."""
        self.control.propose_keep_alive(seconds)

    def wish(self, expected_bytes: int, deadline_at_s: float = NO_DEADLINE, *, now: float) -> None:
        """Tells the peer how much is expected of it and until when (0: unknown)."""
        self.control.set_wish(expected_bytes, deadline_at_s, now)

    @property
    def state(self) -> State:
        """Where the session is in its life."""
        return self.control.state

    def events(self) -> list[Event]:
        """What happened since the last time."""
        events = self.happened[:]
        self.happened.clear()
        return events

    def check_writable(self) -> None:
        """Tells whoever found no room that there is some again: not one by one."""
        if self.sender.refused and self.sender.has_room():
            self.sender.refused = False
            self.happened.append(Writable())

    def woken(self) -> None:
        """Replay memory that other sessions used is free again."""
        self.sender.refused = False
        self.happened.append(Writable())

    def appropriate(self, rank: int) -> bool:
        """Whether the label has a network it should be sent on now."""
        raise NotImplementedError

    def _deferred(self, rank: int, thunk: int) -> bool:
        if self.appropriate(rank):
            return False
        self.thunks.register(thunk, rank)
        return True

    def _check_open(self) -> None:
        if self.control.state is not State.OPEN:
            failure = self.control.failure
            raise SessionError(failure.why if failure else "the session has been closed")


def _order(after: tuple[int, ...] | None) -> Order:
    if after is None:
        return Order.AFTER_ALL
    return Order.LISTED if after else Order.FREE
