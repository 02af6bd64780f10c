"""Streams of one session share it: whose bytes go next."""

import asyncio
from http import HTTPStatus

import pytest
from structlog.testing import capture_logs

from cedos.model import Direction
from cedos.proxy.http import RefusedError
from cedos.proxy.streams.association import KEPT_S
from cedos.proxy.streams.frames import GatewayAnswer, OpenStream, ProgramPacket, StreamBytes, parse
from cedos.proxy.streams.multiplexer import Multiplexer
from cedos.proxy.streams.stream import (
    INITIAL_WINDOW_BYTES,
    LARGE,
    SMALL_BYTES,
    WINDOW_BYTES,
    ProxiedStream,
)
from cedos.proxy.streams.unread import Unread
from cedos.session.protocol.schedulers.interface import rank_of

ROOM_BYTES = 100_000
PROGRAM_BYTES = 200_000


class SlowSession:
    """Its networks carry nothing until `carry`; so much of large data may wait in it as it says."""

    kept_state = b""
    ended = peer_closed = False
    failure = None

    def __init__(self):
        self.waiting = []
        self.full = False
        self.told = []
        self._changed = None

    def on_change(self, call):
        self._changed = call

    def on_datagrams(self, call):
        pass

    def on_sleep(self, call):
        pass

    def on_advice(self, call):
        self.readers = call

    def tell(self, label, size_bytes, direction):
        self.told.append((label, size_bytes, direction))

    def receive_data_now(self):
        return []

    def send_now(self, data, label, *, after=None, head=b""):
        if self.full:
            return 0
        self.waiting.append((label, head + data))
        return len(self.waiting)

    def is_backlogged(self, label):
        return sum(len(data) for each, data in self.waiting if each is label) > ROOM_BYTES

    def carry(self):
        """Return all that waits, as if the other end had acknowledged it."""
        gone, self.waiting = self.waiting, []
        assert self._changed is not None
        self._changed()
        return gone


class Program:
    """Has so many bytes for its stream, and gives them as soon as they are taken."""

    def __init__(self, stream, size):
        self.left = bytes(size)
        self._stream = stream
        stream.watch(self.go)
        self.go()

    def go(self):
        self.left = self.left[self._stream.write(self.left) :]


async def shared(programs):
    """A slow session that so many programs want to fill."""
    session = SlowSession()
    multiplexer = Multiplexer(session)
    session.on_change(multiplexer._on_change)
    made = [Program(multiplexer.open("h", 80), PROGRAM_BYTES) for _ in range(programs)]
    return session, multiplexer, made


def data_of(carried, label):
    frames = [parse(data) for each, data in carried if each is label]
    return [frame for frame in frames if isinstance(frame, StreamBytes)]


async def test_large_data_waits_in_its_stream_and_not_in_the_session():
    session, _, programs = await shared(20)
    waits = sum(len(data) for label, data in session.waiting if label is LARGE)
    assert waits < ROOM_BYTES + 20_000
    assert sum(len(program.left) for program in programs) > 2_000_000


async def test_a_chunk_of_each_goes_in_turn():
    session, _, programs = await shared(8)
    session.carry()
    for _ in range(4):
        taken = [frame.stream for frame in data_of(session.carry(), LARGE)]
        assert all(each not in taken[i + 1 : i + 8] for i, each in enumerate(taken)), taken
    for _ in range(100):
        session.carry()
    assert not any(program.left for program in programs)


async def test_who_found_the_session_full_goes_on_when_it_has_room():
    session, multiplexer, _ = await shared(0)
    small, large = multiplexer.open("h", 80), multiplexer.open("h", 80)
    bulk = Program(large, PROGRAM_BYTES)
    session.full = True
    click = Program(small, 10)
    session.carry()
    assert click.left
    assert bulk.left
    session.full = False
    for _ in range(5):
        session.carry()
    assert not click.left
    assert not bulk.left


HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 40000000\r\n\r\n"


async def test_a_few_streams_begin_with_large_windows_and_hundreds_do_not():
    session = SlowSession()
    multiplexer = Multiplexer(session)
    streams = [multiplexer.open("h", 80) for _ in range(300)]
    for stream in streams:
        stream.on_frame(StreamBytes(stream.number, 0, HEAD))
    assert session.told == 300 * [(LARGE, 40_000_000 - SMALL_BYTES, Direction.DOWN)]
    lent = [stream.lent_bytes for stream in streams]
    assert lent[0] > WINDOW_BYTES // 2
    assert sum(lent) <= 4 * WINDOW_BYTES
    streams[0].drop()  # what it was lent is another's now
    late = multiplexer.open("h", 80)
    late.on_frame(StreamBytes(late.number, 0, HEAD))
    assert late.lent_bytes == lent[0]


async def test_what_came_lasts_as_long_as_for_the_program_that_needs_more_first(monkeypatch):
    session = SlowSession()
    streams = Multiplexer(session)
    lasts_s = {}
    monkeypatch.setattr(ProxiedStream, "lasts_s", lambda stream, _now_s: lasts_s.get(stream.number))
    first, second = streams.open("a", 80), streams.open("b", 80)
    assert session.readers().lasts_s == {}, "nothing comes"
    monkeypatch.setattr(ProxiedStream, "unread_bytes", 1_000_000)
    lasts_s[first.number] = 12.0
    assert session.readers().lasts_s == {rank_of(LARGE): 12.0}
    lasts_s[second.number] = 3.0
    assert session.readers().lasts_s == {rank_of(LARGE): 3.0}
    lasts_s[second.number] = 0.0
    assert session.readers().lasts_s == {}, "one waits for what comes"
    second.drop()
    assert session.readers().lasts_s == {rank_of(LARGE): 12.0}


async def test_the_session_tells_how_many_programs_wait_for_the_rest_of_large_data():
    session = SlowSession()
    multiplexer = Multiplexer(session)
    streams = [multiplexer.open("h", 80) for _ in range(3)]
    for stream in streams:
        stream.write(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    for stream, size in zip(streams, (900_000, 70_000, 900), strict=True):
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size
        stream.on_frame(StreamBytes(stream.number, 0, head))
    rank = rank_of(LARGE)
    assert session.readers().waiting == {(rank, Direction.DOWN): 2, (rank, Direction.UP): 0}
    streams[1].on_frame(StreamBytes(streams[1].number, streams[1].received_bytes, bytes(70_000)))
    assert session.readers().waiting[rank, Direction.DOWN] == 1, "one has all of it"
    streams[0].drop()
    assert session.readers().waiting[rank, Direction.DOWN] == 0


async def test_refusals_that_a_client_does_not_take_count_over_all_its_sessions():
    """Each kept its stream, and each of 128 sessions 65,536 of them."""
    client = Unread(1 << 30, 1 << 21).client("client")
    made = [(ClosedSession(), count) for count in (150, 300, 100)]
    refuse = RefusedError(HTTPStatus.FORBIDDEN, "http_request_denied", "no")
    for session, count in made:
        session.full = True
        streams = Multiplexer(session, lambda one, _asked: one.refuse(refuse), unread=client)
        session.come = [OpenStream(number + 1, "a", 1).pack() for number in range(count)]
        streams._on_change()
    assert [bool(session.why) for session, _ in made] == [False, True, False]
    assert 0 < client.total_bytes <= 1 << 20


async def test_no_session_ends_for_what_waits_of_its_streams():
    """Several users' uploads had a few hundred frames that waited end the session of all users."""
    client, opened = Unread(1 << 30, 1 << 22).client("client"), []
    session = ClosedSession()
    streams = Multiplexer(session, lambda one, _asked: opened.append(one), unread=client)
    session.come = [OpenStream(n + 1, "a", 1, user=n % 40).pack() for n in range(400)]
    held = (1 << 22) // 17_000
    session.come += [StreamBytes(number + 1, 0, bytes(16_384)).pack() for number in range(held)]
    streams._on_change()
    assert len(opened) == 400
    assert all(each.broken is None for each in opened)
    session.full = True
    for each in opened:
        each.accept()
    assert not session.why
    assert streams._waiting
    assert 0 < sum(each.broken is not None for each in opened) < 100
    assert client.total_bytes <= 1 << 22


@pytest.mark.parametrize("full", [False, True])
async def test_uploads_that_no_server_takes_break_no_other_users(full):
    """1,024 held uploads of one user: of others' each broke at once, as it was the fullest.

    With 103 frames that waited the session was fuller still, and ended.
    """
    client, opened = Unread(1 << 30, 1 << 20).client("client"), {}
    session = ClosedSession()
    session.full = full

    def opens(stream, asked):
        opened[asked.stream] = stream
        stream.accept()

    streams = Multiplexer(session, opens, unread=client)
    hogs = range(1, 51)
    for number in hogs:
        session.come += [
            OpenStream(number, "a", 1, user=1).pack(),
            StreamBytes(number, 0, bytes(20_000)).pack(),
        ]
    session.come.append(OpenStream(51, "b", 1, user=2).pack())
    session.come += [StreamBytes(51, at, bytes(20_000)).pack() for at in range(0, 100_000, 20_000)]
    streams._on_change()
    assert not session.why
    assert opened[51].broken is None
    assert opened[51].unread_bytes == 100_000
    assert sum(opened[each].broken is not None for each in hogs) >= 3
    assert client.total_bytes <= 1 << 20


async def test_numbers_that_a_client_leaves_out_count_over_all_its_sessions():
    """Each session remembered 65,536 numbers, 6 MB of memory, as long as one before them was missing."""
    client = Unread(1 << 30, 1 << 21).client("client")
    refuse = RefusedError(HTTPStatus.FORBIDDEN, "http_request_denied", "no")
    made = []
    for count in (2_000, 4_000, 3_000):
        session = ClosedSession()
        streams = Multiplexer(session, lambda one, _asked: one.refuse(refuse), unread=client)
        session.come = [OpenStream(number + 2, "a", 1).pack() for number in range(count)]
        streams._on_change()
        made.append((session, streams))
    assert [bool(session.why) for session, _ in made] == [False, True, False]
    for session, streams in made:
        session.ended = True
        await streams.run()
    assert client.total_bytes == 0


async def test_a_session_that_is_ended_at_what_it_brings_opens_no_more_and_ends_once():
    client, opened = Unread(1 << 30, 5_000).client("client"), []
    session = ClosedSession()
    session.full = True
    streams = Multiplexer(
        session, lambda one, _asked: opened.append(one) or one.accept(), unread=client
    )
    session.come = [OpenStream(number + 1, "a", 1).pack() for number in range(100)]
    session.abort = lambda why: session.__dict__.update(why=why, ended=True)
    await streams.run()
    assert session.why == "the other end takes no answers"
    assert 0 < len(opened) < 50
    assert client.total_bytes == 0


async def test_a_fault_at_a_packet_loses_that_one(monkeypatch):
    """The streams were not told what had come with it, and the session's packets behind it were lost."""
    session, answers = ClosedSession(), []
    streams = Multiplexer(session)
    takes = Multiplexer._take_packet

    def fails(self, packet):
        if packet.number == 1:
            raise RuntimeError("a fault of this program")
        takes(self, packet)

    monkeypatch.setattr(Multiplexer, "_take_packet", fails)
    streams.answered = answers.append
    with capture_logs() as log:
        streams._datagrams([GatewayAnswer(number, b"yes").pack() for number in (1, 2)])
    assert [each.number for each in answers] == [2]
    assert [each["event"] for each in log] == ["a packet is lost"]


async def test_nothing_is_kept_for_a_session_that_has_ended():
    """Open 40 connections too many and leave: 100 kB counted for good, and soon others' broke."""
    client, opened = Unread().client("client"), []
    session = ClosedSession()
    streams = Multiplexer(session, lambda one, _asked: opened.append(one), unread=client)
    session.come = [OpenStream(number + 1, "a", 1).pack() for number in range(40)]
    session.come.append(StreamBytes(40, 0, bytes(INITIAL_WINDOW_BYTES)).pack())
    streams._on_change()
    session.full = session.ended = True
    await streams.run()
    for each in opened[:-1]:
        each.refuse(RefusedError(HTTPStatus.FORBIDDEN, "http_request_denied", "no"))
    opened[-1].accept()
    opened[-1].on_read(INITIAL_WINDOW_BYTES)
    assert client.total_bytes == 0
    assert not streams._waiting


@pytest.mark.jumping
async def test_packets_before_their_association_count_over_all_sessions_of_a_client():
    """Send packets before their association: each of 128 sessions kept a megabyte, uncounted."""
    client = Unread(1 << 30, 1 << 21).client("client")
    made = []
    for count in (5, 11, 4):
        session = ClosedSession()
        streams = Multiplexer(session, None, lambda _one: None, unread=client)
        for number in range(count):
            streams._datagrams([ProgramPacket(number + 1, "a", 9, bytes(60_000)).pack()])
        made.append((session, streams))
    assert [bool(session.why) for session, _ in made] == [False, True, False]
    assert client.total_bytes > 9 * 60_000
    await asyncio.sleep(2 * KEPT_S)
    assert client.total_bytes == 0
    # One that comes behind the end of its session is not kept.
    session, streams = made[1]
    streams._datagrams([ProgramPacket(9, "a", 9, bytes(60_000)).pack()])
    assert client.total_bytes == 0
    session, streams = made[0]
    streams._datagrams([ProgramPacket(9, "a", 9, bytes(60_000)).pack()])
    session.ended = True
    await streams.run()
    assert client.total_bytes == 0


class ClosedSession(SlowSession):
    """A client that takes nothing; `come` is what its other end has sent."""

    def __init__(self):
        super().__init__()
        self.come = []
        self.why = ""

    def receive_data_now(self):
        come, self.come = self.come, []
        return come

    def abort(self, why):
        self.why = why
