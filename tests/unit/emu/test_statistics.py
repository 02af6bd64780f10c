"""Intervals agree with tables and with what is drawn."""

import numpy as np
import pytest

from emu.statistics import (
    quantile,
    resampled_groups,
    student_ci95,
    trials_figure,
)


def test_intervals_are_students():
    mean, (low, high) = student_ci95([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (mean, low, high) == pytest.approx((3.0, 3 - 1.963, 3 + 1.963), abs=1e-3)
    assert student_ci95([7.0]) == (7.0, [7.0, 7.0])
    assert trials_figure("x", [1.0, 1.0]) == {"x": 1.0, "x_ci95": [1.0, 1.0]}
    with pytest.raises(ValueError, match="at least one"):
        student_ci95([])


def test_weighted_quantiles_by_hand_and_without_the_unknown():
    of = quantile(np.array([3.0, np.nan, 1.0, 2.0]), 0.5)
    weights = np.array([[1.0, 1.0, 1.0, 1.0], [5.0, 1.0, 1.0, 1.0], [0.0, 9.0, 0.0, 0.0]])
    found = of(weights)
    assert found[:2].tolist() == [2.0, 3.0]
    assert np.isnan(found[2])


def test_all_rows_of_a_drawn_group_come_together():
    groups = np.array(["a", "b", "a", "c"])
    for rows in resampled_groups(groups, np.random.default_rng(1), 20):
        drawn = rows.tolist()
        assert drawn.count(0) == drawn.count(2)
        assert len({*drawn}) in {1, 2, 3, 4}
