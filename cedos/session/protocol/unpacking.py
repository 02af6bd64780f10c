"""Strict unpacking: a record is taken whole, or a `ProtocolError` names frame and bound."""

import struct
from collections.abc import Callable
from itertools import accumulate
from typing import Final

from cedos.errors import ProtocolError
from cedos.session.protocol import packing
from cedos.session.protocol.frames import (
    Abort,
    Ack,
    Close,
    Datagram,
    Extent,
    Frame,
    Messages,
    Order,
    Ping,
    Space,
    StreamData,
)

_ORDERS: Final = {int(each): each for each in Order}
_SPACES: Final = {int(each): each for each in Space}
_Reader = Callable[[memoryview, int], tuple[Frame, int]]


def unpack(record: bytes | memoryview) -> list[Frame]:
    """Return all frames of one record's plaintext, in order; ProtocolError: use none of them.

    Payloads of extents are views of `record` (copy what outlives it), those of messages are bytes.
    """
    view = memoryview(record)
    size = len(view)
    if not 0 < size <= packing.RECORD_BYTES:
        raise ProtocolError(f"a record of {size} bytes; allowed are 1 to {packing.RECORD_BYTES}")
    most = min(packing.MAX_FRAMES, packing.FIRST_FRAMES + size // packing.LEAST_FRAME_BYTES)
    # Each reader checks its frame and returns where the next one begins.
    frames: list[Frame] = []
    at = 0
    try:
        while at < size:
            reader = _READERS.get(view[at])
            if reader is None:
                raise ProtocolError(f"a record with an unknown frame type {view[at]} at byte {at}")
            frame, at = reader(view, at)
            frames.append(frame)
            if len(frames) > most:
                raise ProtocolError(f"a record of {size} bytes with more than {most} frames")
    # `unpack_from` fails where the record is shorter than the frame's fixed part.
    except struct.error:
        raise ProtocolError(f"a record that ends within its frame at byte {at}") from None
    return frames


def _bad_field(frame: str, field: str, value: object, right: str) -> ProtocolError:
    return ProtocolError(f"{frame} frame with {field} {value}; right would be {right}")


def _flag(frame: str, field: str, value: int) -> bool:
    if value > 1:
        raise _bad_field(frame, field, value, "0 or 1")
    return value == 1


def _position(frame: str, field: str, value: int, least: int = 0) -> int:
    if not least <= value < packing.MAX_POSITION:
        raise _bad_field(frame, field, value, f"{least} to {packing.MAX_POSITION - 1}")
    return value


def _rank(frame: str, value: int) -> int:
    if value > 3:
        raise _bad_field(frame, "label", value, "0 to 3")
    return value


def _payload(frame: str, view: memoryview, at: int, length: int) -> memoryview:
    if at + length > len(view):
        raise _bad_field(
            frame, "length", length, f"at most {max(len(view) - at, 0)}, what the record has left"
        )
    return view[at : at + length]


def _order(
    frame: str, irob: int, order: int, count: int, view: memoryview, at: int
) -> tuple[Order, tuple[int, ...], int]:
    """Return the order of an IROB and the ids it waits for, written as distances to lower ids."""
    which = _ORDERS.get(order)
    if which is None:
        raise _bad_field(frame, "order", order, "0, 1 or 2")
    # Only a listed order has dependencies behind the header.
    if which is not Order.LISTED:
        if count:
            raise _bad_field(frame, "number of dependencies", count, "0, its order is not a list")
        return which, (), at
    if not 0 < count <= packing.MAX_DEPENDENCIES:
        raise _bad_field(frame, "number of dependencies", count, f"1 to {packing.MAX_DEPENDENCIES}")
    # A distance of 0 would be the IROB itself; one of `irob` or more, an id that does not exist.
    distances = struct.unpack_from(f">{count}I", view, at)
    if not 0 < min(distances) <= max(distances) < irob:
        raise _bad_field(
            frame, "a dependency", [irob - each for each in distances], "lower ids, from 1"
        )
    return which, tuple([irob - each for each in distances]), at + 4 * count


def _stream(view: memoryview, at: int) -> tuple[Frame, int]:
    _, flags, offset, length = packing.STREAM.unpack_from(view, at)
    at += packing.STREAM.size
    end = _flag("stream", "flags", flags)
    # An empty frame without an end would say nothing.
    if not (length or end):
        raise _bad_field("stream", "length", 0, "1 or more, or the end")
    _position("stream", "offset", offset + length)
    return StreamData(offset, end, _payload("stream", view, at, length)), at + length


def _extent(view: memoryview, at: int) -> tuple[Frame, int]:
    _, flags, rank, order, count, irob, offset, length = packing.EXTENT.unpack_from(view, at)
    at += packing.EXTENT.size
    end = _flag("extent", "flags", flags)
    if not (length or end):
        raise _bad_field("extent", "length", 0, "1 or more, or the end")
    _position("extent", "IROB id", irob, 1)
    _position("extent", "offset", offset + length)
    _rank("extent", rank)
    which, after, at = _order("extent", irob, order, count, view, at)
    payload = _payload("extent", view, at, length)
    return Extent(irob, rank, which, after, offset, end, payload), at + length


def _messages(view: memoryview, at: int) -> tuple[Frame, int]:
    _, rank, order, listed, count, first = packing.MESSAGES.unpack_from(view, at)
    at += packing.MESSAGES.size
    # Fast path: one message without dependencies, which fits the record. The checks below would pass.
    usual = count == 1 and not listed and order < 2 and rank < 4 and at + 2 <= len(view)
    if usual and 0 < first < packing.MAX_POSITION - 1:
        at += 2
        stop = at + (view[at - 2] << 8 | view[at - 1])
        if stop <= len(view):
            return Messages(first, rank, _ORDERS[order], (), [bytes(view[at:stop])]), stop
        at -= 2
    # Other runs of messages: check every field before anything is copied.
    if not 0 < count <= packing.MAX_MESSAGES:
        raise _bad_field("messages", "number of messages", count, f"1 to {packing.MAX_MESSAGES}")
    _position("messages", "first IROB id", first, 1)
    _position("messages", "last IROB id", first + count)
    _rank("messages", rank)
    if listed and count > 1:
        raise _bad_field("messages", "number of messages", count, "1 where dependencies are listed")
    which, after, at = _order("messages", first, order, listed, view, at)
    # The lengths come first, then all payloads without gaps.
    lengths = struct.unpack_from(f">{count}H", view, at)
    at += 2 * count
    body = bytes(_payload("messages", view, at, sum(lengths)))
    if count == 1:
        return Messages(first, rank, which, after, [body]), at + len(body)
    ends = list(accumulate(lengths))
    payloads = [body[end - length : end] for end, length in zip(ends, lengths, strict=True)]
    return Messages(first, rank, which, after, payloads), at + len(body)


def _ack(view: memoryview, at: int) -> tuple[Frame, int]:
    _, space, irob, floor, count = packing.ACK.unpack_from(view, at)
    at += packing.ACK.size
    which = _SPACES.get(space)
    if which is None:
        raise _bad_field("acknowledgement", "space", space, "0, 1 or 2")
    # Only acknowledgements of extents name an IROB.
    if (which is Space.EXTENTS) != (irob > 0):
        raise _bad_field(
            "acknowledgement", "IROB id", irob, "0, or an id where extents are acknowledged"
        )
    if count > packing.MAX_RANGES:
        raise _bad_field(
            "acknowledgement", "number of ranges", count, f"at most {packing.MAX_RANGES}"
        )
    _position("acknowledgement", "IROB id", irob)
    last = _position("acknowledgement", "floor", floor)
    if not count:
        return Ack(which, irob, floor, ()), at
    # The edges of all ranges rise strictly, so that ranges neither touch nor overlap.
    edges = struct.unpack_from(f">{2 * count}Q", view, at)
    for edge in edges:
        if edge <= last:
            raise _bad_field(
                "acknowledgement", "a range's edge", edge, f"more than {last}, the edge before"
            )
        last = edge
    _position("acknowledgement", "last edge", last)
    ranges = tuple(zip(edges[::2], edges[1::2], strict=True))
    return Ack(which, irob, floor, ranges), at + 16 * count


def _ping(view: memoryview, at: int) -> tuple[Frame, int]:
    _, token, pad = packing.PING.unpack_from(view, at)
    at += packing.PING.size
    if pad > packing.MAX_PAD_BYTES:
        raise _bad_field("ping", "padding", pad, f"at most {packing.MAX_PAD_BYTES}")
    # Padding of zeros leaves no room for hidden data.
    if any(_payload("ping", view, at, pad)):
        raise _bad_field("ping", "padding", "with other bytes", "zeros")
    return Ping(token, pad), at + pad


def _abort(view: memoryview, at: int) -> tuple[Frame, int]:
    _, code, length = packing.ABORT.unpack_from(view, at)
    at += packing.ABORT.size
    if length > packing.MAX_REASON_BYTES:
        raise _bad_field(
            "abort", "length of the reason", length, f"at most {packing.MAX_REASON_BYTES}"
        )
    try:
        reason = str(_payload("abort", view, at, length), "utf-8")
    except UnicodeDecodeError:
        raise _bad_field("abort", "a reason", "that is no text", "UTF-8") from None
    return Abort(code, reason), at + length


def _datagram(view: memoryview, at: int) -> tuple[Frame, int]:
    _, epoch, number, sent_ms, lifetime_ms, length = packing.DATAGRAM.unpack_from(view, at)
    at += packing.DATAGRAM.size
    if not number:
        raise _bad_field("datagram", "number", 0, "1 or more")
    if not 0 < lifetime_ms <= packing.MAX_LIFETIME_MS:
        raise _bad_field("datagram", "lifetime", lifetime_ms, f"1 to {packing.MAX_LIFETIME_MS} ms")
    payload = bytes(_payload("datagram", view, at, length))
    return Datagram(epoch, number, sent_ms, lifetime_ms, payload), at + length


def _fixed_reader(made: packing.FixedLayout) -> _Reader:
    """Return the reader of a frame without a payload."""
    names = made.frame.__struct_fields__  # type: ignore[attr-defined] # it is a Struct

    def read(view: memoryview, at: int) -> tuple[Frame, int]:
        _, *values = made.layout.unpack_from(view, at)
        for name, value, most in zip(names, values, made.bounds, strict=True):
            if value > most:
                raise _bad_field(made.frame.__name__, name, value, f"0 to {most}")
        frame = made.frame(*values)
        # Ids of IROBs begin with 1, and the last one is a position as well.
        if isinstance(frame, Close):
            _position("Close", "irob_end", frame.irob_end, 1)
        return frame, at + made.layout.size

    return read


_READERS: Final[dict[int, _Reader]] = {
    packing.K_STREAM: _stream,
    packing.K_EXTENT: _extent,
    packing.K_MESSAGES: _messages,
    packing.K_ACK: _ack,
    packing.K_PING: _ping,
    packing.K_ABORT: _abort,
    packing.K_DATAGRAM: _datagram,
    **{made.kind: _fixed_reader(made) for made in packing.FIXED.values()},
}
