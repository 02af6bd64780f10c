"""Schedulers of labels: which path suits which label, and how much background data may queue."""

from typing import Any

import pytest

from cedos.session.protocol.schedulers.anticipatory import Anticipatory, bound_bytes
from cedos.session.protocol.schedulers.interface import PathState, SendGrant
from cedos.session.protocol.schedulers.plain import LabelMapping

Make = Any
CHUNK = 16_384


class TestLabelMapping:
    @pytest.fixture(autouse=True)
    def _two(self, make: Make) -> None:
        self.make = make
        self.quick, self.wide = make.path(1, 0.01, 1e6), make.path(2, 0.2, 50e6)
        self.both = (self.quick, self.wide)

    def choose(self, where: PathState, *waiting: int) -> SendGrant | None:
        return LabelMapping().choose(where, self.both, self.make.backlog(*waiting), 65_536, 0.0)

    def test_small_foreground_to_the_lowest_latency(self) -> None:
        assert self.choose(self.quick, 10, 0, 0, 0) == SendGrant(0, 65_536)
        assert self.choose(self.wide, 10, 0, 0, 0) is None

    def test_large_foreground_to_the_highest_bandwidth(self) -> None:
        assert self.choose(self.quick, 0, 10, 0, 0) is None
        assert self.choose(self.wide, 0, 10, 0, 0) == SendGrant(1, 65_536)

    def test_background_in_chunks_everywhere(self) -> None:
        for where in self.both:
            assert self.choose(where, 0, 0, 0, 10**6) == SendGrant(3, CHUNK)

    def test_background_goes_on_where_the_foreground_is_not(self) -> None:
        assert self.choose(self.wide, 10, 0, 0, 10) == SendGrant(3, CHUNK)

    def test_a_queue_counts_as_latency(self, make: Make) -> None:
        full = make.path(1, 0.01, 1e6, unsent_bytes=50_000)  # 0.4 s
        grant = LabelMapping().choose(
            self.wide, (full, self.wide), make.backlog(10, 0, 0, 0), 9, 0.0
        )
        assert grant == SendGrant(0, 9)


class TestAnticipatory:
    @pytest.fixture(autouse=True)
    def _make(self, make: Make) -> None:
        self.make = make

    def choose(
        self, where: PathState, *, at_s: float = -1e9, now: float = 100.0, paths: int = 1
    ) -> SendGrant | None:
        others = tuple(self.make.path(n, 0.001, 1e9) for n in range(2, 1 + paths))
        waiting = self.make.backlog(0, 0, 0, 10**9, at_s=at_s)
        return Anticipatory(LabelMapping()).choose(where, (where, *others), waiting, 10**9, now)

    def test_a_second_of_rate_while_nobody_is_in_a_hurry(self, make: Make) -> None:
        assert self.choose(make.path(1, 0.05, 8e6)) == SendGrant(3, 1_000_000)
        assert self.choose(make.path(1, 0.05, 8e6, unsent_bytes=900_000)) == SendGrant(3, 100_000)
        assert self.choose(make.path(1, 0.05, 8e6, unsent_bytes=1_000_000)) is None

    def test_40_ms_of_rate_after_recent_foreground_data(self, make: Make) -> None:
        assert self.choose(make.path(1, 0.05, 8e6), at_s=99.0) == SendGrant(3, 40_000)
        assert self.choose(make.path(1, 0.05, 8e6), at_s=94.0) == SendGrant(3, 1_000_000)

    def test_a_queue_in_the_network_counts_while_there_is_foreground_data(self, make: Make) -> None:
        """8 Mbit/s: 40 ms are 40,000 bytes and a quarter of its round trip 15,000; 60,000 fill it."""
        bloated = make.path(1, 0.08, 8e6, rtt_min_s=0.06, under_way_bytes=80_000)
        assert self.choose(bloated, at_s=99.0) == SendGrant(3, 35_000)
        assert self.choose(bloated) == SendGrant(3, 1_000_000)

    def test_a_network_that_is_always_full_is_still_used(self, make: Make) -> None:
        full = make.path(1, 0.5, 8e6, rtt_min_s=0.05, under_way_bytes=200_000, last_sent_at_s=99.97)
        assert self.choose(full, at_s=99.0) is None
        full.last_sent_at_s = 99.9
        grant = self.choose(full, at_s=99.0)
        assert grant is not None
        assert 0 < grant.limit_bytes <= 4096
        full.facts.unsent_bytes = 1  # but nothing piles up where not even the kernel gets on
        assert self.choose(full, at_s=99.0) is None

    def test_what_other_processes_sent_counts(self, make: Make) -> None:
        assert self.choose(make.path(1, 0.05, 8e6, foreground_at_s=99.0)) == SendGrant(3, 40_000)

    def test_a_path_no_foreground_data_would_take_stays_ample(self, make: Make) -> None:
        grant = self.choose(make.path(1, 0.5, 8e6), at_s=99.0, paths=2)
        assert grant == SendGrant(3, CHUNK)
        held = make.path(1, 0.5, 8e6, unsent_bytes=60_000)
        assert self.choose(held, at_s=99.0, paths=2) == SendGrant(3, CHUNK)

    def test_a_new_path_is_tried_with_little(self, make: Make) -> None:
        assert bound_bytes(make.path(1, None, None), recent=False) == 2 * CHUNK

    def test_foreground_data_is_never_held(self, make: Make) -> None:
        full = make.path(1, 0.05, 8e6, unsent_bytes=10**7)
        scheduler = Anticipatory(LabelMapping())
        assert scheduler.choose(full, (full,), make.backlog(5, 0, 0, 9), 99, 0.0) == SendGrant(
            0, 99
        )

    def test_large_foreground_data_makes_way_for_small_where_that_is_wanted(
        self, make: Make
    ) -> None:
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

    def test_looks_again_only_after_holding_back(self, make: Make) -> None:
        scheduler = Anticipatory(LabelMapping())
        full = make.path(1, 0.05, 8e6, unsent_bytes=10**7)
        assert scheduler.next_check_s((full,), 0.0) is None
        assert scheduler.choose(full, (full,), make.backlog(0, 0, 0, 9), 99, 0.0) is None
        assert scheduler.next_check_s((full,), 0.0) == pytest.approx(0.01)
        assert scheduler.next_check_s((full,), 0.0) is None
