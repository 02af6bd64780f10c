"""Intervals agree with tables and with what is drawn."""

import numpy as np
import pytest

from emu.statistics import (
    Bootstrap,
    measured,
    quantile,
    resampled_groups,
    student_ci95,
    trials_figure,
)


def test_intervals_are_students() -> None:
    mean, (low, high) = student_ci95([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (mean, low, high) == pytest.approx((3.0, 3 - 1.963, 3 + 1.963), abs=1e-3)
    assert student_ci95([7.0]) == (7.0, [7.0, 7.0])
    assert trials_figure("x", [1.0, 1.0]) == {"x": 1.0, "x_ci95": [1.0, 1.0]}
    with pytest.raises(ValueError, match="at least one"):
        student_ci95([])


def test_more_groups_give_narrower_intervals() -> None:
    draw = np.random.default_rng(1)
    values = draw.normal(size=400)
    widths = []
    for count in (10, 400):
        low, high = Bootstrap(np.arange(400) % count).figure("x", quantile(values, 0.5))["x_ci95"]
        widths.append(high - low)
    assert widths[1] < widths[0] * 2
    assert 0.05 < widths[1] < 0.5, "four standard errors of a median of 400 are 0.25"


def test_weighted_quantiles_by_hand_and_without_the_unknown() -> None:
    of = quantile(np.array([3.0, np.nan, 1.0, 2.0]), 0.5)
    weights = np.array([[1.0, 1.0, 1.0, 1.0], [5.0, 1.0, 1.0, 1.0], [0.0, 9.0, 0.0, 0.0]])
    found = of(weights)
    assert found[:2].tolist() == [2.0, 3.0]
    assert np.isnan(found[2])


def test_measures_of_rows_share_their_resamples() -> None:
    values = np.array([1.0, 2.0, 3.0, 10.0])
    measures = {"mean": lambda rows: float(values[rows].mean())}
    found = measured(measures, 4, np.random.default_rng(1), 200)
    assert found["mean"] == 4.0
    assert found == measured(measures, 4, np.random.default_rng(1), 200)
    low, high = found["mean_ci95"]
    assert 1.0 <= low < 4.0 < high <= 10.0


def test_all_rows_of_a_drawn_group_come_together() -> None:
    groups = np.array(["a", "b", "a", "c"])
    for rows in resampled_groups(groups, np.random.default_rng(1), 20):
        drawn = rows.tolist()
        assert drawn.count(0) == drawn.count(2)
        assert len({*drawn}) in {1, 2, 3, 4}
