from datetime import date

import pytest

from cedos.daemon.plan import PlanMeter, period_of

TODAY = date(2026, 11, 21)


@pytest.mark.parametrize(
    ("day", "reset_day", "begin"),
    [
        (date(2026, 11, 21), 1, date(2026, 11, 1)),
        (date(2026, 11, 21), 21, date(2026, 11, 21)),
        (date(2026, 11, 21), 22, date(2026, 10, 22)),
        (date(2026, 1, 5), 31, date(2025, 12, 31)),
        (date(2026, 3, 1), 31, date(2026, 2, 28)),
        (date(2026, 2, 28), 31, date(2026, 2, 28)),
    ],
)
def test_a_period_begins_on_its_day_or_the_months_last(
    day: date, reset_day: int, begin: date
) -> None:
    assert period_of(day, reset_day) == begin


def meter() -> PlanMeter:
    return PlanMeter(1000, 1, "boot-1")


def test_what_was_carried_before_it_was_there_does_not_count() -> None:
    plan = meter()
    plan.observe("lte0", 5_000, TODAY)
    assert plan.used_share(TODAY) == 0.0
    plan.observe("lte0", 5_250, TODAY)
    assert plan.used_share(TODAY) == 0.25


def test_an_interface_that_was_plugged_in_again_counts_from_nothing() -> None:
    plan = meter()
    plan.observe("lte0", 900, TODAY)
    plan.observe("lte0", 1_000, TODAY)
    plan.observe("lte0", 50, TODAY)
    assert plan.used_bytes == 150


def test_a_new_period_begins_at_nothing_and_a_clock_set_back_does_not() -> None:
    plan = meter()
    plan.observe("lte0", 0, TODAY)
    plan.observe("lte0", 2_000, TODAY)
    assert plan.used_share(TODAY) == 2.0
    assert plan.used_share(date(2026, 12, 1)) == 0.0
    plan.observe("lte0", 2_100, date(2026, 12, 1))
    assert plan.used_share(TODAY) == pytest.approx(0.1)


def test_a_restart_of_the_daemon_loses_nothing() -> None:
    plan = meter()
    plan.observe("lte0", 0, TODAY)
    plan.observe("lte0", 300, TODAY)
    again = meter()
    again.resume(plan.state())
    again.observe("lte0", 450, TODAY)  # 150 went over it meanwhile
    assert again.used_bytes == 450


def test_a_restart_of_the_host_counts_from_nothing() -> None:
    plan = meter()
    plan.observe("lte0", 0, TODAY)
    plan.observe("lte0", 300, TODAY)
    again = PlanMeter(1000, 1, "boot-2")
    again.resume(plan.state())
    again.observe("lte0", 400, TODAY)
    assert again.used_bytes == 700


@pytest.mark.parametrize("state", [{}, {"period": 3, "used_bytes": 1, "boot": "", "counters": {}}])
def test_what_is_no_state_is_refused(state: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="not a data plan's state"):
        meter().resume(state)
