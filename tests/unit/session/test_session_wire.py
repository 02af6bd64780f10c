"""Frames: what is packed comes back, what breaks a bound is refused, garbage never does anything else."""

import struct
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cedos.errors import ProtocolError
from cedos.session import wire
from cedos.session.frames import (
    Abandon,
    Abort,
    Ack,
    Ask,
    Close,
    Closed,
    Deadline,
    Extent,
    Frame,
    KeepAlive,
    Messages,
    Order,
    PathSays,
    Ping,
    Pong,
    Space,
    StreamData,
    Sync,
    Window,
)
from cedos.session.unpack import unpack

QUICK = settings(max_examples=150, deadline=None)
positions = st.integers(0, wire.MAX_POSITION - 1)
starts = st.integers(0, wire.MAX_POSITION - 2_000_000)
ids = st.integers(1, wire.MAX_POSITION - 2_000_000)
ranks = st.integers(0, 3)
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
payloads = st.binary(min_size=1, max_size=300)


@st.composite
def orders(draw: st.DrawFn, irob: int) -> tuple[Order, tuple[int, ...]]:
    order = draw(st.sampled_from(Order))
    if order is not Order.LISTED:
        return order, ()
    if irob == 1:
        return Order.FREE, ()
    least = max(1, irob - 2**32 + 1)
    after = draw(st.lists(st.integers(least, irob - 1), min_size=1, max_size=5))
    return order, tuple(after)


@st.composite
def frames(draw: st.DrawFn) -> tuple[Frame, bytes]:
    """A frame and its bytes on the wire."""
    kind = draw(st.sampled_from(Frame.__args__))
    if kind is StreamData:
        said = StreamData(draw(starts), draw(st.booleans()), memoryview(draw(payloads)))
        head = wire.stream_header(said.offset, len(said.payload), said.end)
        return said, head + said.payload
    if kind is Extent:
        irob = draw(ids)
        order, after = draw(orders(irob))
        said = Extent(
            irob,
            draw(ranks),
            order,
            after,
            draw(starts),
            draw(st.booleans()),
            memoryview(draw(payloads)),
        )
        head = wire.extent_header(
            irob, said.rank, order, after, said.offset, len(said.payload), said.end
        )
        return said, head + said.payload
    if kind is Messages:
        first = draw(ids)
        order, after = draw(orders(first))
        many = draw(st.lists(st.binary(max_size=50), min_size=1, max_size=1 if after else 30))
        said = Messages(first, draw(ranks), order, after, many)
        head = wire.messages_header(first, said.rank, order, after, [len(each) for each in many])
        return said, head + b"".join(many)
    if kind is Abandon:
        said = Abandon(draw(ids), draw(st.integers(1, 1_000_000)))
        return said, wire.abandon(said.first, said.count)
    if kind is Ack:
        edges = sorted(draw(st.sets(positions, max_size=20)))
        floor, edges = (edges[0], edges[1:]) if len(edges) % 2 else (0, [e + 1 for e in edges])
        edges = [each for each in edges if each < wire.MAX_POSITION]
        edges = edges[: len(edges) // 2 * 2]
        ranges = tuple(zip(edges[::2], edges[1::2], strict=True))
        space = draw(st.sampled_from(Space))
        said = Ack(space, draw(ids) if space is Space.EXTENTS else 0, floor, ranges)
        return said, wire.ack(said.space, said.irob, said.floor, said.ranges)
    if kind is Window:
        said = Window(draw(positions), draw(positions), draw(u32))
        return said, wire.window(said.stream_limit, said.irob_credit, said.irob_bytes)
    if kind is Sync:
        said = Sync(draw(positions), draw(positions), draw(positions), draw(positions))
        return said, wire.sync(said)
    if kind is KeepAlive:
        said = KeepAlive(
            draw(st.booleans()), draw(u32), draw(st.integers(0, wire.MAX_KEEP_ALIVE_S))
        )
        return said, wire.keep_alive(said.agreed, said.serial, said.seconds)
    if kind is Deadline:
        said = Deadline(draw(positions), draw(positions))
        return said, wire.deadline(said.expected_bytes, said.milliseconds)
    if kind is PathSays:
        said = PathSays(
            draw(st.integers(0, 2)),
            draw(st.booleans()),
            draw(st.integers(0, 15)),
            draw(u32),
            draw(positions),
            draw(st.integers(0, 1_000_000)),
        )
        return said, wire.path_says(said)
    if kind is Ping:
        said = Ping(draw(u64), draw(st.integers(0, 100)))
        return said, wire.ping(said.token, said.pad_bytes)
    if kind is Pong:
        said = Pong(draw(u64))
        return said, wire.pong(said.token)
    if kind is Close:
        said = Close(draw(positions), draw(ids))
        return said, wire.close(said.stream_end, said.irob_end)
    if kind is Abort:
        said = Abort(draw(st.integers(0, 255)), draw(st.text(max_size=40)))
        return said, wire.abort(said.code, said.reason)
    return (Ask(), wire.ask()) if kind is Ask else (Closed(), wire.closed())


@given(st.lists(frames(), min_size=1, max_size=8))
@QUICK
def test_what_is_packed_comes_back(several: list[tuple[Frame, bytes]]) -> None:
    record = b"".join(packed for _, packed in several)
    assert unpack(record) == [said for said, _ in several]
    assert unpack(memoryview(bytearray(record))) == [said for said, _ in several]


@given(frames(), st.data())
@QUICK
def test_a_record_that_is_cut_anywhere_is_refused(
    one: tuple[Frame, bytes], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(one[1]) - 1))
    with pytest.raises(ProtocolError):
        unpack(one[1][:cut])


@given(
    st.binary(max_size=200)
    | st.lists(frames(), max_size=3).map(lambda f: b"".join(p for _, p in f))
)
@QUICK
def test_garbage_and_flipped_bits_give_frames_or_a_protocol_error(record: bytes) -> None:
    flipped = bytearray(record)
    for place in range(0, len(flipped), 7):
        flipped[place] ^= 1 << (place % 8)
    for each in (record, bytes(flipped)):
        with suppress(ProtocolError):
            unpack(each)


BEYOND = wire.MAX_POSITION
HOSTILE = {
    "no frame at all": b"",
    "too long": bytes(wire.RECORD_BYTES + 1),
    "frame type 0": b"\x00",
    "frame type 17": b"\x11",
    "stream: unknown flag": wire.STREAM.pack(wire.K_STREAM, 2, 0, 1) + b"x",
    "stream: nothing in it": wire.stream_header(0, 0, False),
    "stream: absurd offset": wire.stream_header(BEYOND - 1, 1, False) + b"x",
    "stream: longer than the record": wire.stream_header(0, 2, False) + b"x",
    "extent: IROB 0": wire.extent_header(0, 0, Order.FREE, (), 0, 1, False) + b"x",
    "extent: label 4": wire.extent_header(1, 4, Order.FREE, (), 0, 1, False) + b"x",
    "extent: order 3": wire.EXTENT.pack(wire.K_EXTENT, 0, 0, 3, 0, 1, 0, 1) + b"x",
    "extent: depends on itself": wire.extent_header(5, 0, Order.LISTED, (5,), 0, 1, True) + b"x",
    "extent: depends on IROB 0": wire.extent_header(5, 0, Order.LISTED, (0,), 0, 1, True) + b"x",
    "extent: depends below 0": wire.EXTENT.pack(wire.K_EXTENT, 0, 0, 2, 1, 5, 0, 0)
    + struct.pack(">I", 99),
    "extent: free, yet a list": wire.EXTENT.pack(wire.K_EXTENT, 1, 0, 0, 1, 5, 0, 0) + b"\0\0\0\1",
    "extent: a list of none": wire.EXTENT.pack(wire.K_EXTENT, 1, 0, 2, 0, 5, 0, 0),
    "extent: 257 dependencies": wire.extent_header(999, 0, Order.LISTED, range(1, 258), 0, 0, True),
    "messages: none": wire.messages_header(1, 0, Order.FREE, (), []),
    "messages: too many": wire.messages_header(1, 0, Order.FREE, (), [0] * (wire.MAX_MESSAGES + 1)),
    "messages: from 0": wire.messages_header(0, 0, Order.FREE, (), [0]),
    "messages: ids without end": wire.messages_header(BEYOND - 1, 0, Order.FREE, (), [0, 0]),
    "messages: a list for two": wire.messages_header(9, 0, Order.LISTED, (1,), [0, 0]),
    "messages: longer than the record": wire.messages_header(1, 0, Order.FREE, (), [9]) + b"x",
    "messages: one, cut before its length": wire.messages_header(3, 0, Order.FREE, (), [9])[:-2],
    "abandon: none": wire.abandon(1, 0),
    "abandon: ids without end": wire.abandon(BEYOND - 1, 5),
    "acknowledgement: unknown space": wire.ACK.pack(wire.K_ACK, 3, 0, 0, 0),
    "acknowledgement: of an IROB, without one": wire.ack(Space.EXTENTS, 0, 0, ()),
    "acknowledgement: stream, with an IROB": wire.ack(Space.STREAM, 7, 0, ()),
    "acknowledgement: ranges overlap": wire.ack(Space.STREAM, 0, 0, ((5, 9), (8, 12))),
    "acknowledgement: ranges touch": wire.ack(Space.STREAM, 0, 0, ((5, 9), (9, 12))),
    "acknowledgement: empty range": wire.ack(Space.STREAM, 0, 0, ((5, 5),)),
    "acknowledgement: range at the floor": wire.ack(Space.STREAM, 0, 5, ((5, 6),)),
    "acknowledgement: too many ranges": wire.ack(
        Space.STREAM, 0, 0, [(2 * n, 2 * n + 1) for n in range(1, wire.MAX_RANGES + 2)]
    ),
    "acknowledgement: absurd": wire.ack(Space.IROBS, 0, BEYOND, ()),
    "window: absurd": wire.window(BEYOND, 0, 0),
    "window: absurd credit": wire.window(0, BEYOND, 0),
    "sync: absurd": wire.sync(Sync(0, 0, BEYOND, 0)),
    "keep-alive: centuries": wire.keep_alive(False, 1, wire.MAX_KEEP_ALIVE_S + 1),
    "keep-alive: half agreed": wire.KEEP_ALIVE.pack(wire.K_KEEP_ALIVE, 2, 1, 1),
    "deadline: absurd": wire.deadline(BEYOND, 0),
    "path: unknown kind": wire.path_says(PathSays(3, False, 0, 0, 0, 0)),
    "path: unknown label": wire.path_says(PathSays(0, False, 16, 0, 0, 0)),
    "path: more lost than sent": wire.path_says(PathSays(0, False, 0, 0, 0, 1_000_001)),
    "ping: too much padding": wire.PING.pack(wire.K_PING, 0, wire.MAX_PAD_BYTES + 1),
    "ping: padding with content": wire.PING.pack(wire.K_PING, 0, 1) + b"x",
    "close: before the first IROB": wire.close(0, 0),
    "abort: no text": wire.ABORT.pack(wire.K_ABORT, 1, 1) + b"\xff",
    "abort: a novel": wire.ABORT.pack(wire.K_ABORT, 1, 201) + b"x" * 201,
    "a good frame, then a bad one": wire.pong(1) + b"\x00",
}


@pytest.mark.parametrize("record", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_breaks_a_bound_is_refused_with_a_sentence(record: bytes) -> None:
    with pytest.raises(ProtocolError) as refused:
        unpack(record)
    assert len(str(refused.value)) > 20


def test_a_reason_that_is_too_long_is_cut_between_characters() -> None:
    (said,) = unpack(wire.abort(1, "ä" * 150))
    assert said == Abort(1, "ä" * 100)


def test_the_longest_record_is_accepted() -> None:
    length = wire.RECORD_BYTES - wire.STREAM.size
    (said,) = unpack(wire.stream_header(0, length, True) + bytes(length))
    assert isinstance(said, StreamData)
    assert len(said.payload) == length
