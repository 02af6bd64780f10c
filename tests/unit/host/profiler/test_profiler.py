"""Sizes of transfers that HTTP tells, and what the profiler learns of them."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from cedos.controller.hint import HintRequest
from cedos.host.profiler.frame import CapturedPacket
from cedos.host.profiler.profiler import Profiler
from cedos.host.profiler.sizes import SizeHistory
from cedos.model import Direction

DOWN, UP = Direction.DOWN, Direction.UP


def test_a_download_from_its_connection_to_its_length(web):
    profiler = Profiler()
    (opened,) = profiler.on_open(web.key, 0.9)
    assert (opened.direction, opened.server_name) == (DOWN, None)
    assert (opened.size.median_bytes, opened.size.source) == (3_000, "default")
    talk = web.talk(profiler)
    (asked,) = talk.send(web.get)
    assert (asked.key, asked.direction, asked.server_name) == (web.key, DOWN, "a.example")
    assert asked.size.source == "default"
    (answered,) = talk.receive(web.answer(10_000_000), body=10_000_000)
    assert (answered.direction, answered.size) == (DOWN, web.exactly(10_000_000))
    assert not any(told.tls for told in (opened, asked, answered))
    assert profiler.server_name(web.key) == "a.example"


def test_an_upload_states_its_length_at_once(web):
    talk = web.talk()
    (told,) = talk.send("PUT /x HTTP/1.1\r\nHost: a.example\r\nContent-Length: 5000\r\n\r\n", 5000)
    assert (told.direction, told.size) == (UP, web.exactly(5000))
    assert talk.receive("HTTP/1.1 100 Continue\r\n\r\n") == []
    assert talk.receive("HTTP/1.1 204 No Content\r\n\r\n") == []


def test_a_chunked_upload_and_a_chunked_download(web):
    talk = web.talk()
    head = "POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n"
    (sent,) = talk.send(head, 70_000)
    assert (sent.direction, sent.size.median_bytes) == (UP, 100_000)
    (received,) = talk.receive(web.chunked_answer, 250_000)
    assert (received.direction, received.size.median_bytes) == (DOWN, 100_000)
    (unstated,) = web.talk().receive("HTTP/1.0 200 OK\r\n\r\n")
    assert (unstated.direction, unstated.size.median_bytes) == (DOWN, 3_000)


def test_keep_alive_transfers_are_told_one_by_one_and_learned(web):
    profiler = Profiler()
    profiler.on_open(web.key, 0.9)
    talk = web.talk(profiler)
    for number in range(12):
        (asked,) = talk.send(web.get)
        assert asked.size.source == ("history" if number else "default")
        (answered,) = talk.receive(web.answer(40_000 + number), body=40_000 + number)
        assert answered.size == web.exactly(40_000 + number)
    talk.close()
    for host in ("a.example", web.server):
        estimate = profiler.history.estimate(host, 80, DOWN)
        assert 40_000 <= estimate.median_bytes < 40_012
        assert profiler.history.samples(host, 80, DOWN) == 12
        assert profiler.history.estimate(host, 80, UP).median_bytes == 0
    (again,) = profiler.on_open(replace(web.key, local_port=40001), 2.0)
    assert (again.direction, again.size.source) == (DOWN, "history")


def test_pipelined_answers_find_their_requests(web):
    talk = web.talk()
    assert talk.send("HEAD / HTTP/1.1\r\nHost: a.example\r\n\r\n") == []
    assert len(talk.send(web.get)) == 1
    assert talk.receive(web.answer(999_999)) == []  # of HEAD: a length, but no body
    (told,) = talk.receive(web.answer(5), 5)
    assert told.size == web.exactly(5)
    assert talk.profiler.history.samples("a.example", 80, DOWN) == 1


def test_what_was_had_before_is_known_when_it_is_asked_for(web):
    talk = web.talk()
    for number, size in enumerate((40_000, 900_000, 70)):
        get = f"GET /{number} HTTP/1.1\r\nHost: a.example\r\n\r\n"
        talk.send(get)
        talk.receive(web.chunked_answer if number == 1 else web.answer(size), size)
    for number, size in enumerate((40_000, 900_000, 70)):
        (asked,) = talk.send(f"GET /{number} HTTP/1.1\r\nHost: a.example\r\n\r\n")
        assert (asked.size.median_bytes, asked.size.source) == (size, "history")
        (answered,) = talk.receive(web.chunked_answer, size)
        assert answered.size.median_bytes == size
    (new,) = talk.send("GET /9 HTTP/1.1\r\nHost: a.example\r\n\r\n")
    assert new.size.median_bytes not in (900_000, 70)
    talk.receive("HTTP/1.1 404 Not Found\r\nContent-Length: 150\r\n\r\n", 150)
    (again,) = talk.send("GET /9 HTTP/1.1\r\nHost: a.example\r\n\r\n")
    assert again.size.source == "history"
    assert again.size.median_bytes != 150


def test_bodies_in_chunks_are_unlike_all_else_of_a_host(web):
    talk = web.talk()
    for number in range(20):
        talk.send(f"GET /{number} HTTP/1.1\r\nHost: a.example\r\n\r\n")
        if number % 5:
            talk.receive(web.answer(1_000), 1_000)
        else:
            talk.receive(web.chunked_answer, 700_000)
    (asked,) = talk.send("GET /new HTTP/1.1\r\nHost: a.example\r\n\r\n")
    assert asked.size.median_bytes == 1_000
    (told,) = talk.receive(web.chunked_answer, 650_000)
    assert told.size.median_bytes == 700_000


def test_a_first_chunk_that_no_buffer_cut_is_taken_for_all(web):
    profiler = Profiler()
    for first, least, most in (
        ("1a2b", 0x1A2B, 0x1A2B),
        ("8000", 110_000, 200_000),
        ("10", 100_000, 100_001),
    ):
        talk = web.talk(
            profiler, replace(web.key, local_port=int(first, 16), remote_port=int(first, 16))
        )
        talk.send(web.get.replace("/x", f"/{first}"))
        (told,) = talk.receive(web.chunked_answer + first + "\r\n", 90_000)
        assert least <= told.size.median_bytes <= most
        assert told.size.source == ("history" if first == "1a2b" else "progress")
    progress = talk.profiler.on_progress(talk.key, 150_000, 100)
    assert progress[0].size.source == "progress"


def test_unstated_lengths_are_learned_from_what_follows(web):
    talk = web.talk()
    for _ in range(2):
        talk.send(web.get)
        talk.receive(web.chunked_answer, 250_000)
    assert talk.profiler.history.samples("a.example", 80, DOWN) == 1
    talk.close()
    assert talk.profiler.history.samples("a.example", 80, DOWN) == 2
    assert talk.profiler.history.estimate("a.example", 80, DOWN).median_bytes == 250_000


def test_a_tunnel_counts_as_a_whole(web, hello):
    profiler = Profiler()
    talk = web.talk(profiler, replace(web.key, remote_port=3128))
    (told,) = talk.send("CONNECT far.example:443 HTTP/1.1\r\nHost: far.example:443\r\n\r\n")
    assert told.server_name == "far.example"
    assert talk.receive("HTTP/1.1 200 Connected\r\n\r\n") == []
    assert talk.send(hello("far.example"), 300) == []  # that is known
    talk.receive(b"", 90_000)
    talk.close()
    assert profiler.history.estimate("far.example", 3128, DOWN).median_bytes > 90_000


def test_a_flow_older_than_the_profiler_is_counted_from_where_it_stands(web):
    profiler = Profiler()
    assert profiler.on_progress(web.key, 900_000_000, 5_000) == []
    talk = web.talk(profiler)
    (asked,) = talk.send(web.get)
    assert asked.size.median_bytes == 3_000
    assert profiler.on_progress(web.key, 900_002_000, 5_100) == []
    (told,) = profiler.on_progress(web.key, 900_500_000, 5_100)
    assert 500_000 <= told.size.low_bytes < 900_000_000


def test_an_mptcp_connection_is_one_whatever_the_subflow(web):
    profiler = Profiler()
    talk = web.talk(profiler, mptcp=True)
    for _ in range(2):
        talk.send(web.get)
        talk.receive(web.chunked_answer, 50_000)
    again = talk.packet(UP, web.get.encode())
    assert len(profiler.observe(again, 2.0)) == 1
    assert profiler.observe(again._replace(interface="lte0"), 2.1) == []  # reinjected
    talk.close()
    assert profiler.history.samples("a.example", 80, DOWN) == 2
    assert profiler.history.estimate("a.example", 80, DOWN).median_bytes == 50_000


def test_flows_are_bounded(web):
    profiler = Profiler(SizeHistory(max_hosts=10), max_flows=20)
    for port in range(1, 500):
        key = replace(web.key, local_port=port, remote_port=port)
        profiler.on_open(key, 1.0)
        profiler.on_close(replace(key, local_port=port + 1000), 10, 10)
    assert len(profiler) == 20
    assert len(profiler.history) == 10


def test_a_hint_gives_the_direction_of_what_cannot_be_read(web):
    profiler = Profiler()
    profiler.hint(1, HintRequest(port=443, size_bytes=9, direction=UP), None)
    profiler.hint(2, HintRequest(port=80, size_bytes=9, direction=UP), None)
    assert profiler.on_open(web.tls_key, 1.0)[0].direction is UP
    (asked,) = web.talk(profiler).send(web.get)
    assert (asked.direction, asked.size.source) == (DOWN, "default")
    profiler.unhint(1)
    assert profiler.on_open(replace(web.tls_key, local_port=2), 1.0)[0].size.source == "default"


def test_a_hint_reaches_flows_under_way(web, hello):
    profiler = Profiler()
    profiler.on_open(web.tls_key, 1.0)
    profiler.observe(CapturedPacket(web.tls_key, True, hello("big.example"), 1, 1), 1.1)
    profiler.on_open(replace(web.key, local_port=3), 1.0)
    affected = profiler.hint(1, HintRequest(server_name="*.example", size_bytes=4_000_000), None)
    assert [(told.key, told.size) for told in affected] == [
        (web.tls_key, web.exactly(4_000_000, "hint"))
    ]
    (beyond,) = profiler.on_progress(web.tls_key, 4_000_001, 0)
    assert beyond.size.source == "progress"


PAYLOADS = st.one_of(
    st.binary(max_size=60),
    st.sampled_from(
        [
            b"GET /x HTTP/1.1\r\nHost: a.example\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
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
def test_no_order_of_events_breaks_it(web, steps):
    profiler = Profiler()
    told = []
    for at, step in enumerate(steps):
        if step is None:
            profiler.on_close(web.key, 10_000, 10_000)
            told += profiler.on_open(web.key, float(at))
        elif len(step) == 2:
            told += profiler.on_progress(web.key, step[0], step[1])
        else:
            payload, outgoing, sequence, acknowledgement, mptcp = step
            packet = CapturedPacket(web.key, outgoing, payload, sequence, acknowledgement, mptcp)
            told += profiler.observe(packet, float(at))
    for one in told:
        assert one.key == web.key
        assert 0 <= one.size.low_bytes <= one.size.median_bytes <= one.size.high_bytes
