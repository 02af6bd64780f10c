"""A living session as bytes, and back: for a program that hands its sessions over to its successor. Pure.

Unlike an idle one (`packed`) it may have messages on the way in both directions. Its paths are not handed
over: they are lost, and the peer comes back on new ones, where both ends say what they have.
"""

from typing import Final

import msgspec
from msgspec import Struct

from cedos.session.protocol.life import SessionState
from cedos.session.protocol.receiving.kept import KeptReceiving
from cedos.session.protocol.schedulers.interface import Scheduler
from cedos.session.protocol.sending.kept import KeptSending
from cedos.session.protocol.sending.replay_memory import ReplayMemory
from cedos.session.protocol.session import Session
from cedos.session.protocol.session_limits import SessionLimits

_VERSION: Final = 1


class _KeptSession(Struct, array_like=True):
    version: int
    keep_alive_s: int
    sending: KeptSending
    receiving: KeptReceiving


def pack_living(session: Session) -> bytes | None:
    """None for one that ends, whose stream is not idle, or with what only its own program can go on with.

    It is not changed, and must not say anything any more.
    """
    control = session.control
    settled = (
        control.state is SessionState.OPEN
        and control.closing.theirs is None
        and control.terms.proposed is None
        and control.wish is None
        and not len(session.thunks)
    )
    if not settled:
        return None
    sending = session.sender.keep(session.in_flight.pieces())
    receiving = session.receiver.keep()
    if sending is None or receiving is None:
        return None
    return msgspec.msgpack.encode(_KeptSession(_VERSION, control.terms.seconds, sending, receiving))


def unpack_living(
    packed: bytes,
    scheduler: Scheduler,
    now: float,
    *,
    limits: SessionLimits,
    memory: ReplayMemory | None = None,
) -> Session:
    """Without a path from `now` on. ValueError: not made by this version."""
    kept = msgspec.msgpack.decode(packed, type=_KeptSession)
    if kept.version != _VERSION:
        raise ValueError(f"a session kept by version {kept.version}; this is {_VERSION}")
    session = Session(
        scheduler,
        now,
        limits=limits,
        memory=memory,
        keep_alive_s=kept.keep_alive_s,
        absent_since_s=now,
    )
    session.receiver.take_up(kept.receiving)
    session.in_flight.hold(session.sender.take_up(kept.sending))
    return session
