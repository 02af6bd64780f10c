import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.selector.decision.usage import second_share

times = st.floats(0.001, 1000)


def test_a_request_that_is_over_before_the_join_costs_the_second_network_nothing() -> None:
    assert second_share(0.05, 0.1, 0.05, join_s=0.15) == 0.0


def test_a_long_transfer_divides_like_the_rates() -> None:
    # 10 s over Wi-Fi alone, 30 s over LTE alone: a quarter of the bytes go over LTE.
    assert second_share(10.0, 30.0, 7.5, join_s=0.0) == pytest.approx(0.25)
    assert second_share(30.0, 10.0, 7.5, join_s=0.0) == pytest.approx(0.75)


@given(times, times, times, st.floats(0, 1))
def test_a_share_is_a_share(
    primary_s: float, second_s: float, both_s: float, join_s: float
) -> None:
    assert 0.0 <= second_share(primary_s, second_s, both_s, join_s) <= 1.0


@given(times, times, times, st.floats(0, 1), st.floats(0, 1))
def test_a_later_join_carries_less(
    primary_s: float, second_s: float, both_s: float, a_s: float, b_s: float
) -> None:
    soon_s, late_s = sorted((a_s, b_s))
    soon = second_share(primary_s, second_s, both_s, soon_s)
    assert second_share(primary_s, second_s, both_s, late_s) <= soon
