from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.base import Distribution, Judged, calibration, minimum_of, size_class

samples = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=12).map(
    lambda values: Distribution(tuple(sorted(values)))
)


def test_samples_are_the_middles_of_equal_slices():
    two = Distribution((1.0, 3.0))
    assert two.mean == 2.0
    assert [two.quantile(q) for q in (0.0, 0.25, 0.5, 0.75, 1.0)] == [1.0, 1.0, 2.0, 3.0, 3.0]


def test_ten_samples_begin_and_end_with_the_bounds_of_the_90_percent_interval():
    ten = Distribution(tuple(float(k) for k in range(10)))
    assert ten.quantile(0.05) == 0.0
    assert ten.quantile(0.95) == 9.0


def test_survival_counts_what_lies_above():
    four = Distribution((1.0, 2.0, 2.0, 5.0))
    assert [four.survival(t) for t in (0.5, 1.0, 2.0, 5.0)] == [1.0, 0.75, 0.25, 0.0]


def test_what_has_turned_out_to_be_longer_leaves_the_rest():
    four = Distribution((1.0, 2.0, 3.0, 5.0))
    assert four.known_above(2.0) == Distribution((3.0, 5.0))
    assert four.known_above(9.0) == Distribution((18.0,))


def test_minimum_of_two_by_hand():
    # All pairs of (1, 4) and (2, 3): 1, 1, 2, 3.
    minimum = minimum_of(Distribution((1.0, 4.0)), Distribution((2.0, 3.0)))
    assert minimum.mean == pytest.approx(1.75)
    assert minimum.samples == pytest.approx((1.0, 2.5))


@given(samples, samples)
def test_mean_of_the_minimum_is_exact(a, b):
    pairs = [min(x, y) for x in a.samples for y in b.samples]
    minimum = minimum_of(a, b)
    assert minimum.mean == pytest.approx(sum(pairs) / len(pairs))
    assert len(minimum.samples) == max(len(a.samples), len(b.samples))
    assert all(low <= high * (1 + 1e-9) for low, high in pairwise(minimum.samples))


@given(samples, st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.floats(0.1, 10.0))
def test_quantiles_ascend_stay_inside_and_scale(a, p, q, factor):
    low, high = sorted((p, q))
    assert a.samples[0] <= a.quantile(low) <= a.quantile(high) * (1 + 1e-12)
    assert a.quantile(high) <= a.samples[-1]
    assert a.scale(factor).quantile(q) == pytest.approx(factor * a.quantile(q))


def test_expected_over_actual_and_what_the_interval_had():
    held = calibration([Judged(0.5, 1.0, 2.0, 1.2, 1.0), Judged(0.5, 1.0, 2.0, 1.2, 4.0)])
    assert (held.n, held.coverage90) == (2, 0.5)
    assert held.expected_over_actual_median == pytest.approx(0.625)
    assert held.expected_over_actual_sum == pytest.approx(2.4 / 5.0)
    assert calibration([]) is None


def test_sizes_have_three_classes():
    assert [size_class(size) for size in (99_999, 100_000, 999_999, 1e6)] == [
        "small", "medium", "medium", "large",
    ]  # fmt: skip
