"""Nothing of others expires by a clock that jumps ahead."""

import pytest

from cedos.session.unhurried_clock import UnhurriedClock


def test_it_follows_no_jump_ahead_and_each_back():
    wall_s, steady_s = 1e9, 50.0
    clock = UnhurriedClock(lambda: wall_s, lambda: steady_s)
    for passed_s, jump_s, shown_s in (
        *((10.0, 0.0, 10.0), (10.0, 86_400.0 * 400, 20.0), (10.0, 0.0, 30.0)),
        *((10.0, -86_400.0 * 400, 40.0), (10.0, -30.0, 20.0)),
    ):
        steady_s += passed_s
        wall_s += passed_s + jump_s
        assert clock.now_s() == pytest.approx(1e9 + shown_s)
