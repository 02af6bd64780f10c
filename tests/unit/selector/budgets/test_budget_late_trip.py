"""A month in whose last week much more is used without a choice than in those before."""

import pytest

from cedos.selector.budgets import pacer as budget_pacer
from cedos.selector.budgets.controller import Option
from cedos.selector.budgets.hours import DAY_S
from cedos.selector.budgets.pacer import Pacer
from cedos.selector.budgets.unchosen import Unchosen

_STEP_S = 1800.0


def _month(usual: float, on_trip: float, days: int = 30, trip: int = 7) -> float:
    """What is spent of 1000 units, with so many used a day without a choice; choices would take 5000."""
    supply, spent = 1000.0, 0.0
    pacer = Pacer(supply, 0.0, days * DAY_S)
    steps = int(days * DAY_S / _STEP_S)
    for step in range(steps):
        at_s = step * _STEP_S
        away = at_s >= (days - trip) * DAY_S
        spent += (on_trip if away else usual) * _STEP_S / DAY_S
        pacer.observe(at_s, supply - spent)
        options = [Option(10.0 ** (step * 7 % 11 - 4), 0.0), Option(0.0, 5000.0 / steps)]
        rate = pacer.quote(at_s).rate_for(options[1].amount, 1.0)
        chosen = options[options[1].amount * rate < options[0].cost_s]
        pacer.offered(at_s, options, chosen)
        spent += chosen.amount
    return spent


def test_a_trip_in_the_last_week_is_got_through(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _month(8.0, 8.0) > 950.0
    assert _month(8.0, 34.0) <= 1000.0
    # What made months break: all that the last days' habits leave over was counted on.
    monkeypatch.setattr(budget_pacer, "_SURE_LONG", 0.0)
    assert _month(8.0, 34.0) > 1000.0


def test_what_was_seen_long_ago_is_remembered_over_periods() -> None:
    unchosen = Unchosen(5 * DAY_S, 30 * DAY_S)
    for day in range(1, 61):
        unchosen.passed(day * DAY_S, DAY_S, 10.0 if day <= 30 else 0.0)
    lately, _ = unchosen.to_come(60 * DAY_S, 70 * DAY_S, 0.0)
    assert lately < 1.0
    assert unchosen.ever(10 * DAY_S) == pytest.approx(50.0)
    again = Unchosen(5 * DAY_S, 30 * DAY_S, unchosen.state())
    assert again.ever(10 * DAY_S) == pytest.approx(50.0)
