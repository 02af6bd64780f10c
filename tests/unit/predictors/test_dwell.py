from math import inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from predictors.dwell import GENERIC, DwellPredictor, Weibull, fit

shapes, scales = st.floats(0.3, 4.0), st.floats(0.5, 500.0)


@pytest.mark.parametrize(("shape", "seed"), [(0.5, 1), (0.77, 2), (1.0, 3), (2.5, 4)])
@pytest.mark.parametrize("cut_s", [inf, 100.0, 20.0, "each at another time"])
def test_the_fit_is_that_of_scipy(shape, seed, cut_s):
    drawn = stats.weibull_min.rvs(shape, scale=50.0, size=200, random_state=seed)
    if isinstance(cut_s, str):
        cut_s = np.random.default_rng(seed).uniform(5.0, 150.0, 200)
    seen = np.minimum(drawn, cut_s)
    mine = fit(seen.tolist(), (drawn > cut_s).tolist())
    data = stats.CensoredData.right_censored(seen, drawn > cut_s)
    theirs_shape, _, theirs_scale = stats.weibull_min.fit(data, floc=0)
    assert mine.shape == pytest.approx(theirs_shape, rel=1e-3)
    assert mine.scale_s == pytest.approx(theirs_scale, rel=1e-3)


@given(
    st.lists(st.floats(0.1, 1e6), min_size=2, max_size=30),
    st.floats(1e-3, 100.0),
    st.integers(0, 9),
)
def test_the_fit_is_the_same_from_wherever_it_begins(times_s, near, over):
    censored = [number < over for number in range(len(times_s))]
    one, other = fit(times_s, censored), fit(times_s, censored, near=near)
    assert (one is None) is (other is None)
    if one is not None and other is not None:
        assert other.shape == pytest.approx(one.shape, rel=1e-6)
        assert other.scale_s == pytest.approx(one.scale_s, rel=1e-6)


@given(shapes, scales, st.floats(0.0, 5.0))
def test_the_mean_residual_life_is_the_integral_of_the_survival(shape, scale_s, ages):
    of, age_s = Weibull(shape, scale_s), ages * scale_s
    expected, _ = integrate.quad(
        lambda u: of.survival_after(age_s, scale_s * u), 0, 60.0 ** (1.0 / shape), limit=400
    )
    assert of.mean_residual_s(age_s) == pytest.approx(scale_s * expected, rel=1e-3)


@given(shapes, scales, st.floats(0.0, 100.0), st.floats(0.01, 0.99))
def test_remaining_and_survival_are_each_other_s_inverse(shape, scale_s, age_s, q):
    of = Weibull(shape, scale_s)
    left_s = of.remaining_s(age_s, q)
    # Where powers are large, a rest is the difference of two nearly equal numbers.
    assert of.survival_after(age_s, left_s) == pytest.approx(1.0 - q, abs=1e-4)
    assert of.survival_after(0.0, age_s) == pytest.approx(of.survival(age_s))


@pytest.mark.parametrize("times", [[], [5.0], [5.0, 5.0, 5.0], [nan, inf, -1.0]])
def test_what_does_not_tell_a_shape_fits_nothing(times):
    assert fit(times, [False] * len(times)) is None
    assert fit(times, [True] * len(times)) is None


def test_an_access_point_gets_a_distribution_of_its_own():
    predictor = DwellPredictor()
    for k in range(12):
        predictor.observe("bus stop", 6.0 + k % 3)
        predictor.observe("office", 3000.0 + 500.0 * (k % 3))
    medians = {
        point: predictor.remaining(point, 0.0).quantile(0.5)
        for point in ("bus stop", "never seen", "office")
    }
    assert 4.0 < medians["bus stop"] < 12.0
    assert 1500.0 < medians["office"] < 4500.0
    assert 12.0 < medians["never seen"] < 1500.0


def test_before_the_first_session_stands_the_generic_prior():
    median_s = DwellPredictor().remaining(None, 0.0).quantile(0.5)
    assert median_s == pytest.approx(GENERIC.remaining_s(0.0, 0.5), rel=0.25)
    assert GENERIC.remaining_s(0.0, 0.5) == pytest.approx(41.0, rel=0.01)
    assert GENERIC.survival(300.0) == pytest.approx(0.04, abs=0.005)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(), st.booleans()), max_size=40),
       st.one_of(st.floats(0, 1e12), st.just(0.0)))  # fmt: skip
def test_whatever_is_observed_there_is_a_rest(sessions, age_s):
    predictor = DwellPredictor()
    for point, dwell_s, censored in sessions:
        predictor.observe(point, dwell_s, censored)
    left = predictor.remaining("a", age_s).samples
    assert all(0.0 <= each < inf for each in left)
    assert list(left) == sorted(left)
    assert 0.0 <= predictor.survival("a", age_s, 10.0) <= 1.0


def test_memory_is_bounded():
    predictor = DwellPredictor()
    for k in range(2000):
        predictor.observe(f"point {k}", 1.0 + k % 50)
    assert len(predictor._at) <= 256
