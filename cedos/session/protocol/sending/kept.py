"""What the sending half of a living session hands over to another process."""

from msgspec import Struct

from cedos.session.protocol.frames.frames import Order


class KeptIrob(Struct, array_like=True):
    """A whole IROB that the peer lacks, or parts of it.

    `data` begins at `start`; of a `small` one, which is never cut, that is 0. Positions below `fresh`
    were sent, those in `acked` arrived.
    """

    irob: int
    rank: int
    order: Order
    after: tuple[int, ...]
    small: bool
    data: bytes
    start: int = 0
    fresh: int = 0
    acked: list[tuple[int, int]] = []


class KeptSending(Struct, array_like=True):
    """Positions of the stream, which is idle, as in `IdleRecord`; then those of the IROBs."""

    stream_stop: int
    stream_room: int
    stream_rank: int
    stream_ended: bool
    next_irob: int
    floor: int
    beyond: list[tuple[int, int]]
    credit: int
    irob_bytes: int
    reserved: int
    window_known: bool
    outgoing: list[KeptIrob]
