"""Messages with labels (IROBs): what a connection can do beside its stream (dissertation, 2.2)."""

import itertools
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from cedos.model import Label
from cedos.session.io.flow import Flow
from cedos.session.io.waiter import Waiter
from cedos.session.protocol.schedulers.interface import LABELS, rank_of
from cedos.session.protocol.sending.sender import NO_ROOM
from cedos.session.protocol.sending.thunks import DEFERRED
from cedos.session.protocol.session import ALL, Session

STREAM_LABEL: Final = Label()


class Message(NamedTuple):
    """A whole message (IROB) from the peer; answers usually have its label."""

    irob: int
    label: Label
    data: bytes


class Labelled:
    """The half of a connection that has to do with messages; `connection.Connection` is the whole."""

    flow: Flow

    def __init__(self, core: Session) -> None:
        self._core = core
        self._peer_closed = False
        self._sent_label, self._sent_rank = STREAM_LABEL, rank_of(STREAM_LABEL)  # the last ones
        self._thunks: dict[int, Callable[[], None]] = {}
        self._tokens = itertools.count(1)

    @property
    def peer_closed(self) -> bool:
        """Whether the peer has closed, and all it ever sent is here."""
        return self._peer_closed

    async def send(
        self,
        data: bytes,
        label: Label = STREAM_LABEL,
        *,
        after: tuple[int, ...] | None = ALL,
        thunk: Callable[[], None] | None = None,
    ) -> int | None:
        """Sends a message; waits for room in replay memory.

        Args:
            data: the whole message.
            label: what it is to the person who waits for it, or does not.
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
        token = self._keep(thunk)
        while True:
            self._check()
            irob = self._core.send(data, rank, after=after, thunk=token)
            if irob == DEFERRED:
                return None
            if irob != NO_ROOM:
                self._thunks.pop(token or 0, None)
                self._sent(rank)
                return irob
            self.flow.pump_soon()
            await self._something()

    def send_now(self, data: bytes, label: Label = STREAM_LABEL) -> int:
        """As `send`, but at once or not at all; its id, 0 where there is no room now."""
        if label is not self._sent_label:
            self._sent_rank, self._sent_label = rank_of(label), label
        rank = self._sent_rank
        self._check()
        irob = self.flow.express(data, rank)
        if not irob:
            irob = self._core.send(data, rank)
            if irob:
                self._sent(rank)
        return irob

    async def send_many(
        self, many: Sequence[bytes], label: Label = STREAM_LABEL, *, ordered: bool = True
    ) -> None:
        """Sends small messages together: one record holds thousands of them."""
        rank = rank_of(label)
        left = list(many)
        while left:
            self._check()
            taken = len(self._core.send_many(left, rank, ordered=ordered))
            if taken:
                self._sent(rank)
            left = left[taken:]
            if left:
                await self._something()

    async def begin(
        self,
        label: Label = STREAM_LABEL,
        *,
        after: tuple[int, ...] | None = ALL,
        thunk: Callable[[], None] | None = None,
    ) -> "Irob | None":
        """Begins a message whose bytes follow; None where the thunk was kept instead."""
        rank = rank_of(label)
        token = self._keep(thunk)
        while True:
            self._check()
            irob = self._core.begin(rank, after=after, thunk=token)
            if irob == DEFERRED:
                return None
            if irob != NO_ROOM:
                self._thunks.pop(token or 0, None)
                return Irob(self, irob, rank)
            await self._something()

    def cancel(self, thunk: Callable[[], None]) -> bool:
        """A thunk is not to be called any more; False if it was called already."""
        for token in [token for token, each in self._thunks.items() if each == thunk]:
            del self._thunks[token]
            return self._core.cancel_thunk(token)
        return False

    async def receive(self) -> Message | None:
        """The next whole message, the most urgent first; None when the peer has closed.

        Raises:
            SessionError: the session has ended before the peer closed.
        """
        while True:
            message = self.receive_now()
            if message is not None or self._peer_closed:
                return message
            self._check()
            await self._something()

    def receive_now(self) -> Message | None:
        """As `receive`, but None too where none is there yet."""
        run = self._core.receive_run(1)
        if run is None:
            return None
        self._take_back()
        return Message(run.first, LABELS[run.rank], run.payloads[0])

    async def receive_many(self, most: int = 1024) -> list[Message]:
        """At least one message and at most so many, all of one label; empty when the peer has closed."""
        while True:
            messages = self.receive_many_now(most)
            if messages or self._peer_closed:
                return messages
            self._check()
            await self._something()

    def receive_many_now(self, most: int = 1024) -> list[Message]:
        """As `receive_many`, but empty too where none is there yet."""
        run = self._core.receive_run(most)
        if run is None:
            return []
        self._take_back()
        label = LABELS[run.rank]
        return [Message(irob, label, data) for irob, data in enumerate(run.payloads, run.first)]

    def _keep(self, thunk: Callable[[], None] | None) -> int | None:
        if thunk is None:
            return None
        token = next(self._tokens)
        self._thunks[token] = thunk
        return token

    def _check(self) -> None:
        raise NotImplementedError

    def _something(self) -> Waiter:
        raise NotImplementedError

    def _sent(self, rank: int) -> None:
        raise NotImplementedError

    def _take_back(self) -> None:
        raise NotImplementedError


class Irob:
    """A message that is being sent piece by piece."""

    def __init__(self, connection: Labelled, irob: int, rank: int) -> None:
        self._connection = connection
        self.irob = irob
        self._rank = rank

    async def send(self, data: bytes) -> None:
        """Its next bytes; they may be under way before it ends."""
        while data:
            self._connection._check()
            taken = self._connection._core.append(self.irob, data)
            self._connection._sent(self._rank)
            data = data[taken:]
            if data:
                await self._connection._something()

    def end(self) -> None:
        """Nothing more follows: the peer may have it delivered."""
        self._connection._core.end(self.irob)
        self._connection._sent(self._rank)

    def abandon(self) -> None:
        """It will never be delivered, and nothing waits for it."""
        self._connection._core.abandon(self.irob)
        self._connection.flow.pump_soon()
