"""Path schedulers: the rules that all follow, and those of each plain one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cedos.session.protocol import schedulers
from cedos.session.protocol.schedulers.interface import (
    ALL_RANKS,
    Backlog,
    SendGrant,
    rate_bps,
)
from cedos.session.protocol.schedulers.plain import (
    Anticipatory,
    DecidedScheduler,
    LabelMapping,
    LowestRtt,
    RedundantScheduler,
    RoundRobin,
    bound_bytes,
)

KERNEL_BYTES = 300_000


class Model:
    """Paths with kernels of their own under one scheduler."""

    def __init__(self, scheduler, paths, waiting):
        self.scheduler = scheduler
        self.paths = paths
        self.backlog = Backlog(waiting, [0, 0, 0, 0], -1e9)
        self.now = 100.0
        self.given = {each.path_id: [] for each in paths}

    def pump(self):
        progress = True
        while progress:
            progress = False
            for each in self.paths:
                while (room := KERNEL_BYTES - each.facts.unsent_bytes) > 0 and self._ask(
                    each, room
                ):
                    progress = True

    def _ask(self, asked, room):
        grant = self.scheduler.choose(asked, self.paths, self.backlog, room, self.now)
        if grant is None or grant.copy:
            assert grant is None or self.scheduler.copies
            return False
        assert asked.allowed >> grant.rank & 1
        assert grant.limit_bytes > 0
        assert grant.skip_bytes >= 0
        waiting = self.backlog.waiting_bytes[grant.rank]
        size = min(grant.limit_bytes, room, waiting - grant.skip_bytes)
        assert size > 0, f"granted what is not there: {grant} of {waiting}"
        self.backlog.waiting_bytes[grant.rank] -= size
        asked.facts.unsent_bytes += size
        asked.in_flight_bytes += size
        asked.sent_bytes += size
        self.given[asked.path_id].append((grant.rank, size))
        return True

    def carry(self, seconds):
        self.now += seconds
        for each in self.paths:
            rate = each.facts.rate_bps or 1e6
            sent = min(each.facts.unsent_bytes, int(rate / 8 * seconds))
            each.facts.unsent_bytes -= sent
            each.in_flight_bytes = each.facts.unsent_bytes


EVERY = [*schedulers.NAMES, "chosen", "chosen twice"]


def made(name):
    if not name.startswith("chosen"):
        return schedulers.scheduler(name)
    chosen = DecidedScheduler(schedulers.scheduler())
    chosen.repeat(ALL_RANKS if name == "chosen twice" else 0)
    return chosen


@pytest.mark.parametrize("name", EVERY)
def test_each_says_what_it_wants(name):
    """Of redundancy, and whether a small message may pass it by: nothing is guessed."""
    scheduler = made(name)
    assert scheduler.name
    assert {type(scheduler.copies), type(scheduler.prompt)} == {bool}
    # Somebody's choices are made known by being asked.
    assert scheduler.prompt == (name in ("labels", schedulers.DEFAULT))


facts = st.tuples(
    st.none() | st.floats(1e-4, 2.0), st.none() | st.floats(1e4, 1e9), st.floats(0, 0.5)
)


@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=25)
@given(
    known=st.lists(facts, min_size=1, max_size=4),
    waiting=st.lists(st.integers(0, 2_000_000), min_size=4, max_size=4),
)
def test_everything_goes_out(make, name, known, waiting):
    paths = [make.path(n, rtt, rate, loss=loss) for n, (rtt, rate, loss) in enumerate(known, 1)]
    model = Model(made(name), paths, list(waiting))
    slowest = min(each.facts.rate_bps or 1e6 for each in paths)
    for _ in range(4000):
        model.pump()
        if not any(model.backlog.waiting_bytes):
            break
        # The driver looks again at this time, or as soon as a kernel has sent something.
        check_s = model.scheduler.next_check_s(paths, model.now)
        unsent = any(each.facts.unsent_bytes for each in paths)
        assert check_s is not None or unsent, "nothing will ever wake the driver"
        model.carry(max(check_s or 0.0, 8 * KERNEL_BYTES / slowest))
    assert model.backlog.waiting_bytes == [0, 0, 0, 0]
    assert sum(size for pieces in model.given.values() for _, size in pieces) == sum(waiting)


@pytest.mark.parametrize("name", EVERY)
def test_urgent_first_on_one_path(make, name):
    model = Model(made(name), [make.path(1, 0.02, 80e6)], [3000, 50_000, 2000, 60_000])
    for _ in range(100):
        model.pump()
        model.carry(0.1)
    ranks = [rank for rank, _ in model.given[1]]
    assert ranks == sorted(ranks)
    assert set(ranks) == {0, 1, 2, 3}


@pytest.mark.parametrize("name", EVERY)
def test_a_label_stays_off_paths_that_it_is_not_let_onto(make, name):
    closed, open_ = make.path(1, 0.001, 1e9, allowed=0b0011), make.path(2, 0.5, 1e6)
    model = Model(made(name), [closed, open_], [0, 0, 0, 100_000])
    for _ in range(100):
        model.pump()
        model.carry(1.0)
    assert model.given[1] == []
    assert sum(size for _, size in model.given[2]) == 100_000


CHUNK = 16_384


def test_a_redundant_scheduler_sends_new_data_before_copies(make):
    one, copyable = make.path(1), (0, 0, 0, 20)
    waiting = make.backlog(0, 0, 0, 10, copyable=copyable)
    assert RedundantScheduler().choose(one, (one,), waiting, 99, 0.0) == SendGrant(3, 99)
    copies = make.backlog(0, 0, 0, 0, copyable=copyable)
    assert RedundantScheduler().choose(one, (one,), copies, 99, 0.0) == SendGrant(3, 99, copy=True)


def test_lowest_rtt_spills_over_when_the_quick_one_is_full(make):
    quick, slow = make.path(1, 0.01), make.path(2, 0.1)
    waiting = make.backlog(0, 0, 0, 10**6)
    scheduler = LowestRtt()
    assert scheduler.choose(quick, (quick, slow), waiting, 10**6, 0.0) == SendGrant(3, CHUNK)
    assert scheduler.choose(slow, (quick, slow), waiting, 10**6, 0.0) is None
    quick.facts.unsent_bytes = 40_000
    assert scheduler.choose(slow, (quick, slow), waiting, 10**6, 0.0) == SendGrant(3, CHUNK)


def test_round_robin_takes_turns_and_passes_over_who_is_full(make):
    scheduler = RoundRobin()
    paths = [make.path(1), make.path(2), make.path(3)]
    waiting = make.backlog(0, 0, 0, 10**6)
    order = [
        each.path_id
        for _ in range(6)
        for each in paths
        if scheduler.choose(each, paths, waiting, 10**6, 0.0)
    ]
    assert order[:6] == [1, 2, 3, 1, 2, 3]
    paths[1].facts.unsent_bytes = 10**6
    assert scheduler.choose(paths[0], paths, waiting, 10**6, 0.0)
    assert scheduler.choose(paths[2], paths, waiting, 10**6, 0.0)


class TestLabelMapping:
    @pytest.fixture(autouse=True)
    def _two(self, make):
        self.make = make
        self.quick, self.wide = make.path(1, 0.01, 1e6), make.path(2, 0.2, 50e6)
        self.both = (self.quick, self.wide)

    def choose(self, where, *waiting):
        return LabelMapping().choose(where, self.both, self.make.backlog(*waiting), 65_536, 0.0)

    def test_small_foreground_to_the_lowest_latency(self):
        assert self.choose(self.quick, 10, 0, 0, 0) == SendGrant(0, 65_536)
        assert self.choose(self.wide, 10, 0, 0, 0) is None

    def test_large_foreground_to_the_highest_bandwidth(self):
        assert self.choose(self.quick, 0, 10, 0, 0) is None
        assert self.choose(self.wide, 0, 10, 0, 0) == SendGrant(1, 65_536)

    def test_background_in_chunks_everywhere(self):
        for where in self.both:
            assert self.choose(where, 0, 0, 0, 10**6) == SendGrant(3, CHUNK)

    def test_background_goes_on_where_the_foreground_is_not(self):
        assert self.choose(self.wide, 10, 0, 0, 10) == SendGrant(3, CHUNK)

    def test_a_queue_counts_as_latency(self, make):
        full = make.path(1, 0.01, 1e6, unsent_bytes=50_000)  # 0.4 s
        grant = LabelMapping().choose(
            self.wide, (full, self.wide), make.backlog(10, 0, 0, 0), 9, 0.0
        )
        assert grant == SendGrant(0, 9)


class TestAnticipatory:
    @pytest.fixture(autouse=True)
    def _make(self, make):
        self.make = make

    def choose(self, where, *, at_s=-1e9, now=100.0, paths=1):
        others = tuple(self.make.path(n, 0.001, 1e9) for n in range(2, 1 + paths))
        waiting = self.make.backlog(0, 0, 0, 10**9, at_s=at_s)
        return Anticipatory(LabelMapping()).choose(where, (where, *others), waiting, 10**9, now)

    def test_a_second_of_rate_while_nobody_is_in_a_hurry(self, make):
        assert self.choose(make.path(1, 0.05, 8e6)) == SendGrant(3, 1_000_000)
        assert self.choose(make.path(1, 0.05, 8e6, unsent_bytes=900_000)) == SendGrant(3, 100_000)
        assert self.choose(make.path(1, 0.05, 8e6, unsent_bytes=1_000_000)) is None

    def test_40_ms_of_rate_after_recent_foreground_data(self, make):
        assert self.choose(make.path(1, 0.05, 8e6), at_s=99.0) == SendGrant(3, 40_000)
        assert self.choose(make.path(1, 0.05, 8e6), at_s=94.0) == SendGrant(3, 1_000_000)

    def test_a_queue_in_the_network_counts_while_there_is_foreground_data(self, make):
        """8 Mbit/s: 40 ms are 40,000 bytes and a quarter of its round trip 15,000; 60,000 fill it."""
        bloated = make.path(1, 0.08, 8e6, rtt_min_s=0.06, under_way_bytes=80_000)
        assert self.choose(bloated, at_s=99.0) == SendGrant(3, 35_000)
        assert self.choose(bloated) == SendGrant(3, 1_000_000)

    def test_a_network_that_is_always_full_is_still_used(self, make):
        full = make.path(1, 0.5, 8e6, rtt_min_s=0.05, under_way_bytes=200_000, last_sent_at_s=99.97)
        assert self.choose(full, at_s=99.0) is None
        full.last_sent_at_s = 99.9
        grant = self.choose(full, at_s=99.0)
        assert 0 < grant.limit_bytes <= 4096
        full.facts.unsent_bytes = 1  # but nothing piles up where not even the kernel gets on
        assert self.choose(full, at_s=99.0) is None

    def test_what_other_processes_sent_counts(self, make):
        assert self.choose(make.path(1, 0.05, 8e6, foreground_at_s=99.0)) == SendGrant(3, 40_000)

    def test_a_path_no_foreground_data_would_take_stays_ample(self, make):
        grant = self.choose(make.path(1, 0.5, 8e6), at_s=99.0, paths=2)
        assert grant == SendGrant(3, CHUNK)
        held = make.path(1, 0.5, 8e6, unsent_bytes=60_000)
        assert self.choose(held, at_s=99.0, paths=2) == SendGrant(3, CHUNK)

    def test_a_new_path_is_tried_with_little(self, make):
        assert bound_bytes(make.path(1, None, None), recent=False) == 2 * CHUNK

    def test_foreground_data_is_never_held(self, make):
        full = make.path(1, 0.05, 8e6, unsent_bytes=10**7)
        scheduler = Anticipatory(LabelMapping())
        assert scheduler.choose(full, (full,), make.backlog(5, 0, 0, 9), 99, 0.0) == SendGrant(
            0, 99
        )

    def test_large_foreground_data_makes_way_for_small_where_that_is_wanted(self, make):
        """As of many connections in one session: a click behind a download."""
        path, waiting = make.path(1, 0.05, 8e6), make.backlog(0, 10**9, 0, 0, at_s=99.0)
        alike, prompt = Anticipatory(LabelMapping()), Anticipatory(LabelMapping(), bulk=True)
        for scheduler in (alike, prompt):
            assert scheduler.choose(path, (path,), waiting, 10**9, 100.0).limit_bytes == 10**9
        waiting.small_at_s = 99.0
        assert prompt.choose(path, (path,), waiting, 10**9, 100.0) == SendGrant(1, 40_000)
        assert alike.choose(path, (path,), waiting, 10**9, 100.0).limit_bytes == 10**9
        waiting.small_at_s = 94.0
        assert prompt.choose(path, (path,), waiting, 10**9, 100.0).limit_bytes == 10**9

    def test_looks_again_only_after_holding_back(self, make):
        scheduler = Anticipatory(LabelMapping())
        full = make.path(1, 0.05, 8e6, unsent_bytes=10**7)
        assert scheduler.next_check_s((full,), 0.0) is None
        assert scheduler.choose(full, (full,), make.backlog(0, 0, 0, 9), 99, 0.0) is None
        assert scheduler.next_check_s((full,), 0.0) == pytest.approx(0.01)
        assert scheduler.next_check_s((full,), 0.0) is None


def test_a_path_in_slow_start_carries_its_window_each_round_trip(make):
    path = make.path(1, 0.05, 2e6, window_bytes=100_000, slow_start=True)
    assert rate_bps(path) == pytest.approx(8 * 100_000 / 0.05)
    path.facts.slow_start = False
    assert rate_bps(path) == 2e6


def test_no_longer_once_its_queue_fills(make):
    path = make.path(1, 0.06, 2e6, window_bytes=100_000, slow_start=True, rtt_min_s=0.05)
    assert rate_bps(path) > 2e6
    path.facts.rtt_s = 0.065
    assert rate_bps(path) == 2e6
