"""An idle session as a short record, and back. Pure.

A session is idle if nothing waits: all data was acknowledged, and all that arrived was read. Its record
has positions, what both ends may still send, and the keep-alive. The record of a session with a path
is for the case that its program is killed.
"""

import struct
from dataclasses import astuple, dataclass
from typing import Final

from cedos.session.protocol.life import SessionLimits, SessionState
from cedos.session.protocol.room import (
    INITIAL_IROB_BYTES,
    INITIAL_IROB_CREDIT,
    INITIAL_STREAM_BYTES,
    Credit,
    ReplayMemory,
)
from cedos.session.protocol.schedulers.interface import Scheduler
from cedos.session.protocol.session import Session

_PACKED: Final = struct.Struct(">QQQQQQIIIIIIIBB")
IDLE_BYTES: Final = _PACKED.size
_MOST: Final = 2**32 - 1
_ENDED_HERE, _ENDED_THERE = 1, 2


@dataclass(frozen=True, slots=True)
class IdleRecord:
    """The positions of an idle session. They count the end of the stream as one byte.

    `*_room`: the bytes that may be sent beyond them. `granted_*`: what the peer was granted, and may have
    begun to use. `absent_unix_s`: when the last path was lost.
    """

    stream_sent: int
    irobs_sent: int  # the next id
    stream_received: int
    irobs_received: int
    reserved: int
    delivered: int
    stream_room: int
    irob_room: int
    granted_stream_room: int
    granted_irob_room: int
    irob_bytes: int
    keep_alive_s: int
    absent_unix_s: int
    rank: int
    ended: int

    def to_bytes(self) -> bytes:
        return _PACKED.pack(*astuple(self))

    @classmethod
    def from_bytes(cls, packed: bytes) -> "IdleRecord":
        """Return the record in `IDLE_BYTES` bytes; any bytes are some record."""
        return cls(*_PACKED.unpack(packed))

    @classmethod
    def at_the_beginning(cls, keep_alive_s: int, unix_s: float) -> "IdleRecord":
        windows = (INITIAL_STREAM_BYTES, INITIAL_IROB_CREDIT)
        return cls(
            0,
            1,
            0,
            1,
            0,
            0,
            *windows,
            *windows,
            INITIAL_IROB_BYTES,
            keep_alive_s,
            int(unix_s),
            0,
            0,
        )

    @property
    def expires_unix_s(self) -> int:
        return self.absent_unix_s + self.keep_alive_s


def pack(session: Session, now: float, unix_s: float) -> IdleRecord | None:
    """Return a session's record; None: it is not idle, or not open. The session is not changed.

    To put it to sleep, forget it. `unix_s` is the same instant as `now`: the session's clock does not
    survive a restart.
    """
    sender, receiver, control = session.sender, session.receiver, session.control
    idle = (
        control.state is SessionState.OPEN
        and control.closing.theirs is None
        and control.terms.proposed is None
        and not session.thunks
        and not session.pending_events
        and sender.everything_acknowledged()
        and session.in_flight.idle
        and receiver.idle
    )
    if not idle:
        return None
    # A session with a path counts as absent from now on: its record is used only after a crash.
    absent_s = 0.0 if session.absent_since_s is None else now - session.absent_since_s
    stream, granted_stream, granted_credit = sender.stream, *receiver.grants()
    return IdleRecord(
        stream.stop,
        sender.next_irob,
        receiver.stream.received.floor,
        receiver.irobs.floor,
        sender.credit.reserved,
        receiver.delivered_cost,
        # These fields have 32 bits; less room than there is does no harm.
        min(max(stream.limit - stream.written, 0), _MOST),
        min(sender.credit.credit - sender.credit.reserved, _MOST),
        granted_stream,
        granted_credit,
        min(sender.credit.irob_bytes, _MOST),
        control.terms.seconds,
        int(max(unix_s - absent_s, 0)),
        stream.rank,
        _ENDED_HERE * stream.ended + _ENDED_THERE * receiver.stream.complete,
    )


def unpack_session(
    idle: IdleRecord,
    scheduler: Scheduler,
    now: float,
    unix_s: float,
    *,
    limits: SessionLimits,
    memory: ReplayMemory | None = None,
) -> Session:
    """Return the session of a record, without a path, and absent for as long as it was."""
    session = Session(
        scheduler,
        now,
        limits=limits,
        memory=memory,
        keep_alive_s=idle.keep_alive_s,
        absent_since_s=now - max(0.0, unix_s - idle.absent_unix_s),
    )
    # Amounts of credit count from the session's beginning, so they go on where the record ends.
    credit = Credit(
        idle.reserved + idle.irob_room, idle.irob_bytes, reserved=idle.reserved, window_known=True
    )
    session.sender.restore(
        idle.stream_sent,
        idle.stream_room,
        idle.rank & 3,
        idle.irobs_sent,
        credit,
        ended=bool(idle.ended & _ENDED_HERE),
    )
    session.receiver.restore(
        idle.stream_received,
        idle.irobs_received,
        idle.delivered,
        (idle.granted_stream_room, idle.granted_irob_room),
        ended=bool(idle.ended & _ENDED_THERE),
    )
    # The record may be older than the last data: send nothing new before the peer's Sync.
    session.in_flight.unheard = True
    return session
