"""SWTC: what a slow path gets is what will be needed when it arrives."""

from typing import Any

import pytest

from cedos.session.protocol.schedulers.interface import Scheduler, SendGrant
from cedos.session.protocol.schedulers.plain import LowestRtt
from cedos.session.protocol.schedulers.swtc import Schedule, Swtc, expected_s

Make = Any
CHUNK = 16_384


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

    def test_one_path_gets_everything(self, make: Make) -> None:
        one = make.path(1)
        assert Swtc().choose(one, (one,), make.backlog(0, 0, 0, 9), 99, 0.0) == SendGrant(3, 99)

    def test_what_a_busy_fast_path_acknowledges_sooner_is_left_to_it(self, make: Make) -> None:
        fast, slow = make.path(1, 0.02, 80e6, unsent_bytes=100_000), make.path(2, 0.4, 8e6)
        few = make.backlog(0, 0, 0, 5 * CHUNK)
        scheduler = Swtc()
        assert scheduler.choose(slow, (fast, slow), few, 10**6, 0.0) is None
        assert scheduler.next_check_s((fast, slow), 0.0) is not None

    def test_the_slow_path_gets_what_is_needed_later(self, make: Make) -> None:
        fast, slow = make.path(1, 0.02, 8e6), make.path(2, 0.2, 8e6)
        grant = Swtc().choose(slow, (fast, slow), make.backlog(0, 0, 0, 10**7), 10**6, 0.0)
        assert grant is not None
        # Until the slow path's round trip is over, the fast one carries about 180 ms of rate.
        assert 8 * CHUNK < grant.skip_bytes < 14 * CHUNK
        grant = Swtc().choose(fast, (fast, slow), make.backlog(0, 0, 0, 10**7), 10**6, 0.0)
        assert grant is not None
        assert grant.skip_bytes == 0

    def test_less_out_of_order_than_lowest_rtt(self, make: Make) -> None:
        """The paper's point (Fig. 11, 12): pieces arrive in order although one path is slower."""

        def longest_wait(scheduler: Scheduler) -> float:
            paths = [make.path(1, 0.05, 8e6), make.path(2, 0.06, 5e5)]
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
                    grant = scheduler.choose(each, paths, make.backlog(0, 0, 0, left), CHUNK, now)
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
