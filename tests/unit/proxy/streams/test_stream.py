"""A stream's window, and how many frames its bytes are."""

import asyncio
import itertools

import pytest

from cedos.host.profiler.sizes import SizeHistory
from cedos.model import Direction
from cedos.proxy.streams.expected_sizes import AnnouncedBodies, ExpectedBursts
from cedos.proxy.streams.frames import (
    StreamBytes,
    StreamEnd,
    StreamReset,
    StreamWindow,
    parse,
)
from cedos.proxy.streams.stream import (
    INITIAL_WINDOW_BYTES,
    LARGE,
    LEAST_CHUNK_BYTES,
    MOST_CHUNK_BYTES,
    SMALL,
    SMALL_BYTES,
    WINDOW_BYTES,
    ProxiedStream,
)
from cedos.session.protocol.packing import RECORD_BYTES


class Sent:
    """A session with room for everything, which lends so much."""

    def __init__(self, lends_bytes=0):
        self.frames = []
        self.lends_bytes = lends_bytes
        self.ends = False
        self.told = []

    def on_announced(self, size_bytes, direction):
        self.told.append((size_bytes, direction))

    def lend(self, size_bytes):
        return size_bytes <= self.lends_bytes

    def put(self, stream, data, label, *, ordered):
        self.frames.append(data)

    def try_put(self, stream, head, data, label):
        self.frames.append(head + data)
        return True

    def forget(self, number):
        assert self.ends, "it is not over"

    def windows(self):
        return [each.limit for each in map(parse, self.frames) if isinstance(each, StreamWindow)]


async def test_what_is_read_at_once_is_one_frame_where_much_is_read_there():
    sent = Sent()
    stream = ProxiedStream(1, sent)
    block = bytes(MOST_CHUNK_BYTES)
    assert stream.write(block) == len(block)
    assert max(map(len, sent.frames)) < 2 * LEAST_CHUNK_BYTES  # nothing is known of the rate yet
    stream.on_frame(StreamWindow(1, 2 * WINDOW_BYTES))
    stream.on_frame(StreamWindow(1, 3 * WINDOW_BYTES))
    sent.frames.clear()
    assert stream.write(block) == len(block)
    (frame,) = sent.frames
    assert len(frame) + 1_024 < RECORD_BYTES  # with a record's other frames


async def test_single_bytes_that_no_program_reads_cost_hardly_more_than_others():
    """A stream's first window of them took 114 MB, of each program that does not read."""
    stream = ProxiedStream(1, Sent())
    sent = bytes(number % 251 for number in range(INITIAL_WINDOW_BYTES))
    for offset in range(len(sent)):
        stream.on_frame(parse(StreamBytes(1, offset, sent[offset : offset + 1]).pack()))
    assert len(stream.waiting) < 100
    assert b"".join(stream.waiting) == sent


async def test_the_window_grows_with_what_is_read():
    sent = Sent()
    stream = ProxiedStream(1, sent)
    step = 1 << 15
    for offset in range(0, 8 * WINDOW_BYTES, step):
        stream.on_frame(StreamBytes(1, offset, bytes(step)))
        stream.on_read(step)
        if offset + step < INITIAL_WINDOW_BYTES // 2:
            assert not sent.frames, "only who brings much costs a window"
    windows = sent.windows()
    assert windows[0] == INITIAL_WINDOW_BYTES * 3 // 2
    assert {b - a for a, b in itertools.pairwise(windows[-8:])} == {WINDOW_BYTES // 2}
    assert len(windows) < 30


@pytest.mark.parametrize("over", [StreamEnd(1, INITIAL_WINDOW_BYTES), StreamReset(1)])
async def test_what_is_read_behind_the_end_borrows_no_window(over):
    """The window was never given back: some thirty such streams left nothing to lend."""
    sent = Sent(lends_bytes=WINDOW_BYTES)
    stream = ProxiedStream(1, sent)
    stream.on_frame(StreamBytes(1, 0, bytes(INITIAL_WINDOW_BYTES)))
    sent.ends = True
    stream.finish()
    stream.on_frame(over)
    stream.on_read(INITIAL_WINDOW_BYTES // 2)
    assert stream.lent_bytes == 0


async def test_a_window_that_came_late_takes_nothing_back():
    stream = ProxiedStream(1, Sent())
    stream.on_frame(StreamWindow(1, 2 * INITIAL_WINDOW_BYTES))
    stream.on_frame(StreamWindow(1, INITIAL_WINDOW_BYTES // 2))
    assert stream.room_bytes == 2 * INITIAL_WINDOW_BYTES
    speaking = ProxiedStream(1, Sent())
    speaking.write(b"x")
    speaking.on_frame(StreamWindow(1, 10))
    assert speaking.room_bytes == INITIAL_WINDOW_BYTES - 1


async def test_a_program_that_does_not_read_is_brought_no_more_than_its_window():
    stream = ProxiedStream(1, Sent())
    stream.on_frame(StreamBytes(1, 0, bytes(INITIAL_WINDOW_BYTES)))
    with pytest.raises(ValueError, match="more than its window"):
        stream.on_frame(StreamBytes(1, INITIAL_WINDOW_BYTES, b"x"))


async def test_what_had_to_wait_for_long_is_as_large_as_before(monkeypatch):
    labels = []

    class Slow(Sent):
        full = False

        def try_put(self, stream, head, data, label):
            labels.append(label)
            return not self.full

    sent = Slow()
    stream = ProxiedStream(1, sent)
    stream.write(bytes(100_000))
    sent.full = True
    assert stream.write(bytes(100_000)) == 0
    later_s = asyncio.get_running_loop().time() + 5.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: later_s)
    sent.full = False
    assert stream.write(bytes(100_000)) == 100_000
    assert set(labels[-6:]) == {LARGE}
    much_later_s = later_s + 5.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: much_later_s)
    stream.write(bytes(10))
    assert labels[-1] is SMALL


HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"


async def test_an_announced_download_is_told_and_its_window_is_as_large_at_once():
    sent = Sent(lends_bytes=WINDOW_BYTES)
    stream = ProxiedStream(1, sent, bodies=AnnouncedBodies())
    stream.on_frame(StreamBytes(1, 0, HEAD % 40_000_000))
    assert sent.told == [(40_000_000 - SMALL_BYTES, Direction.DOWN)]
    assert sent.windows() == [WINDOW_BYTES]
    assert stream.lent_bytes == WINDOW_BYTES - INITIAL_WINDOW_BYTES


async def test_a_server_is_who_was_asked_for_or_by_an_address_who_the_first_words_are_for():
    words = b"GET / HTTP/1.1\r\nHost: shop.example\r\n\r\n"
    found = []
    for host in ("192.0.2.7", "2001:db8::7", "front.example"):
        stream = ProxiedStream(1, Sent(), bodies=AnnouncedBodies())
        stream.ask(host, 80)
        assert stream.server == host
        stream.write(words)
        found.append(stream.server)
    assert found == ["shop.example", "shop.example", "front.example"]


async def test_what_a_server_did_before_is_told_where_nothing_says_its_length():
    history = SizeHistory()
    for number in range(4):
        sent = Sent()
        stream = ProxiedStream(
            number, sent, bodies=AnnouncedBodies(), bursts=ExpectedBursts(history)
        )
        stream.ask("films.example", 443)
        stream.write(b"\x16\x03\x01")
        stream.on_frame(StreamBytes(number, 0, bytes(100_000)))
        now_s = asyncio.get_running_loop().time()
        # Of an expected rest nothing may come: after a pause the program waits no more.
        waits = [stream.waits_for(Direction.DOWN, now_s + after_s) for after_s in (0.0, 2.0)]
        stream.on_frame(StreamBytes(number, 100_000, bytes(100_000)))
        told, sent.ends = list(sent.told), True
        stream.finish()
        stream.on_frame(StreamEnd(number, 200_000))
    assert told == [(200_000 - SMALL_BYTES, Direction.DOWN)]
    assert waits == [True, False]
    assert len(history.sizes_above("films.example", 443, Direction.DOWN, 199_999)) == 4


async def test_of_http_its_own_word_counts():
    history = SizeHistory()
    for _ in range(3):
        history.learn("films.example", 80, Direction.DOWN, 9_000_000)
    sent = Sent()
    stream = ProxiedStream(1, sent, bodies=AnnouncedBodies(), bursts=ExpectedBursts(history))
    stream.ask("films.example", 80)
    stream.write(b"GET / HTTP/1.1\r\nHost: films.example\r\n\r\n")
    assert sent.told == []
