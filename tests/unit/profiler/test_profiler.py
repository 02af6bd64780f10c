"""Flows that are played to the profiler: HTTP, hints, MPTCP, and any order of events."""

from collections.abc import Callable
from dataclasses import replace
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.model import Bulk, Direction, FlowKey, Label, SizeEstimate, Urgency
from cedos.profiler.frame import Captured
from cedos.profiler.hints import Hint, Match
from cedos.profiler.profiler import Profiler, SizeLearned
from cedos.profiler.sizes import SizeHistory

Hello = Callable[[str], bytes]
DOWN, UP = Direction.DOWN, Direction.UP
SERVER = "198.51.100.1"
KEY = FlowKey(ip_address("192.168.43.2"), 40000, ip_address(SERVER), 80)
TLS_KEY = replace(KEY, remote_port=443)


def exactly(size: int, source: str = "content-length") -> SizeEstimate:
    return SizeEstimate(size, size, size, source)


class Talk:
    """A TCP connection that is played to the profiler; sequence numbers wrap on the way."""

    def __init__(self, profiler: Profiler, key: FlowKey = KEY, *, mptcp: bool = False) -> None:
        self.profiler, self.key, self.mptcp = profiler, key, mptcp
        self.bytes = {UP: 0, DOWN: 0}
        self.now_s = 1.0

    def packet(self, way: Direction, payload: bytes) -> Captured:
        start = {UP: 4_294_900_000, DOWN: 77}
        sequence = {one: (start[one] + self.bytes[one]) % (1 << 32) for one in Direction}
        other = DOWN if way is UP else UP
        return Captured(
            self.key, way is UP, payload, sequence[way], sequence[other], self.mptcp, "wlan0"
        )

    def send(self, payload: str | bytes, body: int = 0, way: Direction = UP) -> list[SizeLearned]:
        raw = payload if isinstance(payload, bytes) else payload.encode()
        told = self.profiler.observe(self.packet(way, raw), self.now_s)
        self.bytes[way] += len(raw) + body
        return told

    def receive(self, payload: str | bytes, body: int = 0) -> list[SizeLearned]:
        return self.send(payload, body, DOWN)

    def progress(self) -> list[SizeLearned]:
        return self.profiler.progressed(self.key, self.bytes[DOWN], self.bytes[UP], self.now_s)

    def close(self) -> None:
        self.profiler.closed(self.key, self.bytes[DOWN], self.bytes[UP])


GET = "GET /x HTTP/1.1\r\nHost: a.example\r\n\r\n"
CHUNKED_ANSWER = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def answer(length: int) -> str:
    return f"HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n"


def test_a_download_from_its_connection_to_its_length() -> None:
    profiler = Profiler()
    (opened,) = profiler.opened(KEY, 0.9)
    assert (opened.direction, opened.server_name) == (DOWN, None)
    assert (opened.size.median_bytes, opened.size.source) == (3_000, "default")
    talk = Talk(profiler)
    (asked,) = talk.send(GET)
    assert (asked.key, asked.direction, asked.server_name) == (KEY, DOWN, "a.example")
    assert asked.size.source == "default"
    (answered,) = talk.receive(answer(10_000_000), body=10_000_000)
    assert (answered.direction, answered.size) == (DOWN, exactly(10_000_000))
    assert profiler.server_name(KEY) == "a.example"


def test_an_upload_states_its_length_at_once() -> None:
    talk = Talk(Profiler())
    (told,) = talk.send("PUT /x HTTP/1.1\r\nHost: a.example\r\nContent-Length: 5000\r\n\r\n", 5000)
    assert (told.direction, told.size) == (UP, exactly(5000))
    assert talk.receive("HTTP/1.1 100 Continue\r\n\r\n") == []
    assert talk.receive("HTTP/1.1 204 No Content\r\n\r\n") == []


def test_a_chunked_upload_and_a_chunked_download() -> None:
    talk = Talk(Profiler())
    head = "POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n"
    (sent,) = talk.send(head, 70_000)
    assert (sent.direction, sent.size.median_bytes) == (UP, 100_000)
    (received,) = talk.receive(CHUNKED_ANSWER, 250_000)
    assert (received.direction, received.size.median_bytes) == (DOWN, 100_000)
    (unstated,) = Talk(Profiler()).receive("HTTP/1.0 200 OK\r\n\r\n")
    assert (unstated.direction, unstated.size.median_bytes) == (DOWN, 3_000)


def test_keep_alive_transfers_are_told_one_by_one_and_learned() -> None:
    profiler = Profiler()
    profiler.opened(KEY, 0.9)
    talk = Talk(profiler)
    for number in range(12):
        (asked,) = talk.send(GET)
        assert asked.size.source == ("history" if number else "default")
        (answered,) = talk.receive(answer(40_000 + number), body=40_000 + number)
        assert answered.size == exactly(40_000 + number)
    talk.close()
    for host in ("a.example", SERVER):
        estimate = profiler.history.estimate(host, 80, DOWN)
        assert 40_000 <= estimate.median_bytes < 40_012
        assert profiler.history.samples(host, 80, DOWN) == 12
        assert profiler.history.estimate(host, 80, UP).median_bytes == 0
    (again,) = profiler.opened(replace(KEY, local_port=40001), 2.0)
    assert (again.direction, again.size.source) == (DOWN, "history")


def test_pipelined_answers_find_their_requests() -> None:
    talk = Talk(Profiler())
    assert talk.send("HEAD / HTTP/1.1\r\nHost: a.example\r\n\r\n") == []
    assert len(talk.send(GET)) == 1
    assert talk.receive(answer(999_999)) == []  # of HEAD: a length, but no body
    (told,) = talk.receive(answer(5), 5)
    assert told.size == exactly(5)
    assert talk.profiler.history.samples("a.example", 80, DOWN) == 1


def test_a_head_tells_what_a_get_would_bring() -> None:
    talk = Talk(Profiler())
    talk.send(GET.replace("GET", "HEAD"))
    talk.receive(answer(70_000))
    (asked,) = talk.send(GET)
    assert (asked.size.median_bytes, asked.size.source) == (70_000, "history")


def test_a_part_is_as_long_as_it_says_and_says_nothing_of_the_whole() -> None:
    talk = Talk(Profiler())
    head = "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-99/5000\r\n"
    for _ in range(2):
        assert talk.send(GET)[0].size.median_bytes != 5000
        (told,) = talk.receive(head + "Content-Length: 100\r\n\r\n", 100)
        assert told.size == exactly(100)
    talk.send(GET)
    talk.receive(answer(5000), 5000)
    assert talk.send(GET)[0].size.median_bytes == 5000


def test_what_was_had_before_is_known_when_it_is_asked_for() -> None:
    talk = Talk(Profiler())
    for number, size in enumerate((40_000, 900_000, 70)):
        get = f"GET /{number} HTTP/1.1\r\nHost: a.example\r\n\r\n"
        talk.send(get)
        talk.receive(CHUNKED_ANSWER if number == 1 else answer(size), size)
    for number, size in enumerate((40_000, 900_000, 70)):
        (asked,) = talk.send(f"GET /{number} HTTP/1.1\r\nHost: a.example\r\n\r\n")
        assert (asked.size.median_bytes, asked.size.source) == (size, "history")
        (answered,) = talk.receive(CHUNKED_ANSWER, size)
        assert answered.size.median_bytes == size
    (new,) = talk.send("GET /9 HTTP/1.1\r\nHost: a.example\r\n\r\n")
    assert new.size.median_bytes not in (900_000, 70)
    talk.receive("HTTP/1.1 404 Not Found\r\nContent-Length: 150\r\n\r\n", 150)
    (again,) = talk.send("GET /9 HTTP/1.1\r\nHost: a.example\r\n\r\n")
    assert again.size.source == "history"
    assert again.size.median_bytes != 150


def test_bodies_in_chunks_are_unlike_all_else_of_a_host() -> None:
    talk = Talk(Profiler())
    for number in range(20):
        talk.send(f"GET /{number} HTTP/1.1\r\nHost: a.example\r\n\r\n")
        if number % 5:
            talk.receive(answer(1_000), 1_000)
        else:
            talk.receive(CHUNKED_ANSWER, 700_000)
    (asked,) = talk.send("GET /new HTTP/1.1\r\nHost: a.example\r\n\r\n")
    assert asked.size.median_bytes == 1_000
    (told,) = talk.receive(CHUNKED_ANSWER, 650_000)
    assert told.size.median_bytes == 700_000


def test_a_first_chunk_that_no_buffer_cut_is_taken_for_all() -> None:
    profiler = Profiler()
    for first, least, most in (
        ("1a2b", 0x1A2B, 0x1A2B),
        ("8000", 110_000, 200_000),
        ("10", 100_000, 100_001),
    ):
        talk = Talk(profiler, replace(KEY, local_port=int(first, 16), remote_port=int(first, 16)))
        talk.send(GET.replace("/x", f"/{first}"))
        (told,) = talk.receive(CHUNKED_ANSWER + first + "\r\n", 90_000)
        assert least <= told.size.median_bytes <= most
        assert told.size.source == ("history" if first == "1a2b" else "progress")
    progress = talk.profiler.progressed(talk.key, 150_000, 100, 2.0)
    assert progress[0].size.source == "progress"


def test_an_answer_without_body_is_no_transfer() -> None:
    talk = Talk(Profiler())
    for status in ("304 Not Modified\r\nContent-Length: 500", "200 OK\r\nContent-Length: 0"):
        talk.send(GET)
        assert talk.receive(f"HTTP/1.1 {status}\r\n\r\n") == []
        assert talk.progress() == []
    assert talk.profiler.history.estimate("a.example", 80, DOWN).median_bytes == 0


def test_unstated_lengths_are_learned_from_what_follows() -> None:
    talk = Talk(Profiler())
    for _ in range(2):
        talk.send(GET)
        talk.receive(CHUNKED_ANSWER, 250_000)
    assert talk.profiler.history.samples("a.example", 80, DOWN) == 1
    talk.close()
    assert talk.profiler.history.samples("a.example", 80, DOWN) == 2
    assert talk.profiler.history.estimate("a.example", 80, DOWN).median_bytes == 250_000


def test_a_retransmission_tells_nothing_new() -> None:
    profiler = Profiler()
    talk = Talk(profiler)
    packet = talk.packet(UP, GET.encode())
    assert len(profiler.observe(packet, 1.0)) == 1
    assert profiler.observe(packet, 1.2) == []
    talk.send(b"")
    response = talk.packet(DOWN, answer(7).encode())
    assert len(profiler.observe(response, 1.3)) == 1
    assert profiler.observe(response, 1.4) == []
    assert profiler.history.samples(SERVER, 80, DOWN) == 1


def test_a_tunnel_counts_as_a_whole(hello: Hello) -> None:
    profiler = Profiler()
    talk = Talk(profiler, replace(KEY, remote_port=3128))
    (told,) = talk.send("CONNECT far.example:443 HTTP/1.1\r\nHost: far.example:443\r\n\r\n")
    assert told.server_name == "far.example"
    assert talk.receive("HTTP/1.1 200 Connected\r\n\r\n") == []
    assert talk.send(hello("far.example"), 300) == []  # that is known
    talk.receive(b"", 90_000)
    talk.close()
    assert profiler.history.estimate("far.example", 3128, DOWN).median_bytes > 90_000


def test_an_upgraded_connection_counts_as_a_whole() -> None:
    talk = Talk(Profiler())
    talk.send(GET)
    assert talk.receive("HTTP/1.1 101 Switching Protocols\r\n\r\n", 60_000) == []
    talk.close()
    assert talk.profiler.history.estimate("a.example", 80, DOWN).median_bytes > 60_000


def test_progress_counts_from_the_transfer_not_from_the_connection() -> None:
    profiler = Profiler()
    profiler.opened(KEY, 0.9)
    talk = Talk(profiler)
    talk.send(GET)
    talk.receive(answer(10_000_000), 10_000_000)
    assert talk.progress() == []  # it was told exactly
    talk.send(GET)
    talk.receive(CHUNKED_ANSWER, 0)
    assert talk.progress() == []
    talk.receive(b"", 40_000_000)
    (told,) = talk.progress()
    assert 40_000_000 < told.size.low_bytes < 50_000_000


def test_a_flow_older_than_the_profiler_is_counted_from_where_it_stands() -> None:
    profiler = Profiler()
    assert profiler.progressed(KEY, 900_000_000, 5_000, 0.5) == []
    talk = Talk(profiler)
    (asked,) = talk.send(GET)
    assert asked.size.median_bytes == 3_000
    assert profiler.progressed(KEY, 900_002_000, 5_100, 1.5) == []
    (told,) = profiler.progressed(KEY, 900_500_000, 5_100, 1.6)
    assert 500_000 <= told.size.low_bytes < 900_000_000


def test_an_mptcp_connection_is_one_whatever_the_subflow() -> None:
    profiler = Profiler()
    talk = Talk(profiler, mptcp=True)
    for _ in range(2):
        talk.send(GET)
        talk.receive(CHUNKED_ANSWER, 50_000)
    again = talk.packet(UP, GET.encode())
    assert len(profiler.observe(again, 2.0)) == 1
    assert profiler.observe(again._replace(interface="lte0"), 2.1) == []  # reinjected
    talk.close()
    assert profiler.history.samples("a.example", 80, DOWN) == 2
    assert profiler.history.estimate("a.example", 80, DOWN).median_bytes == 50_000


def test_a_fallback_to_tcp_is_not_counted_on() -> None:
    profiler = Profiler()
    talk = Talk(profiler, mptcp=True)
    talk.send(GET)
    talk.receive(CHUNKED_ANSWER, 50_000)
    talk.mptcp = False
    assert len(talk.send(GET)) == 1
    assert len(talk.receive(CHUNKED_ANSWER, 50_000)) == 1
    talk.close()
    assert len(profiler.history) == 3
    assert profiler.history.samples("a.example", 80, DOWN) == 0


def test_a_server_on_this_host_sends_up() -> None:
    profiler = Profiler()
    key = FlowKey(ip_address("192.168.43.2"), 8080, ip_address(SERVER), 51_000)
    (opened,) = profiler.opened(key, 0.9, incoming=True)
    assert opened.direction is UP
    talk = Talk(profiler, key)
    (asked,) = talk.receive(GET)
    assert asked.direction is UP
    (answered,) = talk.send(answer(1_000_000), 1_000_000)
    assert (answered.direction, answered.size) == (UP, exactly(1_000_000))
    assert profiler.history.samples(SERVER, 8080, UP) == 1
    assert len(profiler.history) == 1


def test_an_opening_told_late_changes_nothing() -> None:
    profiler = Profiler()
    talk = Talk(profiler)
    talk.send(GET)
    assert profiler.opened(KEY, 1.1) == []
    assert profiler.server_name(KEY) == "a.example"
    assert len(profiler.opened(KEY, 100.0)) == 1  # the same ports again: another connection
    assert profiler.server_name(KEY) is None


def test_hints_win_over_history_but_not_over_what_the_message_states() -> None:
    profiler = Profiler()
    for _ in range(5):
        profiler.closed(TLS_KEY, 9_000, 500)
    label = Label(Urgency.BACKGROUND, Bulk.LARGE)
    hint = Hint(
        Match(destination=SERVER), size_bytes=50_000_000, label=label, deadline_s=60.0, until_s=10.0
    )
    number, affected = profiler.hint(hint, 1.0)
    assert affected == []
    (told,) = profiler.opened(TLS_KEY, 1.0)
    assert told.size == exactly(50_000_000, "hint")
    assert (told.label, told.deadline_s, told.direction) == (label, 60.0, DOWN)
    talk = Talk(profiler)
    assert talk.send(GET)[0].size == exactly(50_000_000, "hint")
    (stated,) = talk.receive(answer(77), 77)
    assert (stated.size, stated.label) == (exactly(77), label)
    (late,) = profiler.opened(replace(TLS_KEY, local_port=7), 10.0)
    assert (late.size.source, late.label) == ("history", None)
    assert profiler.unhint(number) is False  # it had run out


def test_a_hint_gives_the_direction_of_what_cannot_be_read() -> None:
    profiler = Profiler()
    number, _ = profiler.hint(Hint(Match(port=443), size_bytes=9, direction=UP), 0.0)
    profiler.hint(Hint(Match(port=80), size_bytes=9, direction=UP), 0.0)
    assert profiler.opened(TLS_KEY, 1.0)[0].direction is UP
    (asked,) = Talk(profiler).send(GET)
    assert (asked.direction, asked.size.source) == (DOWN, "default")
    assert profiler.unhint(number)
    assert profiler.opened(replace(TLS_KEY, local_port=2), 1.0)[0].size.source == "default"


def test_a_hint_reaches_flows_under_way(hello: Hello) -> None:
    profiler = Profiler()
    profiler.opened(TLS_KEY, 1.0)
    profiler.observe(Captured(TLS_KEY, True, hello("big.example"), 1, 1), 1.1)
    profiler.opened(replace(KEY, local_port=3), 1.0)
    _, affected = profiler.hint(Hint(Match(server_name="*.example"), size_bytes=4_000_000), 2.0)
    assert [(told.key, told.size) for told in affected] == [(TLS_KEY, exactly(4_000_000, "hint"))]
    (beyond,) = profiler.progressed(TLS_KEY, 4_000_001, 0, 3.0)
    assert beyond.size.source == "progress"


def test_a_mark_that_is_told_late_still_finds_its_hint() -> None:
    profiler = Profiler()
    profiler.hint(Hint(Match(mark=7), size_bytes=4_000_000), 0.0)
    assert Talk(profiler).send(GET)[0].size.source == "default"
    assert profiler.opened(KEY, 1.1, mark=7)[0].size == exactly(4_000_000, "hint")
    (early,) = profiler.opened(TLS_KEY, 1.1, mark=7)
    assert early.size.source == "hint"


def test_flows_are_bounded() -> None:
    profiler = Profiler(SizeHistory(max_hosts=10), max_flows=20)
    for port in range(1, 500):
        key = replace(KEY, local_port=port, remote_port=port)
        profiler.opened(key, 1.0)
        profiler.closed(replace(key, local_port=port + 1000), 10, 10)
    assert len(profiler) == 20
    assert len(profiler.history) == 10


@pytest.mark.parametrize("payload", [b"", b"\x16", b"HTTP/1.1 ", b"DELETE", b"OPTI", b"CONN x"])
def test_scraps_tell_nothing(payload: bytes) -> None:
    profiler = Profiler()
    profiler.opened(KEY, 0.0)
    assert profiler.observe(Captured(KEY, True, payload), 1.0) == []


PAYLOADS = st.one_of(
    st.binary(max_size=60),
    st.sampled_from(
        [
            GET.encode(),
            CHUNKED_ANSWER.encode(),
            answer(5).encode(),
            b"\x16\x03\x01\x00\x10\x01\x00\x00\x0c" + bytes(12),
            b"HTTP/1.1 101 x\r\n\r\n",
            b"HTTP/1.1 100 x\r\n\r\n",
            b"HEAD / HTTP/1.1\r\n\r\n",
            b"CONNECT a:1 HTTP/1.1\r\n\r\n",
            b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
        ]
    ),
)
STEPS = st.one_of(
    st.tuples(
        PAYLOADS,
        st.booleans(),
        st.none() | st.integers(0, (1 << 32) - 1),
        st.none() | st.integers(0, (1 << 32) - 1),
        st.booleans(),
    ),
    st.tuples(st.integers(0, 1 << 40), st.integers(0, 1 << 40)),
    st.none(),
)


@given(st.lists(STEPS, max_size=25))
def test_no_order_of_events_breaks_it(
    steps: list[tuple[bytes, bool, int | None, int | None, bool] | tuple[int, int] | None],
) -> None:
    profiler = Profiler()
    told: list[SizeLearned] = []
    for at, step in enumerate(steps):
        if step is None:
            profiler.closed(KEY, 10_000, 10_000)
            told += profiler.opened(KEY, float(at))
        elif len(step) == 2:
            told += profiler.progressed(KEY, step[0], step[1], float(at))
        else:
            payload, outgoing, sequence, acknowledgement, mptcp = step
            packet = Captured(KEY, outgoing, payload, sequence, acknowledgement, mptcp)
            told += profiler.observe(packet, float(at))
    for one in told:
        assert one.key == KEY
        assert 0 <= one.size.low_bytes <= one.size.median_bytes <= one.size.high_bytes


def test_a_server_called_by_its_address_learns_each_transfer_once() -> None:
    profiler = Profiler()
    talk = Talk(profiler)
    talk.send(GET.replace("a.example", SERVER))
    talk.receive(answer(4000), body=4000)
    assert profiler.history.samples(SERVER, 80, DOWN) == 1
