from hypothesis import given
from hypothesis import strategies as st

from cedos.profiler.stream import Stream

TOP = 1 << 32


@given(st.integers(0, TOP - 1), st.lists(st.integers(1, 1 << 30), max_size=12))
def test_positions_follow_the_sequence_numbers(first: int, lengths: list[int]) -> None:
    stream = Stream()
    assert stream.begin(first) == 0
    position = 0
    for length in lengths:
        position += length
        stream.expect((first + position - 1) % TOP)
        assert stream.position == position - 1
        assert stream.begin((first + position) % TOP) == position


def test_a_retransmission_is_not_a_message() -> None:
    stream = Stream()
    assert stream.begin(5) == 0
    assert stream.begin(5) is None
    stream.expect(8_000)
    assert stream.begin(5) is None
    assert stream.begin(10_005) == 10_000
    assert stream.begin(5) is None
    assert stream.begin(10_005) is None
    stream.expect(5)  # an old packet's acknowledgement
    assert stream.position == 10_000


def test_a_message_may_be_seen_after_it_was_acknowledged() -> None:
    stream = Stream()
    assert stream.begin(0) == 0
    stream.expect(900)
    assert stream.begin(400) == 400
    assert stream.begin(400) is None
    assert stream.begin(900) == 900


def test_the_other_side_tells_where_it_began() -> None:
    stream = Stream()
    stream.expect(TOP - 10)
    assert stream.position == 0
    stream.expect(20)
    assert stream.position == 30
    assert stream.begin(90) == 100


def test_what_was_carried_before_counts() -> None:
    stream = Stream(carried_bytes=7_000)
    assert stream.begin(1) == 7_000
    assert stream.begin(101) == 7_100


def test_a_body_ends_where_the_next_message_begins() -> None:
    stream = Stream()
    stream.begin(0)
    assert stream.end_body(50) is None
    stream.body_at = 100
    position = stream.begin(5_100)
    assert position is not None
    assert stream.end_body(position) == 5_000
    assert stream.end_body(position) is None
    stream.body_at = 100
    assert stream.end_body(50) is None
