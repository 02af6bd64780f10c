"""The forecast of a budget's use at its end: nine of ten are within the range."""

import random
from dataclasses import replace
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cedos.budget_kinds import Resource
from cedos.model import Budget, Every
from cedos.selector.budgets.controller import PROHIBITIVE, Option
from cedos.selector.budgets.keeper import Forecast, Keeper, period_at, stamp
from cedos.selector.budgets.odyssey import Odyssey
from cedos.selector.budgets.pacer import Pacer
from cedos.selector.budgets.prices import FREE, prices

MONTHLY = Budget("data", Resource.DATA, 4e9, "2026-12-01T00:00:00", every=Every.MONTH)


BATTERY = Budget("b", Resource.ENERGY, 0.0, MONTHLY.until, every=Every.MONTH, battery=True)


DAY_S = 86_400.0


def at(text):
    return stamp(datetime.fromisoformat(text), UTC)


def named(period):
    begin, end = (datetime.fromtimestamp(each, UTC).date().isoformat() for each in period)
    return begin, end


@pytest.mark.parametrize(
    ("until", "every", "now", "expected"),
    [
        ("2026-12-01", "month", "2026-11-21", ("2026-11-01", "2026-12-01")),
        ("2026-12-01", "month", "2026-12-01", ("2026-12-01", "2027-01-01")),
        ("2026-12-01", "month", "2026-05-03", ("2026-05-01", "2026-06-01")),
        ("2027-01-31", "month", "2027-02-10", ("2027-01-31", "2027-02-28")),
        ("2027-01-31", "month", "2027-03-01", ("2027-02-28", "2027-03-31")),
        ("2026-11-22", "week", "2026-12-24", ("2026-12-20", "2026-12-27")),
        ("2026-11-22", "day", "1970-01-02", ("1970-01-02", "1970-01-03")),
        ("2028-02-29", "year", "2029-03-01", ("2029-02-28", "2030-02-28")),
    ],
)
def test_periods_go_by_the_calendar(until, every, now, expected):
    budget = Budget("data", Resource.DATA, 1.0, until, every=Every(every))
    assert named(period_at(budget, at(now), UTC)) == expected


@given(
    st.datetimes(datetime(1981, 1, 1), datetime(2100, 1, 1)),
    st.datetimes(datetime(1971, 1, 1), datetime(2100, 1, 1)),
    st.sampled_from(Every),
)
def test_every_instant_has_its_period(until, now, every):
    budget = Budget("data", Resource.DATA, 1.0, until.isoformat(), every=every)
    now_s = stamp(now, UTC)
    period = period_at(budget, now_s, UTC)
    assert period.begins_s <= now_s < period.ends_s
    assert period_at(budget, period.ends_s, UTC).begins_s == period.ends_s


def test_a_day_with_another_hour_begins_at_midnight_all_the_same():
    zone = ZoneInfo("Europe/Berlin")
    budget = Budget("data", Resource.DATA, 1.0, "2026-10-20T00:00:00", every=Every.DAY)
    period = period_at(budget, stamp(datetime(2026, 10, 25, 12), zone), zone)
    assert period.ends_s - period.begins_s == 25 * 3600


def made(budget, make, now_s, state=None):
    return Keeper(budget, period_at(budget, now_s, UTC), make, now_s, state)


def keeper(budget=MONTHLY, now="2026-11-21"):
    return made(budget, Pacer, at(now))


def rolled(kept, now_s):
    return kept.roll(period_at(kept.budget, now_s, UTC), now_s)


def replaced(kept, budget, now_s):
    kept.replace_budget(budget, period_at(budget, now_s, UTC), now_s)


def test_a_new_period_begins_with_the_whole_supply_and_what_was_learned():
    kept = keeper()
    kept.observe(at("2026-11-21"), 3.99e9)
    assert kept.quote(at("2026-11-21")).rate == PROHIBITIVE
    assert rolled(kept, at("2026-12-01T00:00:01"))
    assert not rolled(kept, at("2026-12-02"))
    kept.observe(at("2026-12-02"), 0.0)
    assert kept.quote(at("2026-12-02")).rate < PROHIBITIVE
    assert kept.standing(at("2026-12-02")).left == 4e9


def test_a_clock_that_jumps_ahead_and_back_finds_its_period_again():
    kept = keeper()
    kept.observe(at("2026-11-21"), 1e9)
    assert rolled(kept, at("2031-06-05"))
    kept.observe(at("2031-06-05"), 0.0)
    assert rolled(kept, at("2026-11-21T00:05:00"))
    kept.observe(at("2026-11-21T00:05:00"), 1.2e9)
    assert kept.standing(at("2026-11-21T00:06:00")).spent == 1.2e9


def test_a_change_in_the_middle_keeps_what_was_spent():
    kept = keeper()
    kept.observe(at("2026-11-21"), 1e9)
    replaced(
        kept, Budget("data", Resource.DATA, 2e9, MONTHLY.until, every=Every.MONTH), at("2026-11-22")
    )
    standing = kept.standing(at("2026-11-22"))
    assert (standing.spent, standing.left) == (1e9, 1e9)
    once = Budget("data", Resource.DATA, 2e9, "2026-12-24T00:00:00", "2026-11-22T00:00:00")
    replaced(kept, once, at("2026-11-22"))
    assert kept.period.ends_s == at("2026-12-24")


def test_what_a_budget_bought():
    kept = keeper()
    kept.observe(at("2026-11-21"), 0.0)
    options = [Option(10.0, 0.0), Option(2.0, 1e6)]
    kept.on_choice(at("2026-11-21"), options, options[1])
    kept.on_choice(at("2026-11-21"), options, options[0])
    kept.on_choice(at("2026-11-21"), [options[1]], options[1])  # there was no choice
    assert kept.standing(at("2026-11-21")).bought_s == 8.0


def test_the_forecast_goes_by_what_was_spent_lately():
    kept = keeper(now="2026-11-11")
    for hour in range(0, 240, 2):
        kept.observe(at("2026-11-11") + hour * 3600.0, hour * 1e6)
    standing = kept.standing(at("2026-11-21"))
    assert standing.forecast.likely == pytest.approx(238e6 + 240e6, rel=0.02)


def test_a_restart_finds_everything_again():
    kept = keeper()
    kept.observe(at("2026-11-21"), 1e9)
    options = [Option(10.0, 0.0), Option(2.0, 1e6)]
    kept.on_choice(at("2026-11-21"), options, options[1])
    again = made(MONTHLY, Pacer, at("2026-11-22"), kept.state())
    again.observe(at("2026-11-22"), 1e9)
    assert again.standing(at("2026-11-22")).bought_s == 8.0
    later = made(MONTHLY, Pacer, at("2026-12-22"), kept.state())
    assert later.standing(at("2026-12-22")).bought_s == 0.0


LEARNED = made(MONTHLY, Pacer, at("2026-11-22")).state()["learned"]


@pytest.mark.parametrize(
    "nonsense",
    [
        *({}, {"period": 3}, {"learned": {"x": 1}}, {"period": [1, 2], "bought_s": "x"}),
        *({"learned": 3}, {"learned": "text"}, {"learned": [[]]}),
        *({"learned": LEARNED | {"sums": each}} for each in ([], [0.0] * 3, [10**400, 0.0])),
    ],
)
def test_what_is_kept_may_be_nonsense(nonsense):
    kept = made(MONTHLY, Pacer, at("2026-11-22"), nonsense)
    kept.on_choice(at("2026-11-22"), [Option(1.0, 5.0), Option(0.0, 9.0)], Option(1.0, 5.0))
    kept.observe(at("2026-11-22"), float("nan"))
    assert kept.standing(at("2026-11-22")).spent == 0.0


_EVENTS = st.one_of(
    st.tuples(st.just("observe"), st.floats(-1e7, 1e7), st.floats(-1e10, 1e10)),
    st.tuples(st.just("offer"), st.floats(0.0, 1e5), st.floats(0.0, 1e4)),
    st.tuples(st.just("change"), st.floats(0.0, 1e7), st.floats(0.0, 1e10)),
    st.tuples(st.just("restart"), st.floats(-1e8, 1e8), st.just(0.0)),
)


@example(Pacer, [("offer", 0.0, 5e-324)])
@example(Pacer, [("observe", 0.0, -1.0), ("change", 0.0, 0.0)])
@example(Pacer, [("change", 0.0, 5e-324), ("offer", 0.0, 1.0)])
@example(Pacer, [("change", 0.0, 0.0), ("observe", 0.0, -1.0), ("observe", 1.0, 0.0)])
@example(Odyssey, [("change", 0.0, 0.0), ("observe", 1.0, -1.0)])
@given(st.sampled_from([Odyssey, Pacer]), st.lists(_EVENTS, max_size=25))
def test_whatever_happens_there_is_a_price_and_a_budget_that_is_spent_has_none(make, events):
    now_s = at("2026-11-21")
    kept = made(MONTHLY, make, now_s)
    for what, step_s, amount in events:
        now_s = max(now_s + step_s, 1.0)
        rolled(kept, now_s)
        match what:
            case "observe":
                kept.observe(now_s, amount)
            case "offer":
                options = [Option(amount, 0.0), Option(amount / 2, 1e6)]
                kept.on_choice(now_s, options, options[1])
            case "change":
                replaced(kept, replace(BATTERY, supply=min(max(amount, 0.0), 1e15)), now_s)
            case "restart":
                kept = made(kept.budget, make, now_s, kept.state())
        standing = kept.standing(now_s)
        assert kept.period.begins_s <= now_s < kept.period.ends_s
        assert 0.0 < standing.rate <= PROHIBITIVE
        assert standing.bought_s >= 0.0
        if what == "observe" and standing.left <= 0.0:
            assert standing.rate == PROHIBITIVE
        if standing.left > 0.0 and what == "observe":
            assert kept.quote(now_s).rate_for(standing.left, 1.0) == PROHIBITIVE


def test_prices_of_several_budgets_add_up():
    month = Odyssey(1e9, 0.0, 1e6).quote(0.0)
    battery = Odyssey(1e4, 0.0, 1e4).quote(0.0)
    known = prices(
        [
            (Resource.DATA, (), month),
            (Resource.DATA, ("usb0",), month),
            (Resource.ENERGY, (), battery),
        ],
        ("lte0", "usb0"),
    )
    assert known.data_rate("lte0") == month.rate
    assert known.data_rate("usb0") == 2 * month.rate
    assert known.data_rate("wlan0") == known.money_s(5.0, 1.0) == 0.0
    assert known.energy_s(10.0, 2.0) == pytest.approx(10.0 * battery.rate_for(10.0, 2.0))
    assert known.energy_s(0.0, 2.0) == 0.0
    assert FREE.data_s("lte0", 1e9, 1.0) == FREE.energy_s(1e9, 1.0) == 0.0


_MONTH_S = 30 * 86_400.0


_HOUR_S = 3600.0


@pytest.mark.parametrize("lumps_a_month", [60, 400])
@pytest.mark.parametrize("seen_share", [0.2, 0.5, 0.8])
def test_nine_of_ten_months_end_within_the_range(lumps_a_month, seen_share):
    dice = random.Random(f"{lumps_a_month} {seen_share}")
    inside, count = 0, 200
    for _ in range(count):
        used = [
            dice.expovariate(1e-6) if dice.random() < lumps_a_month / 720 else 0.0
            for _ in range(720)
        ]
        forecast, seen = Forecast(0.0, _MONTH_S), int(seen_share * 720)
        for hour in used[:seen]:
            forecast.add(hour, _HOUR_S)
        expected = forecast.at_end(sum(used[:seen]), (720 - seen) * _HOUR_S)
        inside += expected.low <= sum(used) <= expected.high
    assert 0.82 <= inside / count <= 0.98


def test_a_long_sleep_is_one_piece_of_news():
    forecast = Forecast(0.0, _MONTH_S)
    forecast.add(10.0, _MONTH_S / 2)
    expected = forecast.at_end(10.0, _MONTH_S / 2)
    assert expected.likely == pytest.approx(20.0)


MONTH_S = 30 * DAY_S


def begun(supply, ends_s=MONTH_S):
    """An hour old, with 4 MB spent."""
    pacer = Pacer(supply, 0.0, ends_s, now_s=1000.0)
    pacer.observe(1000.0, supply)
    pacer.observe(4600.0, supply - 4e6)
    return pacer


@pytest.mark.parametrize(("before", "after"), [(4e9, 1e9), (1e9, 4e9), (3e6, 1e9), (1e9, 3e6)])
def test_another_supply_costs_what_it_would_have_cost_from_the_beginning(before, after):
    pacer = begun(before)
    pacer.replace_supply(4600.0, after, MONTH_S)
    assert pacer.quote(4600.0).rate == begun(after).quote(4600.0).rate
