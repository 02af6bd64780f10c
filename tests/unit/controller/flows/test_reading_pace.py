"""The reading pace of a program that is slower than its network."""

from hypothesis import given
from hypothesis import strategies as st

from cedos.controller.flows.reading_pace import ReadingPace


def test_between_two_looks_at_a_full_socket_as_much_was_read_as_came():
    pace = ReadingPace()
    pace.observe(0.0, 5_000_000, unread=False)
    pace.observe(0.2, 6_000_000, unread=True)
    assert not pace.sets(0.2), "one look may be the moment at which a gap was filled"
    pace.observe(0.4, 6_050_000, unread=True)
    assert pace.sets(0.4)
    assert pace.rate_bps(0.4) is None, "it is not known yet"
    pace.observe(1.2, 6_250_000, unread=True)
    assert pace.rate_bps(1.2) == 2_000_000


def test_a_program_that_pauses_reads_nothing():
    pace = ReadingPace()
    for tenth in range(30):
        pace.observe(tenth / 10, 1_000_000, unread=True)
    assert pace.sets(2.9)
    assert pace.rate_bps(2.9) == 0.0


def test_one_that_stops_for_a_moment_now_and_then_is_no_slow_reader():
    """Else its network's rate would be its pace, and no other network ever helped."""
    pace = ReadingPace()
    for fifth in range(200):
        pace.observe(fifth / 5, 50_000 * fifth, unread=fifth % 10 == 0)
        assert fifth < 20 or not pace.sets(fifth / 5)


def test_bursts_and_pauses_are_one_pace():
    """A limited rate: a megabyte at once, and then nothing for two seconds."""
    pace = ReadingPace()
    for fifth in range(100):
        pace.observe(fifth / 5, 1_000_000 * (fifth // 10), unread=fifth % 10 != 0)
    rate_bps = pace.rate_bps(19.8)
    assert 3.5e6 < rate_bps < 4.5e6


def test_who_reads_at_once_again_leaves_the_pace_to_the_network():
    pace = ReadingPace()
    for second in range(8):
        pace.observe(float(second), 100_000 * second, unread=True)
    for second in range(8, 12):
        pace.observe(float(second), 1_000_000 * second, unread=False)
    assert pace.sets(12.0)
    assert not pace.sets(12.1)
    pace.observe(13.0, 13_000_000, unread=True)
    assert not pace.sets(13.0), "what was before counts no more"


@given(st.lists(st.tuples(st.floats(0, 1e4), st.integers(0, 1 << 50), st.booleans()), max_size=50))
def test_whatever_is_seen_the_pace_is_sane(looks):
    pace = ReadingPace()
    for at_s, carried, unread in sorted(looks):
        pace.observe(at_s, carried, unread=unread)
        rate_bps = pace.rate_bps(at_s)
        assert rate_bps is None or rate_bps >= 0
