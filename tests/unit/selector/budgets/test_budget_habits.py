"""Weekdays: idle ones are told from busy ones, and nothing finer."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.selector.budgets.controller import PROHIBITIVE, Option
from cedos.selector.budgets.demand import Shortfalls
from cedos.selector.budgets.habits import DAY_S, Unchosen, Weekdays, daily
from cedos.selector.budgets.pacer import Pacer


def lived(busy, days):
    """Ten choices on each busy day of the week; the clock begins on day 0."""
    week = Weekdays()
    for day in range(days):
        for hour in range(24):
            week.record(day * DAY_S + (hour + 1) * 3600.0, 3600.0)
        if day % 7 in busy:
            for _ in range(10):
                week.add(day * DAY_S + 40_000.0, 1.0)
    return week


def test_days_are_alike_until_a_week_was_seen():
    assert lived({5, 6}, 5).usual_s(0.0, 7 * DAY_S) == pytest.approx(7 * DAY_S)


@given(st.floats(0, 1e10), st.floats(0, 1e8), st.sets(st.integers(0, 6)))
def test_never_more_than_the_time_there_is(begin_s, length_s, busy):
    usual_s = lived(busy, 15).usual_s(begin_s, begin_s + length_s)
    assert math.isfinite(usual_s)
    assert 0.0 <= usual_s <= length_s * 1.000001 + 1e-3


_HOUR_S = 3600.0


_STEP_S = 600.0


def _live(unchosen, begin_h, end_h, factor=1.0):
    """From eight to twenty so many units each ten minutes, at night none."""
    at_s = begin_h * _HOUR_S
    while at_s < end_h * _HOUR_S:
        at_s += _STEP_S
        awake = 8 * _HOUR_S < at_s % DAY_S <= 20 * _HOUR_S
        unchosen.record(at_s, _STEP_S, factor if awake else 0.0)


def _learned(days=5):
    unchosen = Unchosen(5 * DAY_S, DAY_S)
    _live(unchosen, 0, 24 * days)
    return unchosen


def test_in_the_evening_little_is_still_to_come():
    unchosen, day_s = _learned(), 5 * DAY_S
    whole, _ = unchosen.to_come(day_s, day_s + DAY_S, 0.0)
    assert whole == pytest.approx(72.0, rel=0.1)
    _live(unchosen, 120, 140)
    evening, deviation = unchosen.to_come(day_s + 20 * _HOUR_S, day_s + DAY_S, 0.0)
    # An even day has 12 of 72 still to come at eight in the evening.
    assert evening < 4.0
    assert deviation < 4.0


def test_a_busy_morning_makes_a_busy_day_and_no_busy_week():
    usual, busy = _learned(), _learned()
    _live(usual, 120, 132)
    _live(busy, 120, 132, factor=2.0)
    noon_s = 5.5 * DAY_S
    expected, _ = usual.to_come(noon_s, noon_s + DAY_S / 2, 0.0)
    more, _ = busy.to_come(noon_s, noon_s + DAY_S / 2, 0.0)
    assert 1.25 * expected < more < 2.0 * expected
    week, _ = usual.to_come(noon_s, noon_s + 7 * DAY_S, 0.0)
    busy_week, _ = busy.to_come(noon_s, noon_s + 7 * DAY_S, 0.0)
    assert week < busy_week < 1.25 * week


def test_what_is_chosen_is_no_habit():
    unchosen = Unchosen(5 * DAY_S, DAY_S)
    for step in range(1, 289):
        unchosen.chosen(step * _STEP_S - 1.0, 3.0)
        unchosen.record(step * _STEP_S, _STEP_S, 4.0)
    expected, _ = unchosen.to_come(2 * DAY_S, 3 * DAY_S, 0.0)
    assert expected == pytest.approx(144.0, rel=0.2)


def test_hours_are_told_apart_in_days_alone():
    assert [daily(days * DAY_S) for days in (0.1, 0.5, 1, 2, 7, 30)] == [
        *(False, True, True, True, False, False)
    ]
    month = Unchosen(5 * DAY_S, 30 * DAY_S)
    _live(month, 0, 120)
    evening_s = 5 * DAY_S - 4 * _HOUR_S
    expected, _ = month.to_come(evening_s, 5 * DAY_S, 0.0)
    assert expected == pytest.approx(12.0, rel=0.2)
    for_longer, _ = month.to_come(evening_s, 5 * DAY_S, 8 * _HOUR_S)
    assert for_longer == pytest.approx(2 * expected)


@pytest.mark.parametrize("period_s", [DAY_S, 30 * DAY_S])
def test_what_was_learned_is_kept(period_s):
    unchosen = Unchosen(5 * DAY_S, period_s)
    _live(unchosen, 0, 120)
    again = Unchosen(5 * DAY_S, period_s, unchosen.state())
    assert again.state() == unchosen.state()
    # A day's hours, learned of nothing yet, are even.
    empty = Unchosen(5 * DAY_S, DAY_S, Unchosen(5 * DAY_S, 30 * DAY_S).state())
    assert empty.to_come(0.0, DAY_S, 0.0) == (0.0, 0.0)


def test_a_day_of_joules_leaves_its_evening_to_choices():
    """With a day's use over, the price falls while something can still be bought for the supply."""
    pacer = None
    rates = {}
    for day in range(5):
        begins_s, left = day * DAY_S, 100.0
        pacer = Pacer(100.0, begins_s, begins_s + DAY_S, learned=pacer.state() if pacer else None)
        for step in range(144):
            at_s = begins_s + step * _STEP_S
            hour = at_s % DAY_S / _HOUR_S
            if 8 <= hour < 20:
                left -= 1.0
            pacer.observe(at_s, left)
            options = [Option(1.0, 0.0), Option(0.0, 1.0)]
            pacer.on_choice(at_s, options, options[0])
            rates[day, step] = pacer.quote(at_s).rate_for(1.0, 1.0)
        assert left == pytest.approx(28.0)
    # 28 units are left at eight in the evening for 24 that are asked for, worth a second each.
    assert rates[4, 20 * 6 + 3] < 1.0


def _day(number, came, learned=None, until_h=24.0):
    """A day of which 50 units are expected at noon, and so many come in each hour of the afternoon."""
    begins_s = number * DAY_S
    day = Shortfalls(begins_s + DAY_S, learned)
    for hour in range(1, 25):
        if hour > until_h:
            break
        day.record(begins_s + hour * _HOUR_S - 1.0, came / 12.0 if hour > 12 else 0.0)
        if hour == 12:
            day.forecast(begins_s + 12 * _HOUR_S, 50.0, 100.0)
    return day


def _at_noon(shortfalls, number):
    return shortfalls.deviation((number + 0.5) * DAY_S, 50.0, 100.0)


def _after(days, until_h=24.0):
    learned = None
    for number, came in enumerate(days):
        learned = json.loads(json.dumps(_day(number, came, learned, until_h).state()))
    return Shortfalls((len(days) + 1) * DAY_S, learned)


def test_forecasts_that_were_too_low_are_remembered_and_those_too_high_are_not():
    right, low, high = (_after([came] * 20) for came in (50.0, 90.0, 10.0))
    assert _at_noon(right, 20) == _at_noon(high, 20)
    # However often it was right, something of the beginning's doubt stays.
    assert 5.0 < _at_noon(right, 20) < 15.0
    assert 30.0 < _at_noon(low, 20) < 40.0
    # Another hour has its own errors.
    assert low.deviation(20.9 * DAY_S, 50.0, 100.0) == 25.0


def test_a_restart_in_the_middle_of_a_day_goes_on_with_it():
    morning = _day(0, 90.0, until_h=12.0).state()
    again = Shortfalls(DAY_S, json.loads(json.dumps(morning)))
    again.record(DAY_S - 1.0, 90.0)
    assert _at_noon(Shortfalls(2 * DAY_S, again.state()), 1) == _at_noon(_after([90.0]), 1)


@given(st.lists(st.tuples(st.floats(-1e9, 1e9), st.floats(-1e12, 1e12)), max_size=30))
def test_no_measurement_breaks_it(seen):
    shortfalls = Shortfalls(DAY_S)
    for now_s, used in seen:
        shortfalls.record(now_s, used)
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
def test_nonsense_is_refused(nonsense):
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        Shortfalls(DAY_S, nonsense)


def _lives(busy):
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
                pacer.on_choice(at_s, options, chosen)
                left -= chosen.amount
                saved_s += saves_s if chosen.amount else 0.0
        pacer.observe(begins_s + DAY_S - 1.0, left)
        state = json.loads(json.dumps(pacer.state()))
        left_over.append(left)
        bought.append(saved_s)
    return left_over, bought


def test_a_day_twice_as_busy_as_all_before_it_is_got_through():
    """Once the surplus of usual days was sold by noon, and budgets of joules were broken."""
    left, bought = _lives([40.0] * 12 + [80.0, 40.0, 88.0])
    assert min(left) >= 0.0
    # A usual day spends most of what is left over for what saves most: 25 times 100 s are asked for.
    assert max(left[5:12]) < 25.0
    assert min(bought[5:12]) > 0.9 * 2500.0


def test_what_is_expected_to_be_needed_is_not_for_sale():
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
