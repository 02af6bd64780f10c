"""A shared processor, by hand and by theory."""

import random

import numpy as np
import pytest

from emu.experiments.meatballs.offload import SharedProcessor, arrivals, utilisation


def test_alone_it_takes_what_the_work_takes() -> None:
    assert SharedProcessor([]).finished_s(3.0, 0.5) == pytest.approx(3.5)


def test_two_share_equally() -> None:
    # The other has 1 s of work left at 0.5; ours is 0.25: both run at half speed until 1.0.
    other = SharedProcessor([(0.0, 1.5)])
    assert other.finished_s(0.5, 0.25) == pytest.approx(1.0)
    # Ours is longer: the other is done at 2.5, then we are alone.
    assert other.finished_s(0.5, 1.5) == pytest.approx(3.0)


def test_who_comes_later_slows_us_down() -> None:
    assert SharedProcessor([(1.0, 10.0)]).finished_s(0.0, 1.5) == pytest.approx(2.0)


def test_who_has_gone_does_not() -> None:
    early = SharedProcessor([(0.0, 1.0), (0.5, 0.2)])
    assert early.concurrent(0.6) == 2
    assert early.concurrent(1.3) == 0
    assert early.finished_s(5.0, 1.0) == pytest.approx(6.0)


def test_as_many_are_there_as_were_asked_for() -> None:
    counts = []
    for seed in range(4):
        others = arrivals(
            2000.0, (6.0, 6.0), 0.2, lambda rng: rng.uniform(0.1, 0.3), seed, warm_up_s=60.0
        )
        processor = SharedProcessor(others)
        counts += [processor.concurrent(at_s) for at_s in np.linspace(0, 2000, 80)]
    # Heavily correlated over time, so wide bounds.
    assert np.mean(counts) == pytest.approx(6.0, rel=0.35)


def test_load_grows() -> None:
    found = arrivals(4000.0, (0.5, 10.0), 0.2, lambda rng: 0.2, 1)
    half = [at_s < 2000.0 for at_s, _ in found if at_s > 0]
    assert sum(half) < 0.48 * len(half)
    assert found == arrivals(4000.0, (0.5, 10.0), 0.2, lambda rng: 0.2, 1)
    assert found == sorted(found)


def test_nobody_is_nobody() -> None:
    assert arrivals(100.0, (0.0, 0.0), 0.2, lambda rng: random.random(), 1) == []
    assert utilisation(6.0) == pytest.approx(6 / 7)
