import random
from math import inf, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictors.network import BANDWIDTH, LATENCY, TIME, FlipFlop, NetworkPredictor


def test_the_filter_follows_small_changes_at_once_and_doubts_large_ones():
    filtered = FlipFlop()
    assert filtered.estimate is None
    for value in (10.0, 11.0, 10.0, 11.0, 10.0, 11.0, 10.0):
        filtered.observe(value)
    assert filtered.estimate == pytest.approx(10.1, abs=0.15), "agile: nine tenths of the newest"
    filtered.observe(100.0)
    assert filtered.estimate < 30.0, "stable: a tenth of what jumps"
    for _ in range(3):
        filtered.observe(100.0)
    assert filtered.estimate > 90.0, "what stays is believed"


def test_the_filter_takes_only_numbers():
    filtered = FlipFlop()
    for value in (nan, inf, -inf):
        filtered.observe(value)
    assert filtered.estimate is None


def exchanges(predictor, latency_s, rate_bps, noise, count=60):
    dice = random.Random(5)
    for k in range(count):
        size = dice.choice([1e3, 5e3, 1e5, 4e5])
        time_s = latency_s + 8.0 * size / rate_bps
        predictor.observe(size, time_s * dice.lognormvariate(0.0, noise), float(k))


def test_latency_and_bandwidth_are_the_line_of_time_over_size():
    predictor = NetworkPredictor()
    exchanges(predictor, 0.06, 5e6, 0.0)
    assert predictor.latency_s == pytest.approx(0.06, rel=1e-3)
    assert predictor.bandwidth_bps == pytest.approx(5e6, rel=1e-3)
    assert predictor.point_s(5e4) == pytest.approx(0.14, rel=1e-3)


def test_it_finds_a_network_that_has_changed():
    predictor = NetworkPredictor()
    exchanges(predictor, 0.06, 5e6, 0.1)
    exchanges(predictor, 0.06, 1e6, 0.1)
    assert predictor.bandwidth_bps == pytest.approx(1e6, rel=0.35)


def test_small_exchanges_alone_tell_of_latency_and_leave_bandwidth_open():
    predictor = NetworkPredictor()
    dice = random.Random(2)
    for k in range(40):
        predictor.observe(dice.gauss(5e3, 5e2), 0.06 * dice.lognormvariate(0.0, 0.2), float(k))
    assert predictor.latency_s == pytest.approx(0.06, rel=0.3)
    assert predictor.bandwidth_bps is None


@pytest.mark.parametrize("noise", [0.1, 0.3])
def test_its_interval_covers_what_comes(noise):
    """Nine of ten of the next exchanges lie within, or a few less, for the filter adds its own doubt."""
    dice = random.Random(11)
    predictor = NetworkPredictor()
    inside = total = 0
    for k in range(400):
        size = dice.choice([1e3, 5e3, 1e5, 4e5])
        time_s = (0.06 + 8.0 * size / 5e6) * dice.lognormvariate(0.0, noise)
        if k >= 100:
            expected = predictor.predict({"size_bytes": size, "at_s": float(k)})[TIME]
            inside += expected.quantile(0.05) <= time_s <= expected.quantile(0.95)
            total += 1
        predictor.observe(size, time_s, float(k))
    assert 0.82 <= inside / total <= 0.99


def test_measurements_come_back_with_the_network_s_name():
    predictor = NetworkPredictor("wifi")
    told = predictor.observe_rtt(0.04, 3.0)
    assert [tuple(each) for each in told] == [("wifi.latency", 0.04, 0.04, 3.0)]
    assert predictor.observe_rate(nan, 3.0) == []
    told = predictor.observe_rate(4e6, 4.0) + predictor.observe(1e5, 0.5, 5.0)
    assert {each.quantity for each in told} == {"wifi.bandwidth"}
    assert told[-1].value < 4e6, "it took longer than predicted"


def test_another_access_point_begins_anew():
    predictor = NetworkPredictor()
    exchanges(predictor, 0.06, 5e6, 0.1)
    predictor.reset(100.0)
    assert predictor.latency_s is None
    assert predictor.bandwidth_bps is None
    assert all(len(errors) == 0 for errors in predictor.errors.values())


@settings(max_examples=40)
@given(st.lists(st.tuples(
    st.one_of(st.floats(), st.floats(1, 1e7)), st.one_of(st.floats(), st.floats(1e-6, 1e4))
), max_size=15))  # fmt: skip
def test_whatever_is_observed_predictions_stay_numbers(seen):
    predictor = NetworkPredictor()
    for k, (size, time_s) in enumerate(seen):
        predictor.observe(size, time_s, float(k))
        predictor.observe_rtt(time_s, float(k))
        predictor.observe_rate(size, float(k))
        found = predictor.predict({"size_bytes": 1e4, "at_s": float(k)})[TIME]
        assert 0.0 < found.samples[0] <= found.samples[-1] < inf
    assert set(predictor.errors) == {BANDWIDTH, LATENCY}
