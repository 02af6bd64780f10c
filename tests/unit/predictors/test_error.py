from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.base import Distribution
from predictors.error import ErrorHistory, middles, redistributed, spread


def test_middles_of_equal_weights_are_quantiles() -> None:
    assert middles([(float(k), 1.0) for k in (4, 2, 3, 1)], 4) == [1.0, 2.0, 3.0, 4.0]
    assert middles([(1.0, 1.0), (3.0, 1.0)], 1) == [2.0]


def test_a_heavy_value_takes_its_share_of_the_slices() -> None:
    # 3 of 4 parts of the weight lie on 5: its middle stands at 5/8.
    assert middles([(1.0, 1.0), (5.0, 3.0)], 2) == pytest.approx([1.0 + 4.0 * 0.25, 5.0])


def test_a_censored_error_is_shared_out_among_the_larger_ones() -> None:
    # Efron by hand: 2 is censored, its weight goes to 3 and 4 in equal parts; 4 is the last one.
    weights = redistributed([1.0, 3.0, 2.0, 4.0], [False, False, True, True])
    assert weights == pytest.approx([1.0, 1.5, 0.0, 1.5])


def test_at_the_same_error_the_censored_one_is_the_larger() -> None:
    assert redistributed([2.0, 2.0, 5.0], [True, False, False]) == pytest.approx([0.0, 1.0, 2.0])


@given(st.lists(st.tuples(st.floats(-5, 5), st.booleans()), min_size=1, max_size=30))
def test_redistribution_keeps_the_total(errors: list[tuple[float, bool]]) -> None:
    weights = redistributed([value for value, _ in errors], [censored for _, censored in errors])
    assert sum(weights) == pytest.approx(len(errors))


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=12).map(sorted), st.floats(1.0, 4.0))
def test_spreading_keeps_the_median_and_the_order(ratios: list[float], factor: float) -> None:
    wide = spread(ratios, factor)
    assert all(low <= high * (1 + 1e-9) for low, high in pairwise(wide))
    assert wide[-1] / wide[0] == pytest.approx((ratios[-1] / ratios[0]) ** factor)
    assert spread(ratios, 1.0) == pytest.approx(tuple(ratios))


def test_without_errors_of_its_own_it_keeps_the_held_out_ones() -> None:
    assert ErrorHistory().corrected((0.5, 1.0, 2.0)) == (0.5, 1.0, 2.0)


def test_errors_seen_here_move_the_distribution_and_newer_ones_weigh_more() -> None:
    held_out = (0.8, 0.9, 1.0, 1.1, 1.25)
    slow = ErrorHistory()
    before = Distribution(held_out).mean
    means = []
    for _ in range(60):
        slow.add(3.0, 1.0, 0.0)
        means.append(Distribution(slow.corrected(held_out)).mean)
    assert before < means[0] < means[20] < means[59] < 3.0
    for _ in range(30):
        slow.add(0.9, 1.0, 0.0)
    assert Distribution(slow.corrected(held_out)).mean < means[59] - 0.2


def test_memory_is_bounded() -> None:
    seen = ErrorHistory()
    for _ in range(10_000):
        seen.add(1.0, 1.0, 0.0)
    assert len(seen.corrected((0.5, 2.0))) == 2
    assert len(seen) < 500
