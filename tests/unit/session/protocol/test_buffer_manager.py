"""D2BufMgr: when what is played uses the metered network."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.session.protocol.buffer_manager import BufferManager, BufferSituation, PlaybackClock


@pytest.mark.parametrize("high", [None, 500])
def test_a_high_threshold_below_the_low_one_is_the_low_one(high):
    manager = BufferManager(low_bytes=1000, high_bytes=high)
    assert manager.metered_wanted(BufferSituation(999))
    assert not manager.metered_wanted(BufferSituation(1001))


def test_thresholds_follow_the_bit_rate_and_the_measured_start():
    """640 kbit/s are 80 kB a second; a start of half a second counts twice, a look 0.2 s."""
    manager = BufferManager(bitrate_bps=640e3, window_bytes=1 << 18)
    before = manager.thresholds()
    manager.on_start(0.5)
    low, high = manager.thresholds()
    assert low == 96_000 < before[0]
    assert low + 160_000 <= high < low + 300_000
    manager.on_start(2.0)  # the slowest of the last ones counts
    manager.on_start(0.1)
    assert manager.thresholds()[0] == 336_000
    doubled = BufferManager(bitrate_bps=1280e3, window_bytes=1 << 18)
    assert doubled.thresholds()[0] == 2 * before[0]


def test_unmetered_networks_that_carry_enough_end_it_and_none_is_begun_while_one_is_new():
    manager = BufferManager(bitrate_bps=640e3, window_bytes=1 << 18)
    low, _ = manager.thresholds()
    new = BufferSituation(low, unmetered_up_s=0.1)
    assert not manager.metered_wanted(new)
    assert not manager.metered_wanted(BufferSituation(low // 2, 5.0, unmetered_bps=700e3))
    assert manager.metered_wanted(
        BufferSituation(low, 5.0, unmetered_bps=100e3)
    )  # it is up, that is all
    assert manager.metered_wanted(BufferSituation(low, 0.2))  # another one has just come
    assert not manager.metered_wanted(BufferSituation(low, 0.5, unmetered_bps=640e3))


def test_it_ends_before_high_by_what_is_under_way():
    for rate_bps, ends_at in ((None, 3000), (8000.0, 2800)):
        manager = BufferManager(low_bytes=1000, high_bytes=3000)
        assert manager.metered_wanted(BufferSituation(0))
        just_before = BufferSituation(ends_at - 1, metered_bps=rate_bps, metered_rtt_s=0.2)
        assert manager.metered_wanted(just_before)
        just_before.buffered_bytes += 1
        assert not manager.metered_wanted(just_before)


def test_what_is_read_ends_below_high_by_what_may_still_come():
    manager = BufferManager(bitrate_bps=640e3, window_bytes=1 << 18)
    assert manager.may_read(10**6, 2 * 10**6)
    assert not manager.may_read(2 * 10**6, 2 * 10**6)
    assert manager.window_bytes == 1 << 18
    low, high = manager.thresholds()
    assert manager.metered_wanted(BufferSituation(low))
    assert manager.window_bytes == 1 << 16
    assert manager.may_read(high - (1 << 16) - 1, 10**8)
    assert not manager.may_read(high - (1 << 16), 10**8)
    assert not manager.may_read(0, 10**8)  # once is enough: what is played makes no room
    assert manager.metered_wanted(BufferSituation(high - 1000, quiet_s=0.1))
    assert not manager.metered_wanted(BufferSituation(high - 1000, quiet_s=0.4))
    assert manager.may_read(high, 10**8)


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 10**6)), max_size=30))
def test_nobody_plays_what_he_does_not_have(steps):
    clock = PlaybackClock(640e3)
    now = written = before = 0.0
    for passed_s, came in steps:
        now, written = now + passed_s, written + came
        played = clock.played_bytes(int(written), now)
        assert before <= played <= min(written, before + passed_s * 80_000 + 1)
        before = played


def test_wifi_is_missed_where_there_is_none_or_too_little_of_it():
    manager = BufferManager(bitrate_bps=640e3, window_bytes=1 << 18)
    low, _ = manager.thresholds()
    assert not manager.misses_unmetered
    for up_s, bps, buffered, missed in (
        (None, 0.0, 10 * low, True),  # none, though the store is full
        (10.0, 0.0, 10 * low, False),  # nothing has to come
        (10.0, 100e3, low - 1, True),
        (10.0, 2e6, low - 1, False),
    ):
        manager.metered_wanted(BufferSituation(buffered, up_s, bps))
        assert manager.misses_unmetered is missed
