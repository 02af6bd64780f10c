"""DTP's setting: its arithmetic agrees with what the paper reports."""

import pytest

from emu.experiments.sessions import dtp
from emu.testbed.counters import Sample


def test_contacts_grow_by_the_median() -> None:
    plan = dtp.plan(154, 20, 3e6, 0.02)
    minutes = [[round(20 * at_s / 60, 6) for at_s in contact] for contact in plan.contacts[:3]]
    assert minutes == [[0.0, 6.6], [14.4, 27.6], [35.4, 55.2]]
    assert plan.size_bytes == 7_700_000


@pytest.mark.parametrize(("size_mb", "gaps"), [(77, 0), (154, 1), (308, 1)])
def test_the_bound_waits_for_the_gaps_that_it_meets(size_mb: float, gaps: int) -> None:
    plan = dtp.plan(size_mb, 20, 3e6, 0.02)
    assert plan.bound_s() == pytest.approx((8 * size_mb / 3 + gaps * dtp.GAP_S) / 20)


def test_energy_is_that_of_life() -> None:
    """A sixtieth of the time: each second with data is a minute of the radio's power."""
    plan = dtp.plan(154, 60, 3e6, 0.02)
    received = [0, 100, 200, 200, 200, 300]
    samples = [Sample(100.0 + at, "wlan0", each, 0) for at, each in enumerate(received)]
    assert dtp.energy_j(samples, plan) == pytest.approx(3 * 60 * (0.404 - 0.034))
    cellular = dtp.undisturbed(plan, 0.15)
    # The tail of 4 and 6 s fits into the pause, and follows the end.
    tail_j = 4.0 * 0.892 + 6.0 * 0.396
    assert dtp.energy_j(samples, cellular) == pytest.approx(3 * 60 * 0.892 + 2 * tail_j)
