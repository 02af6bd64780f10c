"""Bytes that wait for programs: their limits, and how long they last."""

import asyncio
import gc
import socket

from hypothesis import given
from hypothesis import strategies as st
from kit.proxy_streams import Anything

from cedos.proxy.streams import carry
from cedos.proxy.streams.carry import Carry
from cedos.proxy.streams.frames import StreamBytes, StreamEnd, StreamReset
from cedos.proxy.streams.stream import ProxiedStream
from cedos.proxy.streams.unread import Reading, Unread


class Filled:
    def __init__(self, share):
        self.share = share
        self.dropped = False

    def drop(self):
        self.dropped = True
        self.share.waits(self, 0)


def test_a_clients_fullest_stream_breaks_beyond_its_limit():
    unread = Unread(1_000, 300)
    share, other = unread.client("a").share(), unread.client("b").share()
    assert unread.client("a").share() is share
    small, large, last = (Filled(share) for _ in range(3))
    theirs = Filled(other)
    theirs.share.waits(theirs, 290)
    small.share.waits(small, 50)
    large.share.waits(large, 200)
    last.share.waits(last, 40)
    assert not any(each.dropped for each in (small, large, last))
    last.share.waits(last, 60)
    assert [each.dropped for each in (small, large, last, theirs)] == [False, True, False, False]
    assert (share.total_bytes, other.total_bytes, unread.total_bytes) == (110, 290, 400)


def test_of_a_clients_users_it_is_whoever_holds_most():
    client = Unread(1_000, 300).client("a")
    many, one = [Filled(client.share(1)) for _ in range(10)], Filled(client.share(2))
    for each in many:
        each.share.waits(each, 20)
    for bytes_ in range(10, 150, 10):
        one.share.waits(one, bytes_)
    assert not one.dropped
    assert 0 < sum(each.dropped for each in many) < 5
    one.share.waits(one, 290)
    assert one.dropped


def test_beyond_the_limit_of_all_it_is_whoever_holds_most():
    unread = Unread(1_000, 600)
    clients = [unread.client(number).share() for number in range(4)]
    streams = [Filled(share) for share in clients for _ in range(3)]
    for stream in streams[:3]:
        stream.share.waits(stream, 190)
    for stream in streams[3:]:
        stream.share.waits(stream, 50)
    assert sum(each.dropped for each in streams[:3]) == 1
    assert not any(each.dropped for each in streams[3:])
    assert unread.total_bytes <= 1_000


def test_beyond_the_limit_of_all_it_is_the_user_who_holds_most_of_that_client():
    unread = Unread(1_000, 600)
    client, other = unread.client("a"), unread.client("b")
    large = Filled(client.share(2))
    many = [Filled(client.share(1)) for _ in range(9)]
    assert client.share(1) is many[0].share
    large.share.waits(large, 200)
    for each in many:
        each.share.waits(each, 50)
    assert not large.dropped
    assert sum(each.dropped for each in many) == 1
    # Beyond the limit of all it is a stream of the client whose streams hold most.
    theirs = [Filled(other.share(user)) for user in range(9)]
    for each in theirs:
        each.share.waits(each, 50)
    assert sum(each.dropped for each in many) == 2
    assert unread.total_bytes == 1_000
    theirs[0].share.waits(theirs[0], 51)
    assert sum(each.dropped for each in many) == 3
    assert not any(each.dropped for each in (large, *theirs))


def test_a_session_ends_for_what_it_holds_itself_alone():
    """Count apart: a session with a hundred waiting frames was fuller than a thousand streams."""
    unread = Unread(1_000, 600)
    client, other = unread.client("a"), unread.client("b")
    session, second = Filled(client.share(None)), Filled(client.share(None))
    theirs = Filled(other.share(None))
    streams = [Filled(client.share(number % 3)) for number in range(30)]
    session.share.waits(session, 100)
    for each in streams:
        each.share.waits(each, 50)
    assert sum(each.dropped for each in streams) == 20
    assert not session.dropped
    # Its limit is half of a client's, and of all half of theirs.
    second.share.waits(second, 201)
    assert [session.dropped, second.dropped] == [False, True]
    session.share.waits(session, 260)
    theirs.share.waits(theirs, 241)
    assert [session.dropped, theirs.dropped] == [True, False]


def test_telling_of_a_break_breaks_no_more():
    """Count the RESET of a broken stream, which waits before the stream has given up its bytes."""
    client = Unread(1_000, 600).client("a")
    session = Filled(client.share(None))

    class Telling(Filled):
        def drop(self):
            session.share.waits(session, client.sessions_bytes + 20)
            super().drop()

    streams = [Telling(client.share()) for _ in range(7)]
    for each in streams:
        each.share.waits(each, 90)
    assert sum(each.dropped for each in streams) == 1
    assert client.total_bytes == 6 * 90 + 20
    assert not session.dropped


def test_who_has_gone_counts_no_more():
    """Others' connections broke once such bytes had filled the room of all."""
    unread = Unread(1_000, 600)
    for _ in range(3):
        share = unread.client("a").share()
        share.waits(Filled(share), 400)
        del share
        gc.collect()
    assert unread.total_bytes == 0


async def test_what_a_server_does_not_take_does_not_wait_for_ever():
    """Both ends have said all; the server goes with a window of it unread, which counted for good."""
    share = Unread().client("a").share()
    stream = ProxiedStream(1, Anything(), unread=share)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
    stream.on_frame(StreamBytes(1, 0, bytes(200_000)))
    stream.on_frame(StreamEnd(1, 200_000))
    theirs.shutdown(socket.SHUT_WR)
    with ours:
        carrying = asyncio.create_task(Carry(ours, stream).run())
        while not stream.over:
            await asyncio.sleep(0.01)
        assert share.total_bytes
        theirs.close()
        assert (await carrying).ended.startswith("program: ")
    assert share.total_bytes == 0
    assert not stream.over, "it is not complete"


async def test_what_a_client_left_behind_does_not_wait_for_ever(monkeypatch):
    """It fills its window towards a server that never reads, and resets the stream."""
    monkeypatch.setattr(carry, "LAST_S", 0.1)
    unread = Unread()
    stream = ProxiedStream(1, Anything(), unread=unread.client("a").share())
    near, far = socket.socketpair()
    near.setblocking(False)
    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
    with near, far:
        carrying = asyncio.ensure_future(Carry(near, stream).run())
        await asyncio.sleep(0)
        for number in range(16):
            stream.on_frame(StreamBytes(1, number << 14, bytes(1 << 14)))
        stream.on_change()
        assert unread.total_bytes > 100_000
        stream.on_frame(StreamReset(1))
        stream.on_change()
        assert not carrying.done()
        moved = await asyncio.wait_for(carrying, 3)
    assert "reset" in moved.ended
    assert unread.total_bytes == 0


def test_a_program_that_reads_at_once_waits_for_what_comes():
    reading = Reading()
    assert reading.lasts_s(0.0, 0, 0) is None, "nothing comes"
    assert reading.lasts_s(2.0, 5_000_000, 5_000_000) == 0.0
    assert reading.lasts_s(4.0, 9_000_000, 8_800_000) == 0.0, "that is on its way to it"
    assert reading.lasts_s(5.9, 9_000_000, 9_000_000) is None


def test_a_conversation_beside_waits_for_no_large_data():
    reading = Reading()
    for second in range(20):
        assert reading.lasts_s(float(second), 10_000 * second, 10_000 * second) is None


def test_what_waits_lasts_by_the_programs_own_pace():
    reading = Reading()
    assert reading.lasts_s(0.0, 4_000_000, 0) == 0.0, "its pace is not known yet"
    assert reading.lasts_s(0.9, 8_000_000, 450_000) == 0.0
    assert reading.lasts_s(2.0, 9_000_000, 1_000_000) == 16.0
    # The last ten seconds count.
    for second in range(3, 20):
        lasts_s = reading.lasts_s(float(second), 9_000_000, 1_000_000 + 200_000 * (second - 2))
    assert lasts_s == (9_000_000 - 4_400_000) / 200_000


def test_a_program_that_pauses_needs_nothing_soon():
    reading = Reading()
    reading.lasts_s(0.0, 8_000_000, 100)
    assert reading.lasts_s(5.0, 8_000_000, 100) == 60.0, "a film that was paused"


@given(st.lists(st.tuples(st.floats(0, 1e4), st.integers(0, 1 << 40), st.integers(0, 1 << 40))))
def test_whatever_it_sees_it_is_sane(looks):
    reading = Reading()
    received = read = 0
    for at_s, came, went in sorted(looks):
        received += came
        read = min(received, read + went)
        lasts_s = reading.lasts_s(at_s, received, read)
        assert lasts_s is None or 0.0 <= lasts_s <= 60.0
