from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.controller.hint import HintRequest
from cedos.host.profiler.flow import Stream, TransferHints, fits
from cedos.model import FlowKey

TOP = 1 << 32


@given(st.integers(0, TOP - 1), st.lists(st.integers(1, 1 << 30), max_size=12))
def test_positions_follow_the_sequence_numbers(first, lengths):
    stream = Stream()
    assert stream.begin(first) == 0
    position = 0
    for length in lengths:
        position += length
        stream.expect((first + position - 1) % TOP)
        assert stream.position == position - 1
        assert stream.begin((first + position) % TOP) == position


def test_a_retransmission_is_not_a_message():
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


def test_a_message_may_be_seen_after_it_was_acknowledged():
    stream = Stream()
    assert stream.begin(0) == 0
    stream.expect(900)
    assert stream.begin(400) == 400
    assert stream.begin(400) is None
    assert stream.begin(900) == 900


def test_a_body_ends_where_the_next_message_begins():
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


@pytest.mark.parametrize(
    ("hint", "meant"),
    [
        (HintRequest(destination="198.51.100.1"), True),
        (HintRequest(destination="198.51.100.0/24", port=443), True),
        (HintRequest(destination="198.51.100.7/24"), True),
        (HintRequest(destination="198.51.101.0/24"), False),
        (HintRequest(destination="2001:db8::/32"), False),
        (HintRequest(port=443), True),
        (HintRequest(port=80), False),
        (HintRequest(local_port=40000), True),
        (HintRequest(local_port=40001), False),
        (HintRequest(server_name="Files.Example.org."), True),
        (HintRequest(server_name="*.example.org"), True),
        (HintRequest(server_name="*.files.example.org"), False),
        (HintRequest(server_name="example.org"), False),
        (HintRequest(server_name="files.example.org", port=80), False),
    ],
)
def test_what_a_hint_is_about(hint, meant):
    assert fits(hint, KEY, "files.example.org") is meant


def test_the_newest_that_fits_counts_while_it_lasts():
    hints = TransferHints()
    old, new = HintRequest(port=443), HintRequest(destination="198.51.100.1")
    for number, hint in enumerate((old, new, HintRequest(port=80))):
        hints.add(number, hint, None)
    assert hints.find(KEY, None, None) is new
    hints.remove(1)
    assert hints.find(KEY, None, None) is old


def test_a_hint_for_a_mark_is_for_no_other_socket():
    hints = TransferHints()
    hint = HintRequest(program="curl")
    hints.add(1, hint, 9)
    assert hints.by_mark
    assert hints.find(KEY, None, 9) is hint
    assert hints.find(KEY, None, 8) is None
    assert hints.find(KEY, None, None) is None
