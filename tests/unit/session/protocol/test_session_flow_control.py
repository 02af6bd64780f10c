"""Flow control of sessions: memory, windows, acknowledgements."""

import pytest

from cedos.session.protocol.life import SessionLimits
from cedos.session.protocol.room import ReplayMemory


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
    assert set(memory.woken()) <= set(many)


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


def test_a_source_keeps_nothing_and_is_asked_again(cores):
    one, other = cores.pair()
    asked = []

    def fetch(offset, count):
        asked.append((offset, count))
        return bytes(range(offset % 256, offset % 256 + 1)) * count

    one.write_source(fetch, 50_000)
    assert one.sender.replay.held_bytes == 0
    one.next_record(1, 70_000, 0.0)
    for each in (one, other):
        each.path_lost(1, 0.0)
    cores.up(one, other, path=2)
    cores.pump(one, other, path=2)
    assert other.readable_bytes == 50_000
    assert asked == [(0, 50_000)] * 2


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
    assert not one.backlogged(large)
    while not one.backlogged(large):  # nothing is known of its rate yet
        assert one.send(bytes(16_384), large, after=())
    unmeasured = one.sender.send_queues[large].waiting_bytes
    assert not one.backlogged(small)
    (path,) = one.paths
    path.facts.rate_bps = 100e6
    assert not one.backlogged(large)
    path.facts.rate_bps = 1e3
    assert one.backlogged(large)
    assert unmeasured < 500_000
