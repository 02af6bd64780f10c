"""What is used without a choice, by the hours of a day."""

import pytest

from cedos.selector.budgets.controller import Option
from cedos.selector.budgets.hours import DAY_S
from cedos.selector.budgets.pacer import Pacer
from cedos.selector.budgets.unchosen import Unchosen, daily

_HOUR_S = 3600.0
_STEP_S = 600.0


def _live(unchosen: Unchosen, begin_h: float, end_h: float, factor: float = 1.0) -> None:
    """From eight to twenty so many units each ten minutes, at night none."""
    at_s = begin_h * _HOUR_S
    while at_s < end_h * _HOUR_S:
        at_s += _STEP_S
        awake = 8 * _HOUR_S < at_s % DAY_S <= 20 * _HOUR_S
        unchosen.passed(at_s, _STEP_S, factor if awake else 0.0)


def _learned(days: int = 5) -> Unchosen:
    unchosen = Unchosen(5 * DAY_S, DAY_S)
    _live(unchosen, 0, 24 * days)
    return unchosen


def test_in_the_evening_little_is_still_to_come() -> None:
    unchosen, day_s = _learned(), 5 * DAY_S
    whole, _ = unchosen.to_come(day_s, day_s + DAY_S, 0.0)
    assert whole == pytest.approx(72.0, rel=0.1)
    _live(unchosen, 120, 140)
    evening, deviation = unchosen.to_come(day_s + 20 * _HOUR_S, day_s + DAY_S, 0.0)
    # An even day has 12 of 72 still to come at eight in the evening.
    assert evening < 4.0
    assert deviation < 4.0


def test_a_busy_morning_makes_a_busy_day_and_no_busy_week() -> None:
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


def test_what_is_chosen_is_no_habit() -> None:
    unchosen = Unchosen(5 * DAY_S, DAY_S)
    for step in range(1, 289):
        unchosen.chosen(step * _STEP_S - 1.0, 3.0)
        unchosen.passed(step * _STEP_S, _STEP_S, 4.0)
    expected, _ = unchosen.to_come(2 * DAY_S, 3 * DAY_S, 0.0)
    assert expected == pytest.approx(144.0, rel=0.2)


def test_hours_are_told_apart_in_days_alone() -> None:
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
def test_what_was_learned_is_kept(period_s: float) -> None:
    unchosen = Unchosen(5 * DAY_S, period_s)
    _live(unchosen, 0, 120)
    again = Unchosen(5 * DAY_S, period_s, unchosen.state())
    assert again.state() == unchosen.state()
    # A day's hours, learned of nothing yet, are even.
    empty = Unchosen(5 * DAY_S, DAY_S, Unchosen(5 * DAY_S, 30 * DAY_S).state())
    assert empty.to_come(0.0, DAY_S, 0.0) == (0.0, 0.0)


def test_a_day_of_joules_leaves_its_evening_to_choices() -> None:
    """With a day's use over, the price falls while something can still be bought for the supply."""
    pacer: Pacer | None = None
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
            pacer.offered(at_s, options, options[0])
            rates[day, step] = pacer.quote(at_s).rate_for(1.0, 1.0)
        assert left == pytest.approx(28.0)
    # 28 units are left at eight in the evening for 24 that are asked for, worth a second each.
    assert rates[4, 20 * 6 + 3] < 1.0
