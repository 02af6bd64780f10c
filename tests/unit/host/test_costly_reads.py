"""Reads that others make long take a tenth of the time at most."""

import pytest

from cedos.host.costly_reads import CostlyReads


@pytest.mark.parametrize(
    ("takes_s", "pause_s"), [(0.003, 0.0), (0.02, 0.0), (0.2, 1.8), (0.5, 4.5), (60.0, 10.0)]
)
def test_the_pause_is_nine_times_a_costly_read(takes_s, pause_s):
    now_s, used_s = 100.0, 0.0
    reads = CostlyReads(clock=lambda: now_s, processor=lambda: used_s)
    assert reads.pause_s == 0.0
    with reads.measure():
        used_s += takes_s
        now_s += takes_s
    assert reads.pause_s == pytest.approx(pause_s)
    now_s += pause_s
    assert reads.pause_s == pytest.approx(0.0)
