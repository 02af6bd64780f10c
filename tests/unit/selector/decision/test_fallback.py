from math import nan

from hypothesis import given
from hypothesis import strategies as st

from cedos.selector.decision.fallback import RuleOfThumb

KNOWN = {
    "wifi_rtt_s": 0.02,
    "wifi_past5_bps": 5e6,
    "cellular_rtt_s": 0.06,
    "cellular_past5_bps": 50e6,
}


def best(**features: float) -> str:
    predicted = RuleOfThumb().predict(features)
    return min(predicted, key=lambda name: predicted[name].mean)


def test_what_is_small_goes_where_a_round_trip_is_shorter() -> None:
    assert best(size_bytes=1000.0, **KNOWN) == "wifi"


def test_what_is_large_goes_where_more_came_through() -> None:
    assert best(size_bytes=10e6, **KNOWN) == "mptcp_cellular"
    predicted = RuleOfThumb().predict({"size_bytes": 10e6, **KNOWN})
    assert predicted["cellular"].mean < predicted["wifi"].mean


def test_rates_are_taken_from_what_is_known() -> None:
    for name in ("past1_bps", "past5_bps", "past10_bps"):
        known = {
            "wifi_rtt_s": 0.02,
            "wifi_past5_bps": 5e6,
            "cellular_rtt_s": 0.06,
            f"cellular_{name}": 50e6,
        }
        assert best(size_bytes=10e6, **known) == "mptcp_cellular"


def test_a_rate_of_zero_is_slow_and_no_error() -> None:
    predicted = RuleOfThumb().predict({"size_bytes": 1e6, "wifi_past5_bps": 0.0})
    assert 60.0 < predicted["wifi"].mean < 3600.0


def test_nothing_known_is_the_typical_network() -> None:
    unknown = RuleOfThumb().predict({"size_bytes": 1e5})
    not_a_number = RuleOfThumb().predict({"size_bytes": 1e5, "wifi_rtt_s": nan})
    assert unknown["wifi"].mean == not_a_number["wifi"].mean < unknown["cellular"].mean


@given(
    st.floats(1, 1e9), st.floats(1, 1e9), st.floats(0.001, 1), st.floats(1e4, 1e9), st.booleans()
)
def test_more_bytes_never_take_less_time(
    a: float, b: float, rtt_s: float, bps: float, up: bool
) -> None:
    small, large = (
        RuleOfThumb().predict(
            {
                "size_bytes": size,
                "direction_up": float(up),
                "wifi_rtt_s": rtt_s,
                "wifi_past5_bps": bps,
            }
        )
        for size in sorted((a, b))
    )
    for name in RuleOfThumb.strategies:
        assert 0 < small[name].mean <= large[name].mean * (1 + 1e-9)
        assert list(small[name].samples) == sorted(small[name].samples)
