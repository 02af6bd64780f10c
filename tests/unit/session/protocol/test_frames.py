"""Frames as bytes and back, hostile bytes, and sets of intervals."""

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.errors import ProtocolError
from cedos.session.protocol import packing
from cedos.session.protocol.frames import (
    Abort,
    Ack,
    Close,
    Datagram,
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
from cedos.session.protocol.intervals import CumulativeSet, IntervalSet
from cedos.session.protocol.unpacking import unpack

positions = st.integers(0, packing.MAX_POSITION - 1)
starts = st.integers(0, packing.MAX_POSITION - 2_000_000)
ids = st.integers(1, packing.MAX_POSITION - 2_000_000)
ranks = st.integers(0, 3)
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
payloads = st.binary(min_size=1, max_size=300)


@st.composite
def orders(draw, irob):
    order = draw(st.sampled_from(Order))
    if order is not Order.LISTED:
        return order, ()
    if irob == 1:
        return Order.FREE, ()
    least = max(1, irob - 2**32 + 1)
    after = draw(st.lists(st.integers(least, irob - 1), min_size=1, max_size=5))
    return order, tuple(after)


@st.composite
def frames(draw):
    """A frame and its bytes on the wire."""
    kind = draw(st.sampled_from(Frame.__args__))
    if kind is StreamData:
        frame = StreamData(draw(starts), draw(st.booleans()), memoryview(draw(payloads)))
        head = packing.stream_header(frame.offset, len(frame.payload), frame.end)
        return frame, head + frame.payload
    if kind is Extent:
        irob = draw(ids)
        order, after = draw(orders(irob))
        frame = Extent(
            irob,
            draw(ranks),
            order,
            after,
            draw(starts),
            draw(st.booleans()),
            memoryview(draw(payloads)),
        )
        head = packing.extent_header(
            irob, frame.rank, order, after, frame.offset, len(frame.payload), frame.end
        )
        return frame, head + frame.payload
    if kind is Messages:
        first = draw(ids)
        order, after = draw(orders(first))
        many = draw(st.lists(st.binary(max_size=50), min_size=1, max_size=1 if after else 30))
        frame = Messages(first, draw(ranks), order, after, many)
        head = packing.messages_header(
            first, frame.rank, order, after, [len(each) for each in many]
        )
        return frame, head + b"".join(many)
    if kind in packing.FIXED:
        values = [draw(st.integers(0, most)) for most in packing.FIXED[kind].bounds]
        if kind is Close:
            values[1] = draw(ids)
        frame = kind(*values)
        return frame, packing.pack_fixed(frame)
    if kind is Ack:
        edges = sorted(draw(st.sets(positions, max_size=20)))
        floor, edges = (edges[0], edges[1:]) if len(edges) % 2 else (0, [e + 1 for e in edges])
        edges = [each for each in edges if each < packing.MAX_POSITION]
        edges = edges[: len(edges) // 2 * 2]
        ranges = tuple(zip(edges[::2], edges[1::2], strict=True))
        space = draw(st.sampled_from(Space))
        frame = Ack(space, draw(ids) if space is Space.EXTENTS else 0, floor, ranges)
        return frame, packing.ack(frame.space, frame.irob, frame.floor, frame.ranges)
    if kind is Ping:
        frame = Ping(draw(u64), draw(st.integers(0, 100)))
        return frame, packing.ping(frame.token, frame.pad_bytes)
    if kind is Datagram:
        count = st.integers(1, packing.MAX_LIFETIME_MS)
        numbers = draw(u32), draw(st.integers(1, 2**32 - 1)), draw(u32), draw(count)
        frame = Datagram(*numbers, draw(st.binary(max_size=300)))
        return frame, packing.datagram_header(*numbers, len(frame.payload)) + frame.payload
    frame = Abort(draw(st.integers(0, 255)), draw(st.text(max_size=40)))
    return frame, packing.abort(frame.code, frame.reason)


@given(st.lists(frames(), min_size=1, max_size=8))
def test_what_is_packed_comes_back(several):
    record = b"".join(packed for _, packed in several)
    assert unpack(record) == [frame for frame, _ in several]
    assert unpack(memoryview(bytearray(record))) == [frame for frame, _ in several]


@given(frames(), st.data())
def test_a_record_that_is_cut_anywhere_is_refused(one, data):
    cut = data.draw(st.integers(0, len(one[1]) - 1))
    with pytest.raises(ProtocolError):
        unpack(one[1][:cut])


BEYOND = packing.MAX_POSITION
HOSTILE = {
    "no frame at all": b"",
    "too long": bytes(packing.RECORD_BYTES + 1),
    "frame type 0": b"\x00",
    "frame type 18": b"\x12",
    "stream: unknown flag": packing.STREAM.pack(packing.K_STREAM, 2, 0, 1) + b"x",
    "stream: nothing in it": packing.stream_header(0, 0, False),
    "stream: absurd offset": packing.stream_header(BEYOND - 1, 1, False) + b"x",
    "stream: longer than the record": packing.stream_header(0, 2, False) + b"x",
    "extent: IROB 0": packing.extent_header(0, 0, Order.FREE, (), 0, 1, False) + b"x",
    "extent: label 4": packing.extent_header(1, 4, Order.FREE, (), 0, 1, False) + b"x",
    "extent: order 3": packing.EXTENT.pack(packing.K_EXTENT, 0, 0, 3, 0, 1, 0, 1) + b"x",
    "extent: depends on itself": packing.extent_header(5, 0, Order.LISTED, (5,), 0, 1, True) + b"x",
    "extent: depends on IROB 0": packing.extent_header(5, 0, Order.LISTED, (0,), 0, 1, True) + b"x",
    "extent: depends below 0": packing.EXTENT.pack(packing.K_EXTENT, 0, 0, 2, 1, 5, 0, 0)
    + struct.pack(">I", 99),
    "extent: free, yet a list": packing.EXTENT.pack(packing.K_EXTENT, 1, 0, 0, 1, 5, 0, 0)
    + b"\0\0\0\1",
    "extent: a list of none": packing.EXTENT.pack(packing.K_EXTENT, 1, 0, 2, 0, 5, 0, 0),
    "extent: 257 dependencies": packing.extent_header(
        999, 0, Order.LISTED, range(1, 258), 0, 0, True
    ),
    "messages: none": packing.messages_header(1, 0, Order.FREE, (), []),
    "messages: too many": packing.messages_header(
        1, 0, Order.FREE, (), [0] * (packing.MAX_MESSAGES + 1)
    ),
    "messages: from 0": packing.messages_header(0, 0, Order.FREE, (), [0]),
    "messages: ids without end": packing.messages_header(BEYOND - 1, 0, Order.FREE, (), [0, 0]),
    "messages: a list for two": packing.messages_header(9, 0, Order.LISTED, (1,), [0, 0]),
    "messages: longer than the record": packing.messages_header(1, 0, Order.FREE, (), [9]) + b"x",
    "messages: one, cut before its length": packing.messages_header(3, 0, Order.FREE, (), [9])[:-2],
    "acknowledgement: unknown space": packing.ACK.pack(packing.K_ACK, 3, 0, 0, 0),
    "acknowledgement: of an IROB, without one": packing.ack(Space.EXTENTS, 0, 0, ()),
    "acknowledgement: stream, with an IROB": packing.ack(Space.STREAM, 7, 0, ()),
    "acknowledgement: ranges overlap": packing.ack(Space.STREAM, 0, 0, ((5, 9), (8, 12))),
    "acknowledgement: ranges touch": packing.ack(Space.STREAM, 0, 0, ((5, 9), (9, 12))),
    "acknowledgement: empty range": packing.ack(Space.STREAM, 0, 0, ((5, 5),)),
    "acknowledgement: range at the floor": packing.ack(Space.STREAM, 0, 5, ((5, 6),)),
    "acknowledgement: too many ranges": packing.ack(
        Space.STREAM, 0, 0, [(2 * n, 2 * n + 1) for n in range(1, packing.MAX_RANGES + 2)]
    ),
    "acknowledgement: absurd": packing.ack(Space.IROBS, 0, BEYOND, ()),
    "window: absurd": packing.pack_fixed(Window(BEYOND, 0, 0)),
    "window: absurd credit": packing.pack_fixed(Window(0, BEYOND, 0)),
    "sync: absurd": packing.pack_fixed(Sync(0, 0, BEYOND, 0)),
    "keep-alive: centuries": packing.pack_fixed(KeepAlive(False, 1, packing.MAX_KEEP_ALIVE_S + 1)),
    "keep-alive: half agreed": packing.pack_fixed(KeepAlive(2, 1, 1)),
    "path: unknown kind": packing.pack_fixed(PathSays(4, False, 0, 0, 0, 0)),
    "path: unknown label": packing.pack_fixed(PathSays(0, False, 16, 0, 0, 0)),
    "path: more lost than sent": packing.pack_fixed(PathSays(0, False, 0, 0, 0, 1_000_001)),
    "ping: too much padding": packing.PING.pack(packing.K_PING, 0, packing.MAX_PAD_BYTES + 1),
    "ping: padding with content": packing.PING.pack(packing.K_PING, 0, 1) + b"x",
    "close: before the first IROB": packing.pack_fixed(Close(0, 0)),
    "abort: no text": packing.ABORT.pack(packing.K_ABORT, 1, 1) + b"\xff",
    "abort: a novel": packing.ABORT.pack(packing.K_ABORT, 1, 201) + b"x" * 201,
    "datagram: number 0": packing.datagram_header(1, 0, 0, 100, 0),
    "datagram: of no time": packing.datagram_header(1, 1, 0, 0, 0),
    "datagram: good for an hour": packing.datagram_header(1, 1, 0, 60_001, 0),
    "datagram: longer than the record": packing.datagram_header(1, 1, 0, 100, 2) + b"x",
    "a good frame, then a bad one": packing.pack_fixed(Pong(1)) + b"\x00",
}


@pytest.mark.parametrize("record", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_breaks_a_bound_is_refused_with_a_sentence(record):
    with pytest.raises(ProtocolError) as refused:
        unpack(record)
    assert len(str(refused.value)) > 20


def test_a_reason_that_is_too_long_is_cut_between_characters():
    (frame,) = unpack(packing.abort(1, "ä" * 150))
    assert frame == Abort(1, "ä" * 100)


def test_the_longest_record_is_accepted():
    length = packing.RECORD_BYTES - packing.STREAM.size
    (frame,) = unpack(packing.stream_header(0, length, True) + bytes(length))
    assert isinstance(frame, StreamData)
    assert len(frame.payload) == length


SPANS = st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda s: (s[0], s[0] + s[1]))


@given(st.lists(SPANS, max_size=40), SPANS)
def test_intervals_are_a_set(spans, asked):
    intervals, model = IntervalSet(), set[int]()
    for start, end in spans:
        intervals.add(start, end)
        model |= set(range(start, end))
        pairs = list(intervals)
        assert {each for pair in pairs for each in range(*pair)} == model
        assert all(left[1] < right[0] for left, right in pairwise(pairs))
        assert all(start < end for start, end in pairs)
    start, end = asked
    assert intervals.covers(start, end) == (set(range(start, end)) <= model)
    holes = intervals.missing(start, end)
    assert {each for pair in holes for each in range(*pair)} == set(range(start, end)) - model
    assert len(intervals) == len(list(intervals))


@given(st.integers(0, 20), st.lists(SPANS, max_size=30), SPANS)
def test_progress_is_a_set_that_is_full_below_its_floor(floor, spans, asked):
    progress, model = CumulativeSet(floor), set(range(floor))
    for start, end in spans:
        progress.add(start, end)
        model |= set(range(start, end))
        assert progress.floor == next(each for each in range(200) if each not in model)
        assert progress.top == max(model, default=-1) + 1
    start, end = asked
    assert progress.covers(start, end) == (set(range(start, end)) <= model)
    holes = progress.missing(start, end)
    assert {each for pair in holes for each in range(*pair)} == set(range(start, end)) - model
