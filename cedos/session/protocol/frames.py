"""The frames of a record as data; `packing` and `unpacking` turn them into bytes and back.

Offsets count bytes of a stream, ids count IROBs from 1. An extent that carries the end of its stream
covers one position more than it has bytes: the end is acknowledged, lost and sent again like a byte.
"""

from enum import IntEnum
from typing import TypeAlias

from msgspec import Struct

# Immutable bytes.
Chunk: TypeAlias = bytes | memoryview


class Order(IntEnum):
    """The condition on which an IROB is delivered (dissertation, 2.2.4)."""

    FREE = 0
    AFTER_ALL = 1  # every IROB with a lower id: a plain send, TCP's order
    LISTED = 2


class Space(IntEnum):
    STREAM = 0  # bytes of stream 0
    IROBS = 1  # ids of IROBs received whole
    EXTENTS = 2  # bytes of one IROB


class StreamData(Struct, frozen=True, gc=False):
    """An extent of stream 0; `end`: nothing follows its last byte."""

    offset: int
    end: bool
    payload: memoryview


class Extent(Struct, frozen=True, gc=False):
    """An extent of a large IROB. Each one names the label and the order: none has to come first."""

    irob: int
    rank: int
    order: Order
    after: tuple[int, ...]
    offset: int
    end: bool
    payload: memoryview


class Messages(Struct, frozen=True, gc=False):
    """Small whole IROBs with consecutive ids from `first`, of one label and order."""

    first: int
    rank: int
    order: Order
    after: tuple[int, ...]
    payloads: list[bytes]


class Ack(Struct, frozen=True, gc=False):
    """An acknowledgement of all positions below `floor` and of the half-open `ranges` beyond.

    `irob`: with `EXTENTS` only.
    """

    space: Space
    irob: int
    floor: int
    ranges: tuple[tuple[int, int], ...]


class Window(Struct, frozen=True, gc=False):
    """The first forbidden offset of stream 0, and the credit for IROBs since the beginning.

    Each IROB costs its bytes and `IROB_COST`.
    """

    stream_limit: int
    irob_credit: int
    irob_bytes: int


class Sync(Struct, frozen=True, gc=False):
    """The sender's positions: it has dropped all below `*_kept`, and received all below `*_received`."""

    stream_kept: int
    irobs_kept: int
    stream_received: int
    irobs_received: int


class Ask(Struct, frozen=True, gc=False):
    """A request for a Sync on this path."""


class KeepAlive(Struct, frozen=True, gc=False):
    """The seconds that the session outlives its last path (DTP, 3.2): proposed, or agreed."""

    agreed: bool
    serial: int
    seconds: int


class PathSays(Struct, frozen=True, gc=False):
    """The sender's view of this path, 0: unknown; `allowed`: the mask of ranks, in both directions.

    `source`: the sender's own IPv4 address there, where that leads by a helper; else 0.
    """

    kind: int
    metered: bool
    allowed: int
    rtt_us: int
    rate_bps: int
    loss_ppm: int
    source: int = 0


class Ping(Struct, frozen=True, gc=False):
    """A request for a Pong with the same token; `pad_bytes` of zeros help to measure a rate."""

    token: int
    pad_bytes: int


class Pong(Struct, frozen=True, gc=False):
    token: int


class Close(Struct, frozen=True, gc=False):
    """The end of the sender's data: stream 0 up to `stream_end`, IROBs below `irob_end`."""

    stream_end: int
    irob_end: int


class Closed(Struct, frozen=True, gc=False):
    """The answer to Close, once everything it names has been received."""


class Datagram(Struct, frozen=True, gc=False):
    """A datagram: `number` of this `epoch`, by the sender's clock, good for `lifetime_ms`."""

    epoch: int
    number: int
    sent_ms: int
    lifetime_ms: int
    payload: bytes


class Abort(Struct, frozen=True, gc=False):
    code: int
    reason: str


Frame: TypeAlias = (
    StreamData
    | Extent
    | Messages
    | Ack
    | Window
    | Sync
    | Ask
    | KeepAlive
    | PathSays
    | Ping
    | Pong
    | Close
    | Closed
    | Abort
    | Datagram
)
