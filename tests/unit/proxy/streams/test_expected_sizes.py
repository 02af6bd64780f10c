"""Expected sizes of streams: as HTTP announces, and as the server's earlier ones."""

import ssl
from contextlib import suppress

import pytest

from cedos.host.profiler.sizes import SizeHistory
from cedos.model import Direction
from cedos.proxy.streams.expected_sizes import AnnouncedBodies, ExpectedBursts

GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"


def client_hello(name):
    """As Python's own TLS sends it."""
    sent = ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), sent, server_hostname=name)
    with suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return sent.read()


def test_a_response_announces_its_body_once():
    bodies = AnnouncedBodies()
    assert bodies.sends(0, GET) == 0
    head = HEAD % 40_000_000
    assert bodies.comes(0, head + bytes(1_000)) == 40_000_000
    assert bodies.comes(len(head) + 1_000, HEAD % 99) == 0  # that is its body


def test_chunked_bodies_and_contradictions_are_unknown():
    for fields in (b"Transfer-Encoding: chunked", b"Content-Length: 5\r\nContent-Length: 6"):
        assert AnnouncedBodies().comes(0, b"HTTP/1.1 200 OK\r\n" + fields + b"\r\n\r\n") == 0


def test_what_does_not_begin_as_http_announces_nothing_ever():
    bodies = AnnouncedBodies()
    assert bodies.comes(0, b"\x16\x03\x03") == 0
    assert bodies.comes(3, HEAD % 1_000) == 0
    assert bodies.sends(0, b"\x16\x03\x01") == 0
    assert bodies.sends(3, b"PUT / HTTP/1.1\r\nContent-Length: 1000\r\n\r\n") == 0


def test_the_first_words_say_whom_they_are_for():
    plain, hidden, silent = AnnouncedBodies(), AnnouncedBodies(), AnnouncedBodies()
    plain.sends(0, GET.replace(b"Host: h", b"Host: www.example.org"))
    hidden.sends(0, memoryview(client_hello("shop.example")))
    silent.sends(0, b"SSH-2.0-OpenSSH_9.2\r\n")
    assert (plain.server_name, hidden.server_name) == ("www.example.org", "shop.example")
    assert silent.server_name is None
    plain.sends(len(GET) + 14, GET.replace(b"Host: h", b"Host: other.example"))
    assert plain.server_name == "www.example.org"


UP, DOWN = Direction.UP, Direction.DOWN
MB = 1_000_000


class Program:
    """Asks one server again and again over one connection, and hears what is expected."""

    def __init__(self, history, server="films.example"):
        self.bursts = ExpectedBursts(history)
        self.now_s, self.server = 50.0, server
        self.heard = []

    def moves(self, way, size):
        if way is UP and self.bursts.is_new_request(self.now_s):
            self.bursts.begin(self.server, 443)
        self.heard += self.bursts.moves(way, size, self.now_s)
        self.now_s += 0.05

    def asks(self, *parts, pause_s=5.0):
        """A request of 500 bytes, and an answer in parts; what was expected meanwhile."""
        self.now_s += pause_s
        self.heard = []
        self.moves(UP, 500)
        for part in parts:
            self.moves(DOWN, part)
        return self.heard


@pytest.fixture
def history():
    return SizeHistory()


def test_the_fourth_film_is_expected_as_soon_as_it_is_asked_for(history):
    program = Program(history)
    for _ in range(3):
        assert program.asks(6 * MB, 6 * MB) == []
    assert program.asks(6 * MB, 6 * MB) == [(DOWN, 12 * MB)]


def test_a_long_answer_takes_its_time_and_is_one_burst(history):
    program = Program(history)
    program.moves(UP, 500)
    program.now_s += 4.0
    program.moves(DOWN, MB)
    program.moves(UP, 50)  # a window update, say
    program.moves(DOWN, MB)
    program.bursts.on_end()
    assert history.sizes_above("films.example", 443, DOWN, 0) == [2.0 * MB]


def test_what_becomes_larger_than_most_is_taken_for_one_of_the_large_ones(history):
    for size in (5_000, 5_000, 5_000, 5_000, 8 * MB, 9 * MB, 10 * MB):
        history.learn("films.example", 443, DOWN, size)
    program = Program(history)
    assert program.asks(3_000) == [(DOWN, 5_000)]
    assert program.asks(3_000, 60_000) == [(DOWN, 5_000), (DOWN, 9 * MB - 63_000)]
    # (It goes on beyond the middle one: fewer than three are known that were so large.)
    assert program.asks(9_500_000)[-1] == (DOWN, 5_000)


def test_uploads_are_expected_too_and_breaks_teach_nothing(history):
    for _ in range(3):
        program = Program(history)
        program.moves(UP, 4 * MB)
        program.bursts.on_end()
    program = Program(history)
    program.moves(UP, 100)
    assert (UP, 4 * MB - 100) in program.heard
    program.bursts.on_cut_off()
    program.bursts.on_end()
    assert len(history.sizes_above("films.example", 443, UP, 0)) == 3
    program.moves(DOWN, 70)  # late bytes of a stream that is over ask nobody
    assert program.heard[-1] != (DOWN, 70)
