from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.errors import ConfigError
from cedos.host.profiler.flow import HintMatch, Stream, TransferHint, TransferHints
from cedos.model import FlowKey

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


KEY = FlowKey(ip_address("192.168.43.2"), 40000, ip_address("198.51.100.1"), 443)


KEY6 = FlowKey(ip_address("fd00::2"), 40000, ip_address("2001:db8::1"), 443)


@pytest.mark.parametrize(
    ("match", "fits"),
    [
        (HintMatch(destination="198.51.100.1"), True),
        (HintMatch(destination="198.51.100.0/24", port=443), True),
        (HintMatch(destination="198.51.100.7/24"), True),
        (HintMatch(destination="198.51.101.0/24"), False),
        (HintMatch(destination="2001:db8::/32"), False),
        (HintMatch(port=443), True),
        (HintMatch(port=80), False),
        (HintMatch(local_port=40000), True),
        (HintMatch(local_port=40001), False),
        (HintMatch(mark=9), True),
        (HintMatch(mark=8), False),
        (HintMatch(server_name="Files.Example.org."), True),
        (HintMatch(server_name="*.example.org"), True),
        (HintMatch(server_name="*.files.example.org"), False),
        (HintMatch(server_name="example.org"), False),
        (HintMatch(server_name="files.example.org", port=80), False),
    ],
)
def test_what_a_hint_is_about(match: HintMatch, fits: bool) -> None:
    assert match.fits(KEY, "files.example.org", 9) is fits


def test_names_and_prefixes() -> None:
    assert not HintMatch(server_name="files.example.org").fits(KEY, None, None)
    assert HintMatch(destination="2001:db8::/32").fits(KEY6, None, None)


def test_a_hint_about_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="which transfers"):
        HintMatch()
    with pytest.raises(ConfigError, match=r"not 'example\.org'"):
        HintMatch(destination="example.org")


def test_the_newest_that_fits_counts_while_it_lasts() -> None:
    hints = TransferHints()
    old = TransferHint(HintMatch(port=443), size_bytes=1)
    new = TransferHint(HintMatch(destination="198.51.100.1"), size_bytes=2, until_s=10.0)
    other = TransferHint(HintMatch(port=80), size_bytes=3)
    for number, hint in enumerate((old, new, other)):
        hints.add(number, hint)
    assert hints.find(KEY, None, None, 9.9) is new
    assert hints.find(KEY, None, None, 10.0) is old
    assert len(hints) == 2
