"""What the receiving half of a living session hands over to another process."""

from msgspec import Struct

from cedos.session.protocol.frames.frames import Order


class KeptRun(Struct, array_like=True):
    """Whole IROBs that the application has not taken; `after`: those that are missing before it may."""

    first: int
    rank: int
    order: Order
    after: tuple[int, ...]
    payloads: list[bytes]


class KeptPartial(Struct, array_like=True):
    """An IROB of which something is missing: its parts by their offsets, and its end where that came."""

    irob: int
    rank: int
    order: Order
    after: tuple[int, ...]
    parts: list[tuple[int, bytes]]
    end: int | None


class KeptReceiving(Struct, array_like=True):
    """Positions of the stream, which is idle; then those of the IROBs, and what came of them."""

    stream_stop: int
    stream_ended: bool
    stream_granted: int
    floor: int
    beyond: list[tuple[int, int]]
    delivered_floor: int
    delivered_beyond: list[tuple[int, int]]
    delivered_cost: int
    credit_granted: int
    runs: list[KeptRun]
    partial: list[KeptPartial]
