"""Frames as bytes: back to back in a record, integers unsigned and big-endian (docs/session-protocol.md).

Small messages travel in a table (`Messages`): one frame, many IROBs, because a frame of its own for
each would cost more than the message.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from msgspec.structs import astuple

from cedos.model import NetworkKind
from cedos.session.protocol import frames as f
from cedos.session.protocol.frames import Order, Space

# The most plaintext of a record. Its fixed costs are small then.
RECORD_BYTES: Final = 262_144

# Offsets and IROB ids stay below this. The bounds are checked by the receiver, so that no frame makes it
# hold or compute much.
MAX_POSITION: Final = 1 << 62

MAX_FRAMES: Final = 16_384  # of a record; the shortest frames with data have 16 bytes
# Beyond the first ones a record's frames have so many bytes on average. Those of one byte cost as much
# time as others, and a sender queues at most 64 of them.
FIRST_FRAMES, LEAST_FRAME_BYTES = 128, 8
MAX_DEPENDENCIES: Final = 256
MAX_MESSAGES: Final = 8_192
MAX_RANGES: Final = 1_024
MAX_REASON_BYTES: Final = 200
MAX_PAD_BYTES: Final = 16_384
MAX_KEEP_ALIVE_S: Final = 366 * 86_400
MAX_LIFETIME_MS: Final = 60_000

# The types on the wire; those of `FIXED` fill the gaps.
K_STREAM, K_EXTENT, K_MESSAGES, K_ACK, K_PING, K_ABORT, K_DATAGRAM = 1, 2, 3, 5, 12, 16, 17
F_END: Final = 1

STREAM: Final = struct.Struct(">BBQI")
EXTENT: Final = struct.Struct(">BBBBHQQI")
MESSAGES: Final = struct.Struct(">BBBHHQ")
_ONE_MESSAGE: Final = struct.Struct(">BBBHHQH")  # the most frequent one in one go
ACK: Final = struct.Struct(">BBQQH")
PING: Final = struct.Struct(">BQH")
ABORT: Final = struct.Struct(">BBH")
DATAGRAM: Final = struct.Struct(">BIIIHH")

# The kinds of networks. The index is the number on the wire.
KINDS: Final = (NetworkKind.ETHERNET, NetworkKind.WIFI, NetworkKind.CELLULAR, NetworkKind.HELPER)


class FixedLayout(NamedTuple):
    """The bytes of a frame without a payload: its type, then its fields, each from 0 to its bound."""

    kind: int
    layout: struct.Struct
    frame: Callable[..., f.Frame]
    bounds: tuple[int, ...]


_POSITION, _U32, _U64 = MAX_POSITION - 1, 2**32 - 1, 2**64 - 1

FIXED: Final[dict[type, FixedLayout]] = {
    frame: FixedLayout(kind, struct.Struct(layout), frame, bounds)
    for kind, frame, layout, bounds in (
        (6, f.Window, ">BQQI", (_POSITION, _POSITION, _U32)),
        (7, f.Sync, ">BQQQQ", (_POSITION, _POSITION, _POSITION, _POSITION)),
        (8, f.Ask, ">B", ()),
        (9, f.KeepAlive, ">BBII", (1, _U32, MAX_KEEP_ALIVE_S)),
        # Kind, metered, mask of labels, round trip, rate, losses in a million, address.
        (11, f.PathSays, ">BBBBIQII", (len(KINDS) - 1, 1, 15, _U32, _POSITION, 1_000_000, _U32)),
        (13, f.Pong, ">BQ", (_U64,)),
        (14, f.Close, ">BQQ", (_POSITION, _POSITION)),
        (15, f.Closed, ">B", ()),
    )
}


def pack_fixed(frame: f.Frame) -> bytes:
    """Return a frame of `FIXED` as bytes."""
    made = FIXED[type(frame)]
    return made.layout.pack(made.kind, *astuple(frame))


# Frames with a payload. It is not copied: the caller sends it right behind the returned header.


def stream_header(offset: int, length: int, end: bool) -> bytes:
    return STREAM.pack(K_STREAM, F_END if end else 0, offset, length)


def extent_header(
    irob: int, rank: int, order: Order, after: Sequence[int], offset: int, length: int, end: bool
) -> bytes:
    """Return the header of an extent of an IROB.

    `after`: ids lower than `irob`, with `Order.LISTED` only.
    """
    head = EXTENT.pack(K_EXTENT, F_END if end else 0, rank, order, len(after), irob, offset, length)
    return head + _distances(irob, after) if after else head


def messages_header(
    first: int, rank: int, order: Order, after: Sequence[int], lengths: Sequence[int]
) -> bytes:
    count = len(lengths)
    if count == 1 and not after:
        return _ONE_MESSAGE.pack(K_MESSAGES, rank, order, 0, 1, first, lengths[0])
    head = MESSAGES.pack(K_MESSAGES, rank, order, len(after), count, first)
    distances = _distances(first, after) if after else b""
    return head + distances + struct.pack(f">{count}H", *lengths)


def one_message(irob: int, rank: int, order: Order, payload: bytes) -> bytes:
    return _ONE_MESSAGE.pack(K_MESSAGES, rank, order, 0, 1, irob, len(payload)) + payload


# Dependencies are lower ids: their distances need 4 bytes each instead of 8.
def _distances(irob: int, after: Sequence[int]) -> bytes:
    return struct.pack(f">{len(after)}I", *[irob - each for each in after])


def ack(space: Space, irob: int, floor: int, ranges: Sequence[tuple[int, int]]) -> bytes:
    """Return an Ack; `ranges` ascend, do not touch, and lie beyond `floor`."""
    flat = [edge for pair in ranges for edge in pair]
    return ACK.pack(K_ACK, space, irob, floor, len(ranges)) + struct.pack(f">{len(flat)}Q", *flat)


def ping(token: int, pad_bytes: int = 0) -> bytes:
    return PING.pack(K_PING, token, pad_bytes) + bytes(pad_bytes)


def abort(code: int, reason: str) -> bytes:
    """Return an Abort; a reason that is too long is cut."""
    # `errors="ignore"` drops a character that the cut has split.
    text = reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore").encode()
    return ABORT.pack(K_ABORT, code, len(text)) + text


def datagram_header(epoch: int, number: int, sent_ms: int, lifetime_ms: int, length: int) -> bytes:
    return DATAGRAM.pack(K_DATAGRAM, epoch, number, sent_ms, lifetime_ms, length)
