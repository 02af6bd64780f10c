"""What HTTP says of its transfers, and what is learned of them."""

from dataclasses import replace
from typing import Any

from cedos.model import Direction
from cedos.profiler.profiler import Profiler

Web = Any
DOWN, UP = Direction.DOWN, Direction.UP


def test_a_download_from_its_connection_to_its_length(web: Web) -> None:
    profiler = Profiler()
    (opened,) = profiler.opened(web.key, 0.9)
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


def test_an_upload_states_its_length_at_once(web: Web) -> None:
    talk = web.talk()
    (told,) = talk.send("PUT /x HTTP/1.1\r\nHost: a.example\r\nContent-Length: 5000\r\n\r\n", 5000)
    assert (told.direction, told.size) == (UP, web.exactly(5000))
    assert talk.receive("HTTP/1.1 100 Continue\r\n\r\n") == []
    assert talk.receive("HTTP/1.1 204 No Content\r\n\r\n") == []


def test_a_chunked_upload_and_a_chunked_download(web: Web) -> None:
    talk = web.talk()
    head = "POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n"
    (sent,) = talk.send(head, 70_000)
    assert (sent.direction, sent.size.median_bytes) == (UP, 100_000)
    (received,) = talk.receive(web.chunked_answer, 250_000)
    assert (received.direction, received.size.median_bytes) == (DOWN, 100_000)
    (unstated,) = web.talk().receive("HTTP/1.0 200 OK\r\n\r\n")
    assert (unstated.direction, unstated.size.median_bytes) == (DOWN, 3_000)


def test_keep_alive_transfers_are_told_one_by_one_and_learned(web: Web) -> None:
    profiler = Profiler()
    profiler.opened(web.key, 0.9)
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
    (again,) = profiler.opened(replace(web.key, local_port=40001), 2.0)
    assert (again.direction, again.size.source) == (DOWN, "history")


def test_pipelined_answers_find_their_requests(web: Web) -> None:
    talk = web.talk()
    assert talk.send("HEAD / HTTP/1.1\r\nHost: a.example\r\n\r\n") == []
    assert len(talk.send(web.get)) == 1
    assert talk.receive(web.answer(999_999)) == []  # of HEAD: a length, but no body
    (told,) = talk.receive(web.answer(5), 5)
    assert told.size == web.exactly(5)
    assert talk.profiler.history.samples("a.example", 80, DOWN) == 1


def test_a_head_tells_what_a_get_would_bring(web: Web) -> None:
    talk = web.talk()
    talk.send(web.get.replace("GET", "HEAD"))
    talk.receive(web.answer(70_000))
    (asked,) = talk.send(web.get)
    assert (asked.size.median_bytes, asked.size.source) == (70_000, "history")


def test_a_part_is_as_long_as_it_says_and_says_nothing_of_the_whole(web: Web) -> None:
    talk = web.talk()
    head = "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-99/5000\r\n"
    for _ in range(2):
        assert talk.send(web.get)[0].size.median_bytes != 5000
        (told,) = talk.receive(head + "Content-Length: 100\r\n\r\n", 100)
        assert told.size == web.exactly(100)
    talk.send(web.get)
    talk.receive(web.answer(5000), 5000)
    assert talk.send(web.get)[0].size.median_bytes == 5000


def test_what_was_had_before_is_known_when_it_is_asked_for(web: Web) -> None:
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


def test_bodies_in_chunks_are_unlike_all_else_of_a_host(web: Web) -> None:
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


def test_a_first_chunk_that_no_buffer_cut_is_taken_for_all(web: Web) -> None:
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
    progress = talk.profiler.progressed(talk.key, 150_000, 100, 2.0)
    assert progress[0].size.source == "progress"


def test_an_answer_without_body_is_no_transfer(web: Web) -> None:
    talk = web.talk()
    for status in ("304 Not Modified\r\nContent-Length: 500", "200 OK\r\nContent-Length: 0"):
        talk.send(web.get)
        assert talk.receive(f"HTTP/1.1 {status}\r\n\r\n") == []
        assert talk.progress() == []
    assert talk.profiler.history.estimate("a.example", 80, DOWN).median_bytes == 0


def test_unstated_lengths_are_learned_from_what_follows(web: Web) -> None:
    talk = web.talk()
    for _ in range(2):
        talk.send(web.get)
        talk.receive(web.chunked_answer, 250_000)
    assert talk.profiler.history.samples("a.example", 80, DOWN) == 1
    talk.close()
    assert talk.profiler.history.samples("a.example", 80, DOWN) == 2
    assert talk.profiler.history.estimate("a.example", 80, DOWN).median_bytes == 250_000
