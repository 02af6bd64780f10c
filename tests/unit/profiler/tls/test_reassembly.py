import random

from hypothesis import given
from hypothesis import strategies as st

from cedos.profiler.tls.reassembly import MAX_BYTES, Reassembly

STREAM = random.Random(2).randbytes(3000)


@given(st.randoms(use_true_random=False), st.integers(50, 900))
def test_any_order_with_repetitions_and_overlaps(draw: random.Random, size: int) -> None:
    pieces = [(at, STREAM[at : at + size + draw.randrange(60)]) for at in range(0, 3000, size)]
    pieces += draw.choices(pieces, k=3)
    draw.shuffle(pieces)
    stream = Reassembly()
    for at, piece in pieces:
        before = stream.prefix
        assert stream.add(at, piece) == (stream.prefix != before)
        assert STREAM.startswith(stream.prefix)
    assert stream.prefix == STREAM


@given(st.lists(st.tuples(st.integers(0, 1 << 62), st.binary(max_size=50)), max_size=200))
def test_memory_is_bounded(pieces: list[tuple[int, bytes]]) -> None:
    stream = Reassembly()
    for at, piece in pieces:
        stream.add(at, piece * 400)
    assert len(stream.prefix) <= MAX_BYTES
    assert len(stream._waiting) <= 64
    assert sum(len(piece) for piece in stream._waiting.values()) <= MAX_BYTES


def test_the_first_copy_counts() -> None:
    stream = Reassembly()
    stream.add(0, b"abc")
    stream.add(1, b"XXde")
    assert stream.prefix == b"abcde"
    assert not stream.add(5, b"")
