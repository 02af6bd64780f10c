"""Path schedulers: one conformance test for all of them, then what each is there for.

The model of the conformance test: paths that carry what they were given at their rate, a driver that asks
each path with room until nobody answers, and looks again when a scheduler says so.
"""

from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cedos.errors import ConfigError
from cedos.model import Strategy, StrategyKind
from cedos.session import schedulers
from cedos.session.schedulers.anticipatory import Anticipatory, bound_bytes
from cedos.session.schedulers.chosen import Chosen, permissions
from cedos.session.schedulers.estimates import allowed
from cedos.session.schedulers.labels import LabelMapping
from cedos.session.schedulers.lowest_rtt import LowestRtt
from cedos.session.schedulers.redundant import Redundant
from cedos.session.schedulers.round_robin import RoundRobin
from cedos.session.schedulers.swtc import Schedule, Swtc, expected_s
from cedos.session.scheduling import ALL_RANKS, Backlog, Facts, Grant, PathState, Scheduler

KERNEL_BYTES = 300_000
CHUNK = 16_384


def path(
    number: int, rtt_s: float | None = 0.05, rate_bps: float | None = 8e6, **more: object
) -> PathState:
    facts = Facts(network=f"net{number}", rtt_s=rtt_s, rate_bps=rate_bps)
    state = PathState(number, facts, up_at_s=0.0)
    for key, value in more.items():
        setattr(facts if hasattr(facts, key) else state, key, value)
    return state


def backlog(*waiting: int, copyable: tuple[int, ...] = (0, 0, 0, 0), at_s: float = -1e9) -> Backlog:
    return Backlog(list(waiting), list(copyable), at_s)


def single(*networks: str) -> Strategy:
    return Strategy(StrategyKind.SINGLE, networks)


class Model:
    """Paths with kernels of their own under one scheduler."""

    def __init__(self, scheduler: Scheduler, paths: list[PathState], waiting: list[int]) -> None:
        self.scheduler = scheduler
        self.paths = paths
        self.backlog = backlog(*waiting)
        self.now = 100.0
        self.given: dict[int, list[tuple[int, int]]] = {each.path_id: [] for each in paths}

    def pump(self) -> None:
        progress = True
        while progress:
            progress = False
            for each in self.paths:
                while (room := KERNEL_BYTES - each.facts.unsent_bytes) > 0 and self._ask(
                    each, room
                ):
                    progress = True

    def _ask(self, asked: PathState, room: int) -> bool:
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

    def carry(self, seconds: float) -> None:
        self.now += seconds
        for each in self.paths:
            rate = each.facts.rate_bps or 1e6
            sent = min(each.facts.unsent_bytes, int(rate / 8 * seconds))
            each.facts.unsent_bytes -= sent
            each.in_flight_bytes = each.facts.unsent_bytes


EVERY = [*schedulers.NAMES, "chosen", "chosen twice"]


def made(name: str) -> Scheduler:
    if not name.startswith("chosen"):
        return schedulers.scheduler(name)
    chosen = Chosen(schedulers.scheduler())
    chosen.repeat(ALL_RANKS if name == "chosen twice" else 0)
    return chosen


facts = st.tuples(
    st.none() | st.floats(1e-4, 2.0), st.none() | st.floats(1e4, 1e9), st.floats(0, 0.5)
)


@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=25)
@given(
    known=st.lists(facts, min_size=1, max_size=4),
    waiting=st.lists(st.integers(0, 2_000_000), min_size=4, max_size=4),
)
def test_everything_goes_out(
    name: str, known: list[tuple[float | None, float | None, float]], waiting: list[int]
) -> None:
    paths = [path(n, rtt, rate, loss=loss) for n, (rtt, rate, loss) in enumerate(known, 1)]
    model = Model(made(name), paths, list(waiting))
    slowest = min(each.facts.rate_bps or 1e6 for each in paths)
    for _ in range(4000):
        model.pump()
        if not any(model.backlog.waiting_bytes):
            break
        # The driver looks again at this time, or as soon as a kernel has sent something.
        look_s = model.scheduler.next_look_s(paths, model.now)
        unsent = any(each.facts.unsent_bytes for each in paths)
        assert look_s is not None or unsent, "nothing will ever wake the driver"
        model.carry(max(look_s or 0.0, 8 * KERNEL_BYTES / slowest))
    assert model.backlog.waiting_bytes == [0, 0, 0, 0]
    assert sum(size for pieces in model.given.values() for _, size in pieces) == sum(waiting)


@pytest.mark.parametrize("name", EVERY)
def test_urgent_first_on_one_path(name: str) -> None:
    model = Model(made(name), [path(1, 0.02, 80e6)], [3000, 50_000, 2000, 60_000])
    for _ in range(100):
        model.pump()
        model.carry(0.1)
    ranks = [rank for rank, _ in model.given[1]]
    assert ranks == sorted(ranks)
    assert set(ranks) == {0, 1, 2, 3}


@pytest.mark.parametrize("name", EVERY)
def test_a_label_stays_off_paths_that_it_is_not_let_onto(name: str) -> None:
    closed, open_ = path(1, 0.001, 1e9, allowed=0b0011), path(2, 0.5, 1e6)
    model = Model(made(name), [closed, open_], [0, 0, 0, 100_000])
    for _ in range(100):
        model.pump()
        model.carry(1.0)
    assert model.given[1] == []
    assert sum(size for _, size in model.given[2]) == 100_000


@pytest.mark.parametrize("name", EVERY)
def test_without_paths_nothing_is_appropriate(name: str) -> None:
    scheduler = made(name)
    assert not scheduler.appropriate(0, [], 0.0)
    assert not scheduler.appropriate(3, [path(1, allowed=0b0111)], 0.0)
    assert scheduler.appropriate(3, [path(1)], 0.0)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"no scheduler is called 'x': there are intnw"):
        schedulers.scheduler("x")


class TestLabelMapping:
    quick, wide = path(1, 0.01, 1e6), path(2, 0.2, 50e6)
    both = (quick, wide)

    def choose(self, where: PathState, *waiting: int) -> Grant | None:
        return LabelMapping().choose(where, self.both, backlog(*waiting), 65_536, 0.0)

    def test_small_foreground_to_the_lowest_latency(self) -> None:
        assert self.choose(self.quick, 10, 0, 0, 0) == Grant(0, 65_536)
        assert self.choose(self.wide, 10, 0, 0, 0) is None

    def test_large_foreground_to_the_highest_bandwidth(self) -> None:
        assert self.choose(self.quick, 0, 10, 0, 0) is None
        assert self.choose(self.wide, 0, 10, 0, 0) == Grant(1, 65_536)

    def test_background_in_chunks_everywhere(self) -> None:
        for where in self.both:
            assert self.choose(where, 0, 0, 0, 10**6) == Grant(3, CHUNK)

    def test_background_goes_on_where_the_foreground_is_not(self) -> None:
        assert self.choose(self.wide, 10, 0, 0, 10) == Grant(3, CHUNK)

    def test_a_queue_counts_as_latency(self) -> None:
        full = path(1, 0.01, 1e6, unsent_bytes=50_000)  # 0.4 s
        grant = LabelMapping().choose(self.wide, (full, self.wide), backlog(10, 0, 0, 0), 9, 0.0)
        assert grant == Grant(0, 9)


class TestAnticipatory:
    def choose(
        self, where: PathState, *, at_s: float = -1e9, now: float = 100.0, paths: int = 1
    ) -> Grant | None:
        others = tuple(path(n, 0.001, 1e9) for n in range(2, 1 + paths))
        waiting = backlog(0, 0, 0, 10**9, at_s=at_s)
        return Anticipatory(LabelMapping()).choose(where, (where, *others), waiting, 10**9, now)

    def test_a_second_of_rate_while_nobody_is_in_a_hurry(self) -> None:
        assert self.choose(path(1, 0.05, 8e6)) == Grant(3, 1_000_000)
        assert self.choose(path(1, 0.05, 8e6, unsent_bytes=900_000)) == Grant(3, 100_000)
        assert self.choose(path(1, 0.05, 8e6, unsent_bytes=1_000_000)) is None

    def test_40_ms_of_rate_after_recent_foreground_data(self) -> None:
        assert self.choose(path(1, 0.05, 8e6), at_s=99.0) == Grant(3, 40_000)
        assert self.choose(path(1, 0.05, 8e6), at_s=94.0) == Grant(3, 1_000_000)

    def test_a_queue_in_the_network_counts_while_there_is_foreground_data(self) -> None:
        """8 Mbit/s: 40 ms are 40,000 bytes and a quarter of its round trip 15,000; 60,000 fill it."""
        bloated = path(1, 0.08, 8e6, rtt_min_s=0.06, under_way_bytes=80_000)
        assert self.choose(bloated, at_s=99.0) == Grant(3, 35_000)
        assert self.choose(bloated) == Grant(3, 1_000_000)

    def test_a_network_that_is_always_full_is_still_used(self) -> None:
        full = path(1, 0.5, 8e6, rtt_min_s=0.05, under_way_bytes=200_000, last_sent_at_s=99.97)
        assert self.choose(full, at_s=99.0) is None
        full.last_sent_at_s = 99.9
        grant = self.choose(full, at_s=99.0)
        assert grant is not None
        assert 0 < grant.limit_bytes <= 4096
        full.facts.unsent_bytes = 1  # but nothing piles up where not even the kernel gets on
        assert self.choose(full, at_s=99.0) is None

    def test_what_other_processes_sent_counts(self) -> None:
        assert self.choose(path(1, 0.05, 8e6, foreground_at_s=99.0)) == Grant(3, 40_000)

    def test_a_path_no_foreground_data_would_take_stays_ample(self) -> None:
        grant = self.choose(path(1, 0.5, 8e6), at_s=99.0, paths=2)
        assert grant == Grant(3, CHUNK)
        held = path(1, 0.5, 8e6, unsent_bytes=60_000)
        assert self.choose(held, at_s=99.0, paths=2) == Grant(3, CHUNK)

    def test_a_new_path_is_tried_with_little(self) -> None:
        assert bound_bytes(path(1, None, None), recent=False) == 2 * CHUNK

    def test_foreground_data_is_never_held(self) -> None:
        full = path(1, 0.05, 8e6, unsent_bytes=10**7)
        scheduler = Anticipatory(LabelMapping())
        assert scheduler.choose(full, (full,), backlog(5, 0, 0, 9), 99, 0.0) == Grant(0, 99)

    def test_looks_again_only_after_holding_back(self) -> None:
        scheduler = Anticipatory(LabelMapping())
        full = path(1, 0.05, 8e6, unsent_bytes=10**7)
        assert scheduler.next_look_s((full,), 0.0) is None
        assert scheduler.choose(full, (full,), backlog(0, 0, 0, 9), 99, 0.0) is None
        assert scheduler.next_look_s((full,), 0.0) == pytest.approx(0.01)
        assert scheduler.next_look_s((full,), 0.0) is None


class TestRedundant:
    def test_new_data_before_copies(self) -> None:
        one = path(1)
        waiting = backlog(0, 0, 0, 10, copyable=(0, 0, 0, 20))
        assert Redundant().choose(one, (one,), waiting, 99, 0.0) == Grant(3, 99)
        copies = backlog(0, 0, 0, 0, copyable=(0, 0, 0, 20))
        assert Redundant().choose(one, (one,), copies, 99, 0.0) == Grant(3, 99, copy=True)

    def test_only_the_labels_asked_for_go_twice(self) -> None:
        one = path(1)
        copies = backlog(0, 0, 0, 0, copyable=(5, 0, 0, 20))
        assert Redundant(0b0001).choose(one, (one,), copies, 99, 0.0) == Grant(0, 99, copy=True)
        late = backlog(0, 0, 0, 0, copyable=(0, 0, 0, 20))
        assert Redundant(0b0001).choose(one, (one,), late, 99, 0.0) is None


def test_lowest_rtt_spills_over_when_the_quick_one_is_full() -> None:
    quick, slow = path(1, 0.01), path(2, 0.1)
    waiting = backlog(0, 0, 0, 10**6)
    scheduler = LowestRtt()
    assert scheduler.choose(quick, (quick, slow), waiting, 10**6, 0.0) == Grant(3, CHUNK)
    assert scheduler.choose(slow, (quick, slow), waiting, 10**6, 0.0) is None
    quick.facts.unsent_bytes = 40_000
    assert scheduler.choose(slow, (quick, slow), waiting, 10**6, 0.0) == Grant(3, CHUNK)


def test_round_robin_takes_turns_and_passes_over_who_is_full() -> None:
    scheduler = RoundRobin()
    paths = [path(1), path(2), path(3)]
    waiting = backlog(0, 0, 0, 10**6)
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


class TestSwtc:
    def test_equation_2(self) -> None:
        assert expected_s(0.1, 0.0, 0.03, 0.02) == pytest.approx(0.15)
        # p = 0.5: 1 / 0.25 - 1 / 0.5 + 1 = 3
        assert expected_s(0.1, 0.5, 0.0, 0.0) == pytest.approx(0.3)

    def test_the_window_opens_when_the_paper_says(self) -> None:
        """Fig. 8: round trips 20 and 12; at 12 the first acknowledgement of path 2 is here."""
        first, second = Schedule(), Schedule()
        first.gave(1, 0 + 20)
        second.gave(1, 0 + 12)
        assert first.opens_in_s(1, 1, 12.0) == 20 - 12
        assert second.opens_in_s(1, 0, 12.0) == 0
        # Data 3 and 4 on path 2: est_ACK_AT 12 + 12 + 0 and 12 + 12 + 2.
        second.gave(1, 12 + 12 + 0)
        second.gave(1, 12 + 12 + 2)
        assert second.opens_in_s(2, 2, 13.0) == 24 - 13
        assert second.opens_in_s(1, 2, 13.0) == 26 - 13

    def test_one_path_gets_everything(self) -> None:
        one = path(1)
        assert Swtc().choose(one, (one,), backlog(0, 0, 0, 9), 99, 0.0) == Grant(3, 99)

    def test_what_a_busy_fast_path_acknowledges_sooner_is_left_to_it(self) -> None:
        fast, slow = path(1, 0.02, 80e6, unsent_bytes=100_000), path(2, 0.4, 8e6)
        few = backlog(0, 0, 0, 5 * CHUNK)
        scheduler = Swtc()
        assert scheduler.choose(slow, (fast, slow), few, 10**6, 0.0) is None
        assert scheduler.next_look_s((fast, slow), 0.0) is not None

    def test_the_slow_path_gets_what_is_needed_later(self) -> None:
        fast, slow = path(1, 0.02, 8e6), path(2, 0.2, 8e6)
        grant = Swtc().choose(slow, (fast, slow), backlog(0, 0, 0, 10**7), 10**6, 0.0)
        assert grant is not None
        # Until the slow path's round trip is over, the fast one carries about 180 ms of rate.
        assert 8 * CHUNK < grant.skip_bytes < 14 * CHUNK
        grant = Swtc().choose(fast, (fast, slow), backlog(0, 0, 0, 10**7), 10**6, 0.0)
        assert grant is not None
        assert grant.skip_bytes == 0

    def test_less_out_of_order_than_lowest_rtt(self) -> None:
        """The paper's point (Fig. 11, 12): pieces arrive in order although one path is slower."""

        def longest_wait(scheduler: Scheduler) -> float:
            paths = [path(1, 0.05, 8e6), path(2, 0.06, 5e5)]
            arrived: list[tuple[int, float]] = []
            missing = [(0, 200 * CHUNK)]  # what waits, as intervals of offsets
            free_at = {1: 0.0, 2: 0.0}
            now = 0.0
            while missing and now < 100:
                for each in paths:
                    each.facts.unsent_bytes = int(
                        max(0.0, free_at[each.path_id] - now) * (each.facts.rate_bps or 0) / 8
                    )
                    each.in_flight_bytes = each.facts.unsent_bytes
                    left = sum(end - begin for begin, end in missing)
                    if each.facts.unsent_bytes >= 2 * CHUNK or not left:
                        continue
                    grant = scheduler.choose(each, paths, backlog(0, 0, 0, left), CHUNK, now)
                    if grant is None:
                        continue
                    offset, size = take(missing, grant.skip_bytes, min(CHUNK, grant.limit_bytes))
                    begin = max(now, free_at[each.path_id])
                    free_at[each.path_id] = begin + 8 * size / (each.facts.rate_bps or 1)
                    arrived.append((offset, free_at[each.path_id] + (each.facts.rtt_s or 0) / 2))
                now += 0.002
            assert not missing
            longest, in_order_at = 0.0, 0.0
            for _, at in sorted(arrived):
                in_order_at = max(in_order_at, at)
                longest = max(longest, in_order_at - at)
            return longest

        def take(missing: list[tuple[int, int]], skip: int, size: int) -> tuple[int, int]:
            for index, (begin, end) in enumerate(missing):
                if skip < end - begin:
                    start, stop = begin + skip, min(end, begin + skip + size)
                    pieces = [(begin, start), (stop, end)]
                    missing[index : index + 1] = [piece for piece in pieces if piece[0] < piece[1]]
                    return start, stop - start
                skip -= end - begin
            raise AssertionError("granted beyond the end")

        assert longest_wait(Swtc()) < 0.5 * longest_wait(LowestRtt())


class TestChosen:
    one, other = path(1), path(2)
    both = (one, other)

    def test_what_is_left_goes_by_the_inner_scheduler(self) -> None:
        scheduler = Chosen(LabelMapping())
        forbidden = path(1, allowed=0b0111)
        waiting = backlog(0, 0, 0, 10**6)
        assert scheduler.choose(forbidden, (forbidden, self.other), waiting, 10**6, 0.0) is None
        assert scheduler.choose(self.other, (forbidden, self.other), waiting, 10**6, 0.0) == Grant(
            3, CHUNK
        )
        assert not scheduler.appropriate(3, (forbidden,), 0.0)

    def test_copies_only_of_what_is_to_be_sent_twice_and_only_where_it_may_go(self) -> None:
        copies = backlog(0, 0, 0, 0, copyable=(7, 0, 0, 8))
        scheduler = Chosen(LabelMapping())
        assert not scheduler.copies
        assert scheduler.choose(self.one, self.both, copies, 99, 0.0) is None
        scheduler.repeat(0b0001)
        assert scheduler.copies
        assert scheduler.choose(self.one, self.both, copies, 99, 0.0) == Grant(0, 99, copy=True)
        assert scheduler.choose(path(1, allowed=0b1110), self.both, copies, 99, 0.0) is None
        # New data goes first.
        waiting = backlog(0, 0, 5, 0, copyable=(7, 0, 0, 0))
        assert scheduler.choose(self.one, self.both, waiting, 99, 0.0) == Grant(2, 99)

    def test_what_waited_is_told_once(self) -> None:
        scheduler = Chosen(LabelMapping())
        told: list[list[int]] = []
        scheduler.used = lambda: told.append([])
        for waiting in (backlog(5, 0, 0, 9), backlog(3, 0, 0, 12)):
            scheduler.choose(self.one, self.both, waiting, 99, 0.0)
        assert len(told) == 1
        assert scheduler.taken() == [5, 0, 0, 12]
        assert scheduler.taken() == [0, 0, 0, 0]
        scheduler.choose(self.one, self.both, backlog(1, 0, 0, 0), 99, 0.0)
        assert len(told) == 2


class TestPermissions:
    paths: ClassVar = {1: path(1), 2: path(2)}

    def masks(self, *strategies: Strategy | None) -> tuple[int, int]:
        found = permissions([*strategies, *[None] * (4 - len(strategies))], self.paths)
        return found[1], found[2]

    def test_a_label_keeps_to_what_was_chosen_for_it_the_others_are_free(self) -> None:
        assert self.masks() == (0b1111, 0b1111)
        assert self.masks(single("net2")) == (0b1110, 0b1111)
        assert self.masks(None, single("net1")) == (0b1111, 0b1101)

    def test_several_networks_for_mptcp_and_redundancy(self) -> None:
        for kind in (StrategyKind.MPTCP, StrategyKind.REDUNDANT):
            assert self.masks(Strategy(kind, ("net2", "net1"))) == (0b1111, 0b1111)

    def test_a_network_that_is_gone_does_not_end_the_flow(self) -> None:
        assert self.masks(single("net7")) == (0b1111, 0b1111)

    def test_to_defer_is_to_be_let_onto_none(self) -> None:
        assert self.masks(Strategy(StrategyKind.DEFER, ())) == (0b1110, 0b1110)


class TestSilentPaths:
    """A permission may not stop a flow: where all permitted paths are silent, the others will do."""

    def test_others_will_do_while_all_permitted_ones_are_silent(self) -> None:
        silent, spare = path(1, stalled_at_s=1.0), path(2, allowed=0)
        assert allowed((silent, spare), 0) == [spare]
        assert allowed((silent,), 0) == [silent]
        assert allowed((path(1), spare), 0) == [path(1)]

    def test_what_is_let_onto_none_waits_all_the_same(self) -> None:
        silent, spare = path(1, allowed=0, stalled_at_s=1.0), path(2, allowed=0)
        assert allowed((silent, spare), 0) == []
