"""Flow control of sessions: memory, windows, acknowledgements."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.session.protocol.buffer_manager import BufferManager, BufferSituation, PlaybackClock
from cedos.session.protocol.life import SessionLimits
from cedos.session.protocol.room import ReplayMemory
from cedos.session.protocol.sender import Sender


def test_one_limit_for_all_sessions_and_who_waited_is_told(cores):
    memory = ReplayMemory(1_000_000)
    limits = SessionLimits(send_bytes=1_000_000)
    many = [cores.session(limits=limits, memory=memory) for _ in range(40)]
    taken = sum(core.write(bytes(100_000)) for core in many)
    assert taken == memory.used_bytes <= 1_000_000
    assert many[-1].write(bytes(100_000)) < 100_000
    for core in many[:20]:
        core.abort(1, "enough")
    assert memory.used_bytes < 1_000_000
    assert set(memory.take_woken()) <= set(many)


@pytest.mark.parametrize(
    "limits", [SessionLimits(send_bytes=1_000_000), SessionLimits(irob_window=600_000)]
)
def test_background_data_leaves_room_for_what_is_urgent(cores, limits):
    one, _ = cores.pair(limits=limits)
    while one.send(bytes(100_000), 3, after=()):
        pass
    while one.send(bytes(3_000), 3, after=()):
        pass
    assert all(one.send(bytes(3_000), 0, after=()) for _ in range(10))


def test_a_stream_stops_at_the_window_and_goes_on_when_it_is_read(cores):
    limits = SessionLimits(stream_window=262_144)
    one, other = cores.pair(limits=limits)
    one.path_lost(1, 0.0)
    assert one.write(bytes(1_000_000)) == 1_000_000
    other.path_lost(1, 0.0)
    cores.up(one, other, path=2)
    cores.pump(one, other, path=2)
    assert other.readable_bytes == 262_144
    total = 0
    while chunk := other.read(50_000):
        total += len(chunk)
        cores.pump(one, other, path=2)
    assert total == 1_000_000


def test_what_a_stream_may_hold_grows_with_what_the_peer_has(cores):
    one, other = cores.pair()
    held = []
    for now in range(6):
        while one.write(bytes(65_536)):
            pass
        held.append(one.sender.replay.held_bytes)
        while cores.pump(one, other, now=now):
            other.read(1 << 20)
        other.tick(now + 0.5)
        cores.pump(one, other, now=now)
    assert held == [262_144 << number for number in range(6)]


def test_acknowledgements_wait_for_company_but_not_long(cores):
    one, other = cores.pair()
    one.write(b"x")
    cores.pump(one, other)
    assert one.acknowledged_bytes == 0
    assert other.next_timer() == pytest.approx(0.025)
    other.tick(0.025)
    assert cores.pump(one, other) == 1
    assert one.acknowledged_bytes == 1


def test_backlogged_is_what_the_paths_would_carry_in_a_moment(cores):
    one, _ = cores.pair()
    large, small = 1, 0
    assert not one.is_backlogged(large)
    while not one.is_backlogged(large):  # nothing is known of its rate yet
        assert one.send(bytes(16_384), large, after=())
    unmeasured = one.sender.send_queues[large].waiting_bytes
    assert not one.is_backlogged(small)
    (path,) = one.paths
    path.facts.rate_bps = 100e6
    assert not one.is_backlogged(large)
    path.facts.rate_bps = 1e3
    assert one.is_backlogged(large)
    assert unmeasured < 500_000


LIMIT = 8 << 20


def senders(count, memory):
    return [Sender(memory, LIMIT, number) for number in range(count)]


def fill(sender):
    while sender.write(bytes(16_384)):
        pass


def test_the_first_leave_something_to_hundreds_more():
    memory = ReplayMemory(LIMIT)
    many = senders(100, memory)
    for each in many:
        fill(each)
    assert memory.used_bytes <= LIMIT
    assert all(each.replay.held_bytes >= memory.quantum_bytes for each in many[:40])
    assert len([each for each in many if each.replay.held_bytes]) == memory.holders


def test_what_the_first_took_too_much_goes_to_the_others():
    memory = ReplayMemory(LIMIT)
    many = senders(50, memory)
    for each in many:
        fill(each)
    for _ in range(400):  # each gives back the same, and writes again
        for each in many:
            each.replay.give(min(each.replay.held_bytes, 8_192))
            fill(each)
    held = [each.replay.held_bytes for each in many]
    assert min(held) > max(held) / 2


def test_a_whole_message_need_not_wait_until_nobody_sends_any_more():
    memory = ReplayMemory(LIMIT)
    many = senders(60, memory)
    for each in many[:50]:
        fill(each)
    late, whole = many[50], LIMIT // 16
    assert not late.replay.take(whole, 0)
    for each in many[:50]:  # the others go on with less, and never hold nothing
        each.replay.give(each.replay.held_bytes - memory.quantum_bytes)
    assert memory.used_bytes > 0
    assert late.replay._owner in memory.take_woken()
    assert late.replay.take(whole, 0)


@given(st.lists(st.tuples(st.integers(0, 19), st.integers(1, 400_000)), max_size=60), st.randoms())
def test_whoever_was_refused_is_told_once_all_is_free(steps, draw):
    memory = ReplayMemory(1 << 20)
    many = [Sender(memory, 1 << 20, number) for number in range(20)]
    empty_handed = set()
    for number, size in steps:
        sender = many[number]
        if draw.random() < 0.5:
            if not sender.write(bytes(size)) and not sender.replay.held_bytes:
                empty_handed.add(number)
        else:
            sender.replay.give(min(size, sender.replay.held_bytes))
        empty_handed -= set(memory.take_woken())
    for sender in many:
        sender.replay.give(sender.replay.held_bytes)
    assert empty_handed <= set(memory.take_woken())
    assert (memory.used_bytes, memory.holders) == (0, 0)


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
