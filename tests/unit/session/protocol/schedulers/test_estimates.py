"""What is thought of a path's rate."""

from typing import Any

import pytest

from cedos.session.protocol.schedulers.interface import UNKNOWN_RATE_BPS, ahead_bytes, rate_bps
from cedos.session.protocol.schedulers.swtc import Swtc

Make = Any
CHUNK = 16_384


def test_a_path_in_slow_start_carries_its_window_each_round_trip(make: Make) -> None:
    path = make.path(1, 0.05, 2e6, window_bytes=100_000, slow_start=True)
    assert rate_bps(path) == pytest.approx(8 * 100_000 / 0.05)
    path.facts.slow_start = False
    assert rate_bps(path) == 2e6


def test_no_longer_once_its_queue_fills(make: Make) -> None:
    path = make.path(1, 0.06, 2e6, window_bytes=100_000, slow_start=True, rtt_min_s=0.05)
    assert rate_bps(path) > 2e6
    path.facts.rtt_s = 0.065
    assert rate_bps(path) == 2e6


def test_what_is_known_is_never_less_for_it(make: Make) -> None:
    assert rate_bps(make.path(1, 0.1, 9e6, window_bytes=14_480, slow_start=True)) == 9e6
    fresh = make.path(1, None, None, window_bytes=14_480, slow_start=True)
    assert rate_bps(fresh) == UNKNOWN_RATE_BPS


def test_enough_waits_to_fill_the_window(make: Make) -> None:
    path = make.path(1, 0.05, 2e6, window_bytes=500_000, slow_start=True)
    assert ahead_bytes([path], 1) == pytest.approx(8 * 500_000 / 0.05 / 8 * 0.1, rel=0.01)


def test_a_second_network_that_begins_is_not_starved(make: Make) -> None:
    """40 Mbit/s of which 2 are known, beside 45: its window of 116 kB is open."""
    wifi = make.path(1, 0.045, 45e6, unsent_bytes=100_000)
    lte = make.path(2, 0.055, 2e6, window_bytes=116_000, in_flight_bytes=30_000)
    backlog = make.backlog(0, 10 * CHUNK, 0, 0)
    assert Swtc().choose(lte, (wifi, lte), backlog, 10**6, 0.0) is None
    lte.facts.slow_start = True
    assert Swtc().choose(lte, (wifi, lte), backlog, 10**6, 0.0) is not None
