"""Where answers of HTTP/1.1 end, however they are cut on their way."""

import gzip
import itertools
import tracemalloc
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.proxy.local.players.passing_answer import PassingAnswer
from cedos.proxy.local.players.playlist import LONGEST

PLAIN = b"HTTP/1.1 200 OK\r\nServer: x\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTRANSFER-ENCODING: chunked\r\n\r\n"
    b'5\r\nhello\r\n0002 ;a=b;c="d"\r\n, \r\n7\t\r\nplayers\r\n0;e\r\nETag: "f"\r\nX:\r\n\r\n'
)


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


@given(st.lists(st.integers(0, len(PLAIN) + 40), max_size=6))
def test_its_head_ends_where_it_ends(cuts: list[int]) -> None:
    hint = b"HTTP/1.1 103 Early Hints\r\nA: b\r\n\r\n"
    said = hint + PLAIN
    answer, heads = PassingAnswer(), b""
    edges = sorted({0, *(min(cut, len(said)) for cut in cuts), len(said)})
    for begin, end in itertools.pairwise(edges):
        data = said[begin:end]
        while data and not answer.begun:
            count = answer.head_bytes(data)
            assert count > 0
            heads += data[:count]
            answer.feed(data[:count])
            data = data[count:]
        if data:
            answer.feed(data)
    assert heads == hint + PLAIN.removesuffix(b"hello")
    assert answer.begun
    assert answer.left_bytes == 0
    assert answer.complete


def test_what_has_no_length_is_open_ended() -> None:
    old = PassingAnswer(keep_bytes=10)
    old.feed(b"HTTP/1.0 200 OK\r\n\r\nhello")
    assert old.open_ended
    assert not old.complete
    assert old.body() == b"hello"


@given(st.lists(st.integers(0, len(CHUNKED)), max_size=9))
def test_chunks_end_with_their_last_byte(cuts: list[int]) -> None:
    answer = PassingAnswer(keep_bytes=14)
    edges = sorted({0, *cuts, len(CHUNKED)})
    for begin, end in itertools.pairwise(edges):
        assert not answer.complete
        assert not answer.open_ended
        assert answer.body() is None
        answer.feed(CHUNKED[begin:end])
    assert answer.complete
    assert not answer.open_ended
    assert not answer.strange
    assert answer.body() == b"hello, players"
    assert answer.body_bytes == len(CHUNKED.partition(b"\r\n\r\n")[2])
    answer.feed(b"x")
    assert answer.strange


def test_what_is_carried_in_chunks_is_kept_to_a_bound() -> None:
    answer = PassingAnswer(keep_bytes=13)
    answer.feed(CHUNKED)
    assert answer.complete
    assert answer.body() is None
    assert not answer._kept


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: identity",
        b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\nTransfer-Encoding: chunked",
        b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\nTransfer-Encoding : chunked",
        b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked",
    ],
)
def test_where_readers_may_differ_nothing_is_read(head: bytes) -> None:
    answer = PassingAnswer(keep_bytes=100)
    answer.feed(head + b"\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
    assert answer.open_ended
    assert not answer.complete
    assert answer.body() is None
    answer.feed(b"x")
    assert not answer.strange


@pytest.mark.parametrize("body", [b"5\nhello\n0\n\n", b"x\r\n", b"5\r\nhello!\r\n", b"1" * 5_000])
def test_what_is_not_in_chunks_is_open_ended(body: bytes) -> None:
    answer = PassingAnswer(keep_bytes=100)
    answer.feed(b"HTTP/1.1 200 OK\r\ntransfer-encoding:Chunked\r\n\r\n" + body + b"\r\n\r\n")
    assert answer.open_ended
    assert not answer.strange
    assert answer.body() is None


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


def _raw_deflate(data: bytes) -> bytes:
    packing = zlib.compressobj(wbits=-15)
    return packing.compress(data) + packing.flush()


PACKED: dict[bytes, Callable[[bytes], bytes]] = {
    b"": bytes,
    b"identity": bytes,
    b"gzip": gzip.compress,
    b"X-GZip": gzip.compress,
    b"deflate": zlib.compress,
    b"Deflate": _raw_deflate,
}


def answered(coding: bytes, body: bytes, keep_bytes: int, chunk: int = 0) -> PassingAnswer:
    """With a length, or in chunks of so many bytes."""
    answer = PassingAnswer(keep_bytes=keep_bytes)
    answer.feed(b"HTTP/1.1 200 OK\r\nContent-Encoding: %s\r\n" % coding)
    if chunk:
        parts = [body[at : at + chunk] for at in range(0, len(body), chunk)]
        answer.feed(b"Transfer-Encoding: chunked\r\n\r\n")
        answer.feed(b"".join(b"%x\r\n%s\r\n" % (len(each), each) for each in [*parts, b""]))
    else:
        answer.feed(b"Content-Length: %d\r\n\r\n" % len(body) + body)
    assert answer.complete
    assert not answer.strange
    return answer


@pytest.mark.parametrize("chunk", [0, 1, 7, 900])
@pytest.mark.parametrize("coding", PACKED)
def test_packed_bodies_are_unpacked_to_a_bound(coding: bytes, chunk: int) -> None:
    pack = PACKED[coding]
    text = b"".join(b"segment%d.ts\n" % number for number in range(70))
    assert answered(coding, pack(text), len(text), chunk).body() == text
    assert answered(coding, pack(text), len(text) - 1, chunk).body() is None
    assert answered(coding, pack(b""), 50, chunk).body() == b""


@pytest.mark.parametrize("coding", [each for each in PACKED if PACKED[each] is not bytes])
def test_what_is_not_all_or_more_is_not_unpacked(coding: bytes) -> None:
    packed = PACKED[coding](b"#EXTM3U\n#EXTINF:2,\nsegment.ts\n")
    for end in range(len(packed)):
        assert answered(coding, packed[:end], 100).body() is None
    for more in (b"\0", b"\r\n", packed):
        assert answered(coding, packed + more, 1_000).body() is None
    assert answered(coding, b"#EXTM3U\n#EXTINF:2,\nsegment.ts\n", 100).body() is None


@pytest.mark.parametrize(
    "coding", [b"br", b"zstd", b"compress", b"gzip, gzip", b"gzip\r\nContent-Encoding: gzip"]
)
def test_other_codings_are_not_read(coding: bytes) -> None:
    assert answered(coding, gzip.compress(b"hello"), 100).body() is None


def test_bombs_cost_no_memory(
    over_library: Callable[[Callable[[], object]], float],
) -> None:
    """A hundred MiB of zeros, in 100 kB."""
    packing = zlib.compressobj(9, wbits=31)
    packed = b"".join(packing.compress(bytes(1 << 20)) for _ in range(100)) + packing.flush()
    assert len(packed) <= LONGEST
    answer = answered(b"gzip", packed, LONGEST, 4_000)
    tracemalloc.start()
    try:
        assert answer.body() is None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 5 * LONGEST
    assert over_library(answer.body) < 1.2


@given(st.sampled_from(list(PACKED)), st.binary(max_size=200), st.integers(0, 300))
def test_anything_may_be_packed(coding: bytes, body: bytes, keep_bytes: int) -> None:
    for given_body in (body, PACKED[coding](body)):
        found = answered(coding, given_body, keep_bytes).body()
        assert found is None or len(found) <= keep_bytes


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
