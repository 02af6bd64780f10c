from itertools import pairwise
from math import exp, inf, log, nan, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.base import Distribution
from predictors.error import SLICES, ErrorHistory, middles, slice_means, weigh_censored


def test_middles_of_equal_weights_are_quantiles():
    assert middles([(float(k), 1.0) for k in (4, 2, 3, 1)], 4) == [1.0, 2.0, 3.0, 4.0]
    assert middles([(1.0, 1.0), (3.0, 1.0)], 1) == [2.0]


def test_a_censored_error_is_shared_out_among_the_larger_ones():
    # Efron by hand: 2 is censored, its weight goes to 3 and 4 in equal parts; 4 is the last one.
    weights = weigh_censored([1.0, 3.0, 2.0, 4.0], [False, False, True, True])
    assert weights == pytest.approx([1.0, 1.5, 0.0, 1.5])


@given(st.lists(st.tuples(st.floats(-5, 5), st.booleans()), min_size=1, max_size=30))
def test_redistribution_keeps_the_total(errors):
    weights = weigh_censored([value for value, _ in errors], [censored for _, censored in errors])
    assert sum(weights) == pytest.approx(len(errors))


def test_memory_is_bounded():
    seen = ErrorHistory()
    for _ in range(10_000):
        seen.add(1.0, 1.0, 0.0)
    assert len(seen) < 500


ratios = st.lists(st.floats(0.01, 100), min_size=1, max_size=80)


def plain():
    return ErrorHistory(prior=None, fading=1.0)


def sigma(distribution):
    logs = [log(sample) for sample in distribution.samples]
    mean = sum(logs) / len(logs)
    return sqrt(sum([(each - mean) ** 2 for each in logs]) / len(logs))


@given(st.lists(st.tuples(st.floats(0.01, 100), st.floats(0.01, 1)), min_size=1, max_size=60),
       st.integers(1, 70))  # fmt: skip
def test_slices_keep_the_mean_and_stay_within(weighted, count):
    found = slice_means(weighted, count)
    total = sum(weight for _, weight in weighted)
    mean = sum(value * weight for value, weight in weighted) / total
    assert len(found) == count
    assert sum(found) / count == pytest.approx(mean)
    assert all(low <= high for low, high in pairwise(found))
    assert min(weighted)[0] <= found[0] * (1 + 1e-9)
    assert found[-1] <= max(weighted)[0] * (1 + 1e-9)


def test_a_slice_is_what_was_seen_and_not_something_between():
    found = slice_means([(10.0, 1.0), (20.0, 1.0)], 50)
    assert found == pytest.approx([10.0] * 25 + [20.0] * 25)


@given(ratios)
def test_equal_errors_come_back_as_they_were(seen):
    history = plain()
    for ratio in seen:
        assert history.add(ratio, 1.0, 0.0)
    found = history.distribution(0.0).samples
    if len(seen) <= SLICES:
        assert found == pytest.approx(sorted(seen))
    else:
        assert sum(found) / len(found) == pytest.approx(sum(seen) / len(seen))


def test_without_a_single_sample_it_is_the_prior_or_trust():
    assert plain().distribution(5.0) == Distribution((1.0,))
    prior = Distribution((0.5, 2.0))
    assert ErrorHistory(prior=prior).distribution(5.0) == prior
    assert ErrorHistory().distribution(0.0).quantile(0.95) == pytest.approx(
        exp(0.5 * 1.645), rel=0.02
    )


def test_errors_outweigh_the_prior():
    history = ErrorHistory()
    for k in range(30):
        history.add(1.0, 1.0, float(k))
    assert sigma(history.distribution(30.0)) < 0.2
    assert history.worth > 20.0


@pytest.mark.parametrize("bad", [nan, inf, -inf, 0.0, -1.0])
def test_what_is_no_number_is_no_error(bad):
    history = ErrorHistory()
    before = history.distribution(0.0)
    assert not history.add(bad, 1.0, 0.0)
    assert not history.add(1.0, bad, 0.0)
    assert not history.add(1e300, 1e-300, 0.0)
    assert history.distribution(0.0) == before
    assert history.add(1.0, 1.0, bad), "an unknown instant is no reason to lose an error"
    assert history.distribution(bad).mean > 0.0


def test_it_widens_with_age_and_a_measurement_makes_it_new():
    history = ErrorHistory()
    for k in range(40):
        history.add(exp(0.1 * (-1) ** k), 1.0, float(k))
    fresh = history.distribution(39.0)
    widths = [sigma(history.distribution(39.0 + age_s)) for age_s in (0, 2, 5, 20, 100)]
    assert widths == sorted(widths)
    assert widths[0] == pytest.approx(sigma(fresh))
    assert widths[-1] > widths[0] + 0.3
    history.add(1.1, 1.0, 139.0)
    assert sigma(history.distribution(139.0)) < widths[-1] / 2


def test_age_that_is_in_the_errors_already_does_not_widen():
    """Errors of predictions that were 20 s old say what a prediction 20 s old is worth."""
    history = ErrorHistory(prior=None)
    for k in range(40):
        history.add(exp(0.5 * (-1) ** k), 1.0, 20.0 * k)
    last_s = 20.0 * 39
    assert history.added_variance(last_s + 20.0) == pytest.approx(0.0, abs=0.03)
    assert history.added_variance(last_s + 1000.0) < 0.1


def test_a_new_access_point_begins_with_the_prior():
    history = ErrorHistory()
    for k in range(40):
        history.add(3.0, 1.0, float(k))
    version = history.version
    history.reset(50.0)
    assert len(history) == 0
    assert history.version > version
    assert history.distribution(50.0) == ErrorHistory().distribution(0.0)
