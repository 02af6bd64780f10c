"""An answer that breaks off: whether, and how, the rest of it may be asked for."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.proxy.local.resumed_get import PartialAnswer

GET = b"GET /file HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n"
OLD, NOW = "Sun, 09 Sep 2001 01:46:40 GMT", "Sun, 09 Sep 2001 02:46:40 GMT"


def answer(*fields: str, status: str = "200 OK", size: int = 10) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {size}", *fields]
    return "\r\n".join([*lines, "", ""]).encode()


def asked(head: bytes, body: bytes = b"01234", request: bytes = GET) -> bytes | None:
    partial = PartialAnswer(request)
    partial.on_taken(head + body)
    return partial.rest_request()


def test_the_rest_is_asked_for_by_what_tells_every_byte() -> None:
    rest = GET[:-2] + b"Range: bytes=5-\r\nIf-Range: "
    assert asked(answer('ETag: "abc"')) == rest + b'"abc"\r\n\r\n'
    dated = answer(f"Last-Modified: {OLD}", f"Date: {NOW}")
    assert asked(dated) == rest + OLD.encode() + b"\r\n\r\n"


@pytest.mark.parametrize(
    ("head", "request_"),
    [
        (answer(), GET),
        (answer('ETag: W/"abc"'), GET),
        (answer('ETag: "a b"'), GET),
        (answer(f"Last-Modified: {NOW}", f"Date: {NOW}"), GET),
        (answer(f"Last-Modified: {OLD}"), GET),
        (answer("Last-Modified: yesterday", f"Date: {NOW}"), GET),
        (answer('ETag: "abc"', "Transfer-Encoding: chunked"), GET),
        (answer('ETag: "abc"', 'ETag: "abd"'), GET),
        (answer('ETag: "abc"', "no field"), GET),
        (answer('ETag: "abc"', status="206 Partial Content"), GET),
        (answer('ETag: "abc"', status="OK"), GET),
        (answer('ETag: "abc"', size=4), GET),
        (answer('ETag: "abc"'), GET.replace(b"GET", b"PUT")),
        (answer('ETag: "abc"'), GET[:-2] + b"Range: bytes=3-\r\n\r\n"),
        (answer('ETag: "abc"'), GET[:-2] + b'If-None-Match: "x"\r\n\r\n'),
        (b"", GET),
        (b"x" * 200_000, GET),
    ],
)
def test_else_it_is_not_asked_for(head: bytes, request_: bytes) -> None:
    assert asked(head, request=request_) is None


@given(st.binary(max_size=400), st.integers(0, 400))
def test_any_bytes_may_come(data: bytes, cut: int) -> None:
    partial = PartialAnswer(GET)
    for part in (data[:cut], data[cut:]):
        partial.on_taken(part)
    partial.rest_request()
    partial = PartialAnswer(GET)
    partial.on_taken(answer('ETag: "abc"', size=1000) + data)
    assert partial.body_bytes == len(data)


class Stream:
    def __init__(self, data: bytes) -> None:
        self.waiting, self.broken, self.peer_ended = deque([data]), None, True

    def watch(self, call: Callable[[], None]) -> None:
        pass

    def on_read(self, count: int) -> None:
        self.waiting = deque([b"".join(self.waiting)[count:]])


PART = ('ETag: "abc"', "Content-Range: bytes 5-9/10")


@pytest.mark.parametrize(
    ("data", "right"),
    [
        (answer(*PART, status="206 Partial Content", size=5), True),
        (answer(*PART, status="200 OK"), False),
        (answer('ETag: "abd"', PART[1], status="206 P"), False),
        (answer(PART[1], status="206 P"), False),
        (answer(PART[0], "Content-Range: bytes 4-9/10", status="206 P"), False),
        (answer(PART[0], "Content-Range: bytes 5-8/10", status="206 P"), False),
        (answer(PART[0], "Content-Range: bytes 5-9/11", status="206 P"), False),
        (answer(PART[0], "Content-Range: bytes 5-9/*", status="206 P"), False),
        (answer(*PART, "Transfer-Encoding: chunked", status="206 P"), False),
        (answer(*PART, "Content-Encoding: gzip", status="206 P"), False),
        (b"nonsense", False),
    ],
)
def test_what_comes_has_to_be_just_that(data: bytes, right: bool) -> None:
    partial, stream = PartialAnswer(GET), Stream(data + b"56789")
    partial.on_taken(answer('ETag: "abc"') + b"01234")
    given_: Any = stream
    assert asyncio.run(partial.is_rest(given_)) is right
    assert (b"".join(stream.waiting) == b"56789") is right
