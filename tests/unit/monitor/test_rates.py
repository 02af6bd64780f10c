import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.monitor.rates import Rates


def fed(megabits: list[float], *, busy: bool | None = None) -> Rates:
    """One reading a second, beginning at second 0."""
    rates, total = Rates(), 0
    rates.observe(0, 0.0)
    for second, rate in enumerate(megabits, 1):
        total += int(rate * 125_000)
        rates.observe(total, float(second), busy=busy)
    return rates


def values(rates: Rates) -> dict[str, float]:
    return {name: indicator.value for name, indicator in rates.indicators().items()}


def test_the_mean_of_each_span() -> None:
    found = values(fed([*([2.0] * 5), *([4.0] * 4), 6.0]))
    assert found == pytest.approx(
        {"past1_bps": 6e6, "past5_bps": 22e6 / 5, "past10_bps": 32e6 / 10}
    )


def test_what_is_older_than_ten_seconds_is_gone() -> None:
    assert values(fed([100.0, *([2.0] * 10)]))["past10_bps"] == pytest.approx(2e6)


def test_an_idle_network_keeps_what_it_last_did() -> None:
    rates = fed([8.0, 8.0, 0.0, 0.0, 0.001])
    assert values(rates)["past1_bps"] == pytest.approx(8e6)
    assert {i.measured_at_s for i in rates.indicators().values()} == {2.0}


def test_idle_seconds_between_do_not_thin_a_rate() -> None:
    assert values(fed([8.0, 0.0, 8.0]))["past5_bps"] == pytest.approx(8e6)


def test_who_knows_better_decides_what_is_busy() -> None:
    assert values(fed([8.0], busy=False)) == {}
    assert values(fed([0.1], busy=True))["past1_bps"] == pytest.approx(0.1e6)


def test_nothing_is_known_at_first_and_after_a_restart_of_the_counter() -> None:
    rates = Rates()
    rates.observe(10**9, 1.0)
    assert rates.indicators() == {}
    rates.observe(0, 2.0)
    assert rates.indicators() == {}
    rates.observe(1_000_000, 3.0)
    assert values(rates)["past1_bps"] == pytest.approx(8e6)


@given(st.lists(st.tuples(st.floats(0, 7), st.integers(0, 10**7)), min_size=2, max_size=60))
def test_no_rhythm_breaks_it_and_no_rate_is_beyond_the_fastest(
    steps: list[tuple[float, int]],
) -> None:
    rates, at_s, total, fastest = Rates(), 0.0, 0, 0.0
    rates.observe(0, 0.0)
    for step_s, count in steps:
        at_s, total = at_s + step_s, total + count
        if step_s > 1e-3:
            fastest = max(fastest, count * 8 / step_s)
            rates.observe(total, at_s, busy=True)
        else:
            at_s, total = at_s - step_s, total - count
    for indicator in rates.indicators().values():
        assert 0 <= indicator.value <= fastest * 1.001
