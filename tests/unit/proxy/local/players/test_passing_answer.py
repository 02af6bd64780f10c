"""Where answers of HTTP/1.1 end, however they are cut on their way."""

import gzip
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.proxy.local.players.passing_answer import PassingAnswer

PLAIN = b"HTTP/1.1 200 OK\r\nServer: x\r\nContent-Length: 5\r\n\r\nhello"


@given(st.lists(st.integers(0, len(PLAIN)), max_size=6))
def test_it_ends_with_its_last_byte(cuts: list[int]) -> None:
    answer = PassingAnswer(keep_bytes=10)
    edges = sorted({0, *cuts, len(PLAIN)})
    for begin, end in itertools.pairwise(edges):
        assert not answer.complete
        answer.feed(PLAIN[begin:end])
    assert answer.complete
    assert not answer.strange
    assert (answer.status, answer.body_bytes, answer.body()) == (200, 5, b"hello")


def test_what_has_no_length_is_open_ended() -> None:
    answer = PassingAnswer(keep_bytes=10)
    answer.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
    assert answer.open_ended
    assert not answer.complete
    assert answer.body() is None
    old = PassingAnswer(keep_bytes=10)
    old.feed(b"HTTP/1.0 200 OK\r\n\r\nhello")
    assert old.open_ended
    assert old.body() == b"hello"


def test_interim_answers_go_before_and_some_have_no_body() -> None:
    answer = PassingAnswer()
    answer.feed(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + PLAIN)
    assert answer.complete
    assert answer.status == 200
    for head, bodiless in ((b"HTTP/1.1 304 Not Modified", False), (b"HTTP/1.1 200 OK", True)):
        answer = PassingAnswer(bodiless=bodiless)
        answer.feed(head + b"\r\nContent-Length: 7\r\n\r\n")
        assert answer.complete


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        PLAIN + b"x",
        b"x" * 70_000,
    ],
)
def test_strange_answers(data: bytes) -> None:
    answer = PassingAnswer()
    answer.feed(data)
    assert answer.strange


def test_packed_bodies_are_unpacked_to_a_bound() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
    for size, body in ((900, bytes(900)), (10**6, bytes(2_000))):
        packed = gzip.compress(bytes(size))
        answer = PassingAnswer(keep_bytes=2_000)
        answer.feed(head % len(packed) + packed)
        assert answer.complete
        assert answer.body() == body
    broken = PassingAnswer(keep_bytes=100)
    broken.feed(head % 4 + b"abcd")
    assert broken.complete
    assert broken.body() is None


def test_bodies_may_be_kept_by_their_types() -> None:
    types = frozenset((b"application/dash+xml",))
    head = b"HTTP/1.1 200 OK\r\n%sContent-Length: 5\r\n\r\nhello"
    for field, kept in (
        (b"Content-Type: application/dash+xml\r\n", b"hello"),
        (b"content-type:Application/DASH+xml ; charset=utf-8\r\n", b"hello"),
        (b"Content-Type: video/mp4\r\n", None),
        (b"", None),
    ):
        answer = PassingAnswer(keep_bytes=10, keep_types=types)
        answer.feed(head % field)
        assert answer.complete
        assert answer.body() == kept
        assert (answer.content_type in types) is (kept is not None)
    assert PassingAnswer().content_type == b""


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_anything_may_come(parts: list[bytes]) -> None:
    answer = PassingAnswer(keep_bytes=50)
    for each in parts:
        answer.feed(each)
    answer.body()
