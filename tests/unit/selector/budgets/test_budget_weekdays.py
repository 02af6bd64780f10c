"""Weekdays: idle ones are told from busy ones, and nothing finer."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.selector.budgets.hours import DAY_S
from cedos.selector.budgets.weekdays import Weekdays


def lived(busy: set[int], days: int) -> Weekdays:
    """Ten choices on each busy day of the week; the clock begins on day 0."""
    week = Weekdays()
    for day in range(days):
        for hour in range(24):
            week.passed(day * DAY_S + (hour + 1) * 3600.0, 3600.0)
        if day % 7 in busy:
            for _ in range(10):
                week.add(day * DAY_S + 40_000.0, 1.0)
    return week


def test_days_are_alike_until_a_week_was_seen() -> None:
    assert lived({5, 6}, 5).usual_s(0.0, 7 * DAY_S) == pytest.approx(7 * DAY_S)


def test_after_two_weeks_only_weekends_count() -> None:
    week = lived({5, 6}, 14)
    assert week.usual_s(14 * DAY_S, 19 * DAY_S) < 0.5 * DAY_S
    assert week.usual_s(19 * DAY_S, 21 * DAY_S) == pytest.approx(2 * DAY_S)
    assert week.usual_s(14 * DAY_S, 28 * DAY_S) == pytest.approx(2 * week.usual_s(0, 7 * DAY_S))


def test_a_busier_day_is_no_other_day() -> None:
    week = lived(set(range(7)), 21)
    for _ in range(10):
        week.add(20.5 * DAY_S, 1.0)
    assert week.usual_s(21 * DAY_S, 24.5 * DAY_S) == pytest.approx(3.5 * DAY_S)


def test_what_was_learned_can_be_kept() -> None:
    week = lived({5, 6}, 14)
    again = Weekdays(list(week.amounts), list(week.seen_s))
    assert again.usual_s(14 * DAY_S, 25 * DAY_S) == week.usual_s(14 * DAY_S, 25 * DAY_S)
    assert Weekdays([1.0], [2.0]).amounts == [0.0] * 7


@given(st.floats(0, 1e10), st.floats(0, 1e8), st.sets(st.integers(0, 6)))
def test_never_more_than_the_time_there_is(begin_s: float, length_s: float, busy: set[int]) -> None:
    usual_s = lived(busy, 15).usual_s(begin_s, begin_s + length_s)
    assert math.isfinite(usual_s)
    assert 0.0 <= usual_s <= length_s * 1.000001 + 1e-3
