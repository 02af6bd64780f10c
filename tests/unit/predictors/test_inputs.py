from math import exp, isfinite, isnan, log, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.inputs import (
    COLUMNS,
    INPUTS,
    LARGEST_BYTES,
    STRATEGIES,
    after_slow_start,
    inputs_of,
    joined_time_s,
    naive_time_s,
)

TYPICAL = {
    "wifi_rtt_s": 0.02,
    "wifi_past1_bps": 2e7,
    "cellular_rtt_s": 0.05,
    "cellular_past1_bps": 1e7,
}


def named(**columns):
    return dict(zip(INPUTS, inputs_of(columns, TYPICAL)[0], strict=True))


def naive(**columns):
    return inputs_of(columns, TYPICAL)[1]


def test_what_fits_into_the_first_window_takes_two_round_trips_and_its_bytes():
    assert naive_time_s(3000, 0.05, 24e6) == pytest.approx(0.1 + 0.001)


def test_slow_start_adds_a_round_trip_each_time_the_window_doubles():
    # 14480 and 28960 bytes go in two flights, the remaining 56560 fit into the third window.
    assert naive_time_s(100_000, 0.1, 1e9) == pytest.approx(0.2 + 2 * 0.1 + 56_560 * 8 / 1e9)


def test_after_its_slow_start_a_transfer_shows_the_rate():
    slow_s = 56_560 * 8 / 4e6
    assert after_slow_start(100_000, 0.1, 0.4 + slow_s) == pytest.approx((56_560, slow_s))
    # A last window that comes within a round trip: the network did at least that.
    assert after_slow_start(100_000, 0.1, 0.41) == pytest.approx((56_560, 0.1))
    assert after_slow_start(100_000, 0.001, 0.0045) == pytest.approx((100_000, 0.02))
    assert after_slow_start(100_000, 0.1, 0.39) is None, "so soon no slow start ends"


@given(st.floats(1e3, 1e8), st.floats(1e-3, 1.0), st.floats(1e4, 1e9), st.floats(0.0, 10.0))
def test_a_transfer_never_shows_more_than_the_network_does(size_bytes, rtt_s, rate_bps, thought_s):
    left = after_slow_start(
        size_bytes, rtt_s, naive_time_s(size_bytes, rtt_s, rate_bps) + thought_s
    )
    assert left is not None
    carried_bytes, span_s = left
    assert 0.0 < carried_bytes <= size_bytes
    assert 8.0 * carried_bytes / span_s <= rate_bps * 1.0001


def test_what_is_larger_than_anything_measured_looks_like_the_largest_and_takes_longer():
    known = {"wifi_rtt_s": 0.02, "wifi_past1_bps": 2e7, "cellular_rtt_s": 0.05}
    at_most = inputs_of({"size_bytes": LARGEST_BYTES, **known}, TYPICAL)
    larger = inputs_of({"size_bytes": 1e9, **known}, TYPICAL)
    assert larger[0] == pytest.approx(at_most[0], nan_ok=True)
    assert larger[1]["wifi"] == naive_time_s(1e9, 0.02, 2e7)
    assert larger[1]["mptcp_cellular"] == naive_time_s(1e9, 0.05, TYPICAL["cellular_past1_bps"])


def test_ratios_are_differences_of_logarithms():
    found = named(
        size_bytes=1000,
        wifi_rtt_s=0.04,
        wifi_rtt_min_s=0.02,
        wifi_past1_bps=1e6,
        wifi_past5_bps=4e6,
        cellular_rtt_s=0.08,
        cellular_past1_bps=2e6,
    )
    assert found["wifi_log_rtt_over_min"] == pytest.approx(log(2))
    assert found["wifi_log_past1_over_past5"] == pytest.approx(log(0.25))
    assert found["log_wifi_over_cellular_rtt"] == pytest.approx(log(0.5))
    assert found["log_wifi_over_cellular_past1"] == pytest.approx(log(0.5))
    assert found["log_size"] == pytest.approx(log(1000))


def test_unknown_indicators_stay_unknown_while_the_naive_time_takes_typical_ones():
    found = named(size_bytes=3e6, wifi_past1_bps=nan)
    assert isnan(found["wifi_log_past1"])
    assert isnan(found["log_wifi_over_cellular_rtt"])
    times_s = naive(size_bytes=3e6, wifi_past1_bps=nan)
    assert times_s["wifi"] == pytest.approx(naive_time_s(3e6, 0.02, 2e7))
    assert exp(found["wifi_log_naive"]) == pytest.approx(times_s["wifi"])


def test_rates_add_up_once_the_second_subflow_has_joined():
    # 10 s alone; 9 s of them after the join are carried four times as fast.
    assert joined_time_s(10.0, 0.2, 1e6, 0.4, 3e6) == pytest.approx(1.0 + 9.0 / 4.0)
    assert joined_time_s(10.0, 0.2, 0.0, 0.4, 0.0) == pytest.approx(1.0 + 9.0 / 2.0)


def test_both_networks_together_are_compared_with_each_alone():
    found = named(
        size_bytes=1e7,
        wifi_rtt_s=0.02,
        wifi_past1_bps=8e6,
        cellular_rtt_s=0.04,
        cellular_past1_bps=4e6,
    )
    wifi_s, cellular_s = naive_time_s(1e7, 0.02, 8e6), naive_time_s(1e7, 0.04, 4e6)
    both_s = joined_time_s(wifi_s, 0.02, 8e6, 0.04, 4e6)
    assert both_s < 0.7 * wifi_s < 0.7 * cellular_s
    assert found["log_mptcp_wifi_over_wifi"] == pytest.approx(log(both_s / wifi_s))
    assert found["log_mptcp_wifi_over_single"] == pytest.approx(log(both_s / wifi_s))
    other_s = joined_time_s(cellular_s, 0.04, 4e6, 0.02, 8e6)
    assert found["log_mptcp_cellular_over_cellular"] == pytest.approx(log(other_s / cellular_s))
    assert found["log_mptcp_wifi_over_mptcp_cellular"] == pytest.approx(log(both_s / other_s))


def test_a_longer_past_stands_in_for_the_last_second():
    times_s = naive(size_bytes=3e6, cellular_past10_bps=5e6)
    assert times_s["cellular"] == pytest.approx(naive_time_s(3e6, 0.05, 5e6))


@given(
    st.dictionaries(
        st.sampled_from(COLUMNS), st.one_of(st.just(nan), st.just(0.0), st.floats(-1e3, 1e12))
    ),
    st.floats(0.0, 1e12),
)
def test_any_columns_give_all_inputs_and_positive_times(columns, size):
    values, times_s = inputs_of(columns | {"size_bytes": size}, TYPICAL)
    assert len(values) == len(INPUTS) == len(set(INPUTS))
    assert set(times_s) == set(STRATEGIES)
    assert all(isfinite(time_s) and time_s > 0.0 for time_s in times_s.values())
    assert all(isnan(value) or isfinite(value) for value in values)
