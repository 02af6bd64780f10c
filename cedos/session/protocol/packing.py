"""Frames as bytes: back to back in a record, integers unsigned and big-endian (docs/session-protocol.md).

Small messages travel in a table (`Messages`): one frame, many IROBs, because a frame of its own for
each would cost more than the message.
"""

import struct
from collections.abc import Sequence
from typing import Final

from cedos.model import NetworkKind
from cedos.session.protocol.frames import Order, PathSays, Space, Sync

RECORD_BYTES: Final = 262_144
"""The most plaintext one record has: what is done once for each costs little then."""

MAX_POSITION: Final = 1 << 62
"""Offsets and IROB ids stay below this."""

MAX_DEPENDENCIES: Final = 256
MAX_MESSAGES: Final = 8_192
MAX_RANGES: Final = 1_024
MAX_REASON_BYTES: Final = 200
MAX_PAD_BYTES: Final = 16_384
MAX_KEEP_ALIVE_S: Final = 366 * 86_400
MAX_LIFETIME_MS: Final = 60_000

STREAM: Final = struct.Struct(">BBQI")
EXTENT: Final = struct.Struct(">BBBBHQQI")
MESSAGES: Final = struct.Struct(">BBBHHQ")
_ONE_MESSAGE: Final = struct.Struct(">BBBHHQH")  # the most frequent one in one go
ABANDON: Final = struct.Struct(">BQI")
ACK: Final = struct.Struct(">BBQQH")
WINDOW: Final = struct.Struct(">BQQI")
SYNC: Final = struct.Struct(">BQQQQ")
KEEP_ALIVE: Final = struct.Struct(">BBII")
DEADLINE: Final = struct.Struct(">BQQ")
PATH: Final = struct.Struct(">BBBBIQII")
PING: Final = struct.Struct(">BQH")
PONG: Final = struct.Struct(">BQ")
CLOSE: Final = struct.Struct(">BQQ")
ABORT: Final = struct.Struct(">BBH")
DATAGRAM: Final = struct.Struct(">BIIIHH")

(K_STREAM, K_EXTENT, K_MESSAGES, K_ABANDON, K_ACK, K_WINDOW, K_SYNC, K_ASK) = range(1, 9)
(K_KEEP_ALIVE, K_DEADLINE, K_PATH, K_PING, K_PONG, K_CLOSE, K_CLOSED, K_ABORT) = range(9, 17)
K_DATAGRAM: Final = 17
F_END: Final = 1

KINDS: Final = (
    NetworkKind.ETHERNET,
    NetworkKind.WIFI,
    NetworkKind.CELLULAR,
    NetworkKind.HELPER,
)
"""A network's kind is its index here."""


# Packing. Payloads are not copied: the caller sends them right behind the returned header.


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


def _distances(irob: int, after: Sequence[int]) -> bytes:
    return struct.pack(f">{len(after)}I", *[irob - each for each in after])


def abandon(first: int, count: int) -> bytes:
    return ABANDON.pack(K_ABANDON, first, count)


def ack(space: Space, irob: int, floor: int, ranges: Sequence[tuple[int, int]]) -> bytes:
    """Return an Ack; `ranges` ascend, do not touch, and lie beyond `floor`."""
    flat = [edge for pair in ranges for edge in pair]
    return ACK.pack(K_ACK, space, irob, floor, len(ranges)) + struct.pack(f">{len(flat)}Q", *flat)


def window(stream_limit: int, irob_credit: int, irob_bytes: int) -> bytes:
    return WINDOW.pack(K_WINDOW, stream_limit, irob_credit, irob_bytes)


def sync(frame: Sync) -> bytes:
    return SYNC.pack(
        K_SYNC,
        frame.stream_kept,
        frame.irobs_kept,
        frame.stream_received,
        frame.irobs_received,
    )


def ask() -> bytes:
    return bytes((K_ASK,))


def keep_alive(agreed: bool, serial: int, seconds: int) -> bytes:
    return KEEP_ALIVE.pack(K_KEEP_ALIVE, agreed, serial, seconds)


def deadline(expected_bytes: int, milliseconds: int) -> bytes:
    return DEADLINE.pack(K_DEADLINE, expected_bytes, milliseconds)


def path_says(frame: PathSays) -> bytes:
    return PATH.pack(
        K_PATH,
        frame.kind,
        frame.metered,
        frame.allowed,
        frame.rtt_us,
        frame.rate_bps,
        frame.loss_ppm,
        frame.source,
    )


def ping(token: int, pad_bytes: int = 0) -> bytes:
    return PING.pack(K_PING, token, pad_bytes) + bytes(pad_bytes)


def pong(token: int) -> bytes:
    return PONG.pack(K_PONG, token)


def close(stream_end: int, irob_end: int) -> bytes:
    return CLOSE.pack(K_CLOSE, stream_end, irob_end)


def closed() -> bytes:
    return bytes((K_CLOSED,))


def abort(code: int, reason: str) -> bytes:
    """Return an Abort; a reason that is too long is cut."""
    text = reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore").encode()
    return ABORT.pack(K_ABORT, code, len(text)) + text


def datagram_header(epoch: int, number: int, sent_ms: int, lifetime_ms: int, length: int) -> bytes:
    return DATAGRAM.pack(K_DATAGRAM, epoch, number, sent_ms, lifetime_ms, length)
