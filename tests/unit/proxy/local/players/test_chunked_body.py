"""Bodies in chunks, cut anywhere on their way, right ones and others."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.proxy.local.players.chunked_body import ChunkedBody

parts = st.lists(st.binary(min_size=1, max_size=40), max_size=6)
extensions = st.sampled_from([b"", b" ", b";", b";a", b"  ;a=b", b';a="b; c";d'])
trailers = st.lists(st.sampled_from([b"Expires: 0", b"X-y:", b"a:b:c"]), max_size=3)


def read(body: bytes, step: int) -> tuple[ChunkedBody, bytes]:
    reader = ChunkedBody()
    found = bytearray()
    for at in range(0, len(body), step):
        for part in reader.payload(memoryview(body)[at : at + step]):
            found += part
    return reader, bytes(found)


@given(parts, st.data(), trailers, st.integers(1, 60))
def test_what_they_carry_comes_out(
    carried: list[bytes], data: st.DataObject, after: list[bytes], step: int
) -> None:
    sizes = st.sampled_from([b"%x", b"%X", b"%08x"])
    body = b""
    for part in [*carried, b""]:
        body += data.draw(sizes) % len(part) + data.draw(extensions) + b"\r\n" + part
        body += b"\r\n" if part else b"".join(each + b"\r\n" for each in after)
    body += b"\r\n"
    reader, found = read(body, step)
    assert reader.complete
    assert not reader.wrong
    assert found == b"".join(carried)
    for end in range(len(body)):
        reader, found = read(body[:end], step)
        assert not reader.complete
        assert not reader.wrong
    for more in (b"x", b"\r\n", body):
        reader, found = read(body + more, step)
        assert reader.complete
        assert reader.wrong


@pytest.mark.parametrize(
    "body",
    [
        b"\r\n",
        b"-1\r\n",
        b"0x5\r\nhello\r\n",
        b" 5\r\nhello\r\n",
        b"5 5\r\nhello\r\n",
        b"5\r\nhellos\r\n",
        b"5\r\nhello0\r\n\r\n",
        b"5;a\nb\r\nhello\r\n",
        b"5;a\rb\r\nhello\r\n",
        b"1" * 16 + b"\r\n",
        b"5;" + b"a" * 4_096,
        b"0\r\n5\r\n",
        b"0\r\n a:b\r\n",
        b"0\r\n" + b"a: b\r\n" * 20_000,
    ],
)
def test_what_is_none(body: bytes) -> None:
    for step in (1, 5, len(body)):
        reader, _ = read(body, step)
        assert reader.wrong
        assert not reader.complete


def test_very_many_small_chunks_are_given_up_soon(
    over_library: Callable[[Callable[[], object]], float],
) -> None:
    """Usual ones may be any number, and of small ones as many as the lines of a long playlist."""
    reader, found = read(b"400\r\n" + (bytes(1_024) + b"\r\n400\r\n") * 30_000, 65_536)
    assert not reader.wrong
    assert len(found) == 30_000 << 10
    reader, _ = read(b"1\r\na\r\n" * 16_000 + b"0\r\n\r\n", 65_536)
    assert reader.complete
    endless = b"1\r\na\r\n" * (4 << 20)
    reader, found = read(endless, 65_536)
    assert reader.wrong
    assert len(found) < 20_000
    assert over_library(lambda: read(endless, 65_536)) < 1.2


@given(
    st.lists(
        st.sampled_from([b"0", b"5", b"\r\n", b"\r", b"\n", b";", b"a", b":", b"hello"]),
        max_size=30,
    )
)
def test_anything_may_come_cut_anywhere(pieces: list[bytes]) -> None:
    body = b"".join(pieces)
    whole, found = read(body, max(len(body), 1))
    for step in (1, 3):
        again, same = read(body, step)
        assert (again.complete, again.wrong, same) == (whole.complete, whole.wrong, found)
