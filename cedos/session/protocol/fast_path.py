"""The fast path of a small message: with one path and no other data the scheduler is not asked.

The record is made at once out of the one message, and the accounts are kept while it is on its way; in
all other cases the message goes through its label's send queue.
"""

from typing import Final

from cedos.session.protocol import packing
from cedos.session.protocol.frames import Order
from cedos.session.protocol.in_flight import InFlight, PathFlight
from cedos.session.protocol.life import Control, SessionState
from cedos.session.protocol.receiver import DelayedAcks
from cedos.session.protocol.schedulers.interface import FOREGROUND_RANKS, Backlog, Scheduler
from cedos.session.protocol.send_queues import MessageBatch
from cedos.session.protocol.sender import SMALL_BYTES, Sender

_OPEN: Final = SessionState.OPEN
_ORDER: Final = Order.AFTER_ALL


class FastPath:
    """The check for the fast path, and the accounts of a message that takes it."""

    __slots__ = ("_backlog", "_control", "_delayed_acks", "_in_flight", "_prompt", "_sender")

    def __init__(
        self,
        scheduler: Scheduler,
        sender: Sender,
        in_flight: InFlight,
        control: Control,
        delayed_acks: DelayedAcks,
        backlog: Backlog,
    ) -> None:
        self._prompt = scheduler.prompt
        self._sender = sender
        self._in_flight = in_flight
        self._control = control
        self._delayed_acks = delayed_acks
        self._backlog = backlog

    def path(self, size: int, rank: int) -> PathFlight | None:
        """Return the path on which an IROB of this size would go at once; None: use the send queues."""
        path = self._in_flight.only
        control, delayed_acks = self._control, self._delayed_acks
        # Nothing may be due before the message or beside it, and a scheduler would have no choice: one
        # path, no control frames, no acknowledgement, no other data, and room in flight.
        if (
            path is None
            or not self._prompt
            or rank not in FOREGROUND_RANKS
            or size > SMALL_BYTES
            or path.owes_statement
            or path.control
            or control.due
            or control.state is not _OPEN
            or delayed_acks.due
            or delayed_acks.along
            or not path.state.allowed >> rank & 1
            or self._sender.waits
            or self._in_flight.full
            or self._in_flight.unheard
        ):
            return None
        return path

    def send(self, data: bytes, rank: int) -> tuple[int, bytes] | None:
        """Return id and plaintext of a record that the path has to carry; None: there is no room.

        Call `sent` once the path has it.
        """
        irob = self._sender.take_id(len(data), rank)
        return (irob, packing.one_message(irob, rank, _ORDER, data)) if irob else None

    def on_sent(self, path: PathFlight, irob: int, data: bytes, rank: int, now: float) -> None:
        """Note that the record was sent; if its path has ended, the message waits for another path."""
        batch = MessageBatch(irob, rank, _ORDER, (), [data])
        # The path was lost, or another one came up, while the record was on its way to the path.
        if self._in_flight.only is not path:
            self._sender.send_queues[rank].batch(batch)
            return
        self._in_flight.on_sent(path, batch)
        state = path.state
        state.sent_bytes += batch.size
        state.last_sent_at_s = self._backlog.foreground_at_s = now
