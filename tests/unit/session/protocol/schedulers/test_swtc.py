"""SWTC: what a slow path gets is what will be needed when it arrives."""

import pytest

from cedos.session.protocol.schedulers.swtc import Schedule, Swtc, expected_s

CHUNK = 16_384


class TestSwtc:
    def test_equation_2(self):
        assert expected_s(0.1, 0.0, 0.03, 0.02) == pytest.approx(0.15)
        # p = 0.5: 1 / 0.25 - 1 / 0.5 + 1 = 3
        assert expected_s(0.1, 0.5, 0.0, 0.0) == pytest.approx(0.3)

    def test_the_window_opens_when_the_paper_says(self):
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

    def test_what_a_busy_fast_path_acknowledges_sooner_is_left_to_it(self, make):
        fast, slow = make.path(1, 0.02, 80e6, unsent_bytes=100_000), make.path(2, 0.4, 8e6)
        few = make.backlog(0, 0, 0, 5 * CHUNK)
        scheduler = Swtc()
        assert scheduler.choose(slow, (fast, slow), few, 10**6, 0.0) is None
        assert scheduler.next_check_s((fast, slow), 0.0) is not None

    def test_a_path_of_unknown_rate_gets_little_beyond_its_window(self, make):
        new, known = make.path(1, 0.1, None, window_bytes=14_480), make.path(2, 0.1, 4e5)
        scheduler, much = Swtc(), make.backlog(0, 0, 0, 10**6)
        grant = scheduler.choose(new, (new, known), much, 10**5, 0.0)
        assert 14_480 < grant.limit_bytes < 14_480 + CHUNK
        new.in_flight_bytes = grant.limit_bytes
        assert scheduler.choose(new, (new, known), much, 10**5, 0.0) is None
        # The known path leaves nothing to the other one, which seems quicker.
        grant = scheduler.choose(known, (new, known), much, 10**5, 0.0)
        assert grant.skip_bytes == 0
        # Once acknowledgements have opened the window, the new path gets more.
        new.facts.window_bytes = 28_960
        assert scheduler.choose(new, (new, known), much, 10**5, 0.0) is not None
