"""How much too low forecasts of a day's use were, and what that leaves to choices."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cedos.selector.budgets.controller import Option
from cedos.selector.budgets.hours import DAY_S
from cedos.selector.budgets.pacer import Pacer
from cedos.selector.budgets.shortfall import Shortfalls
from cedos.selector.budgets.supply import PROHIBITIVE

_HOUR_S = 3600.0


def _day(
    number: int, came: float, learned: Mapping[str, Any] | None = None, until_h: float = 24.0
) -> Shortfalls:
    """A day of which 50 units are expected at noon, and so many come in each hour of the afternoon."""
    begins_s = number * DAY_S
    day = Shortfalls(begins_s + DAY_S, learned)
    for hour in range(1, 25):
        if hour > until_h:
            break
        day.passed(begins_s + hour * _HOUR_S - 1.0, came / 12.0 if hour > 12 else 0.0)
        if hour == 12:
            day.forecast(begins_s + 12 * _HOUR_S, 50.0, 100.0)
    return day


def _at_noon(shortfalls: Shortfalls, number: int) -> float:
    return shortfalls.deviation((number + 0.5) * DAY_S, 50.0, 100.0)


def _after(days: list[float], until_h: float = 24.0) -> Shortfalls:
    learned: Mapping[str, Any] | None = None
    for number, came in enumerate(days):
        learned = json.loads(json.dumps(_day(number, came, learned, until_h).state()))
    return Shortfalls((len(days) + 1) * DAY_S, learned)


def test_before_anything_is_known_a_forecast_may_be_half_too_low() -> None:
    assert _at_noon(Shortfalls(DAY_S), 0) == 25.0


def test_forecasts_that_were_too_low_are_remembered_and_those_too_high_are_not() -> None:
    right, low, high = (_after([came] * 20) for came in (50.0, 90.0, 10.0))
    assert _at_noon(right, 20) == _at_noon(high, 20)
    # However often it was right, something of the beginning's doubt stays.
    assert 5.0 < _at_noon(right, 20) < 15.0
    assert 30.0 < _at_noon(low, 20) < 40.0
    # Another hour has its own errors.
    assert low.deviation(20.9 * DAY_S, 50.0, 100.0) == 25.0


def test_days_that_are_busier_have_larger_errors() -> None:
    low = _after([90.0] * 20)
    assert low.deviation(20.5 * DAY_S, 100.0, 200.0) == pytest.approx(2.0 * _at_noon(low, 20))


def test_a_day_that_was_not_seen_to_its_end_teaches_nothing() -> None:
    assert _at_noon(_after([90.0] * 20, until_h=20.0), 20) == 25.0


def test_a_restart_in_the_middle_of_a_day_goes_on_with_it() -> None:
    morning = _day(0, 90.0, until_h=12.0).state()
    again = Shortfalls(DAY_S, json.loads(json.dumps(morning)))
    again.passed(DAY_S - 1.0, 90.0)
    assert _at_noon(Shortfalls(2 * DAY_S, again.state()), 1) == _at_noon(_after([90.0]), 1)


def test_what_is_chosen_is_not_what_forecasts_lacked() -> None:
    day = _day(0, 90.0)
    day.chosen(40.0)
    assert _at_noon(Shortfalls(2 * DAY_S, day.state()), 1) < 25.0


def test_a_day_that_ends_at_another_time_is_not_compared() -> None:
    day = _day(0, 90.0)
    day.changed(DAY_S + 600.0)
    assert day.state()["open"] is None


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(-1e9, 1e9), st.floats(-1e12, 1e12)), max_size=30))
def test_no_measurement_breaks_it(seen: list[tuple[float, float]]) -> None:
    shortfalls = Shortfalls(DAY_S)
    for now_s, used in seen:
        shortfalls.passed(now_s, used)
        shortfalls.forecast(now_s, max(used, 0.0), abs(used))
        assert shortfalls.deviation(now_s, 1.0, 1.0) >= 0.0
    state = json.loads(json.dumps(shortfalls.state()))
    assert Shortfalls(2 * DAY_S, state).deviation(DAY_S, 1.0, 1.0) >= 0.0


@pytest.mark.parametrize(
    "nonsense",
    [
        {},
        {"squares": 3, "open": None},
        {"squares": {"a": [1, 2]}, "open": None},
        {"squares": {}, "open": [1, 2]},
    ],
)
def test_nonsense_is_refused(nonsense: Mapping[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        Shortfalls(DAY_S, nonsense)


def _lives(busy: list[float]) -> tuple[list[float], list[float]]:
    """Days of joules, of which each hour from eight to twenty uses so many twelfths without a choice.

    Beside them, 10 times an hour, a unit can be spent that saves from a thousandth of a second to a
    hundred. Returns what was left at the end of each day, and the day's time bought.
    """
    state, left_over, bought = None, [], []
    for number, use in enumerate(busy):
        begins_s, left, saved_s = number * DAY_S, 100.0, 0.0
        pacer = Pacer(100.0, begins_s, begins_s + DAY_S, learned=state)
        for step in range(240):
            at_s = begins_s + step * 360.0
            if 80 <= step < 200:
                left -= use / 120.0
            pacer.observe(at_s, left)
            if 80 <= step < 230:
                saves_s = 10.0 ** (step * 7 % 6 - 3)
                options = [Option(saves_s, 0.0), Option(0.0, 1.0)]
                chosen = options[pacer.quote(at_s).rate_for(1.0, 1.0) < saves_s]
                pacer.offered(at_s, options, chosen)
                left -= chosen.amount
                saved_s += saves_s if chosen.amount else 0.0
        pacer.observe(begins_s + DAY_S - 1.0, left)
        state = json.loads(json.dumps(pacer.state()))
        left_over.append(left)
        bought.append(saved_s)
    return left_over, bought


def test_a_day_twice_as_busy_as_all_before_it_is_got_through() -> None:
    """What the mornings of joules were broken by: all that usual days leave over was sold by noon."""
    left, bought = _lives([40.0] * 12 + [80.0, 40.0, 88.0])
    assert min(left) >= 0.0
    # A usual day spends most of what is left over for what saves most: 25 times 100 s are asked for.
    assert max(left[5:12]) < 25.0
    assert min(bought[5:12]) > 0.9 * 2500.0


def test_what_is_expected_to_be_needed_is_not_for_sale() -> None:
    state = None
    for number in range(6):
        begins_s, left = number * DAY_S, 100.0
        pacer = Pacer(100.0, begins_s, begins_s + DAY_S, learned=state)
        for step in range(144):
            left -= 0.6
            pacer.observe(begins_s + step * 600.0, left)
        pacer.observe(begins_s + DAY_S - 1.0, left)
        state = pacer.state()
    begins_s = 6 * DAY_S
    pacer = Pacer(100.0, begins_s, begins_s + DAY_S, learned=state)
    pacer.observe(begins_s + 600.0, 100.0)
    quote = pacer.quote(begins_s + 600.0)
    # 86 of 100 are usual, 94 may be planned with.
    assert quote.rate_for(3.0, 1.0) < PROHIBITIVE
    assert quote.rate_for(20.0, 1.0) == PROHIBITIVE
