"""A month in whose last week much more is used without a choice than in those before."""

import random
from dataclasses import dataclass
from math import exp, inf, isfinite

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cedos.selector.budgets import pacer as budget_pacer
from cedos.selector.budgets.controller import (
    DURATION_S,
    PROHIBITIVE,
    Option,
    SteppedQuote,
    plannable,
    steps,
)
from cedos.selector.budgets.demand import Demand, DemandIncrement, curve, increments
from cedos.selector.budgets.habits import DAY_S, Hours
from cedos.selector.budgets.odyssey import Odyssey
from cedos.selector.budgets.pacer import Pacer

BOTH = pytest.mark.parametrize("make", [Odyssey, Pacer])


def test_odyssey_second_by_second():
    """The first seconds by hand: an arithmetic mean, then demand over what may be planned with."""
    controller, rate, spending, left = Odyssey(1000.0, 0.0, 1000.0), 1.0, 1.0, 1000.0
    for second in range(1, 20):
        left -= 3.0
        controller.observe(float(second), left)
        spending = (spending * second + 3.0) / (second + 1)
        rate *= spending * (1000.0 - second) / (left * 0.95 - 10.0)
        assert controller.quote(float(second)).rate == pytest.approx(rate)


def test_odyssey_smooths_once_it_knows_a_hundred_seconds():
    controller = Odyssey(1000.0, 0.0, 1000.0)
    for second in range(1, 100):
        controller.observe(float(second), 1000.0 - second)  # the even rate: it stays 1
    assert controller.quote(99.0).spending == pytest.approx(1.0)
    controller.observe(100.0, 891.0)  # ten at once
    alpha = 2.0 ** (-1.0 / (0.1 * 900.0))
    assert controller.quote(100.0).spending == pytest.approx(alpha + 10.0 * (1.0 - alpha))


def test_odyssey_counts_what_is_contemplated_as_spent():
    controller = Odyssey(1000.0, 0.0, 1000.0)
    controller.observe(1.0, 999.0)
    quote = controller.quote(1.0)
    spending = (quote.spending * 2 + quote.spending + 50.0 / 5.0) / 3
    expected = quote.rate * spending * 999.0 / plannable(949.0, 1000.0)
    assert quote.rate_for(50.0, 5.0) == pytest.approx(expected)


@BOTH
def test_prices_have_bounds(make):
    controller = make(1000.0, 0.0, 10_000.0)
    controller.observe(5000.0, 1000.0)
    assert controller.quote(5000.0).rate >= 0.01 / 1000.0
    controller.observe(6000.0, 5.0)
    assert controller.quote(6000.0).rate == PROHIBITIVE


@BOTH
def test_without_supply_or_past_the_goal_it_is_prohibitive(make):
    for supply in (0.0, -5.0):
        assert make(supply, 0.0, 100.0).quote(0.0).rate == PROHIBITIVE
        assert make(supply, 0.0, 100.0).quote(0.0).rate_for(1.0, 1.0) == PROHIBITIVE
    for ends_s in (0.0, -10.0):
        assert make(100.0, 0.0, ends_s).quote(0.0).rate == PROHIBITIVE
    controller = make(100.0, 0.0, 100.0)
    assert controller.quote(100.0).rate == PROHIBITIVE
    assert controller.quote(101.0).rate_for(1.0, 1.0) == PROHIBITIVE


@BOTH
def test_what_does_not_fit_is_prohibitive(make):
    quote = make(1000.0, 0.0, 100.0).quote(0.0)
    assert quote.rate_for(990.0, 10.0) == PROHIBITIVE
    assert quote.rate_for(900.0, 10.0) < PROHIBITIVE


@BOTH
def test_a_clock_that_jumps_teaches_nothing_and_breaks_nothing(make):
    controller = make(1000.0, 0.0, 1e6)
    for now_s in (10.0, 5.0, -1e9, 20.0, 1e12, 30.0, 30.0):
        controller.observe(now_s, 900.0)
        rate = controller.quote(now_s).rate
        assert isfinite(rate)
        assert rate > 0.0
    controller.observe(40.0, 900.0)
    assert controller.quote(40.0).rate < PROHIBITIVE


@BOTH
def test_a_budget_that_is_changed_keeps_what_was_spent(make):
    controller = make(1000.0, 0.0, 1e5)
    controller.observe(0.0, 100.0)
    controller.replace_supply(20.0, 800.0, 1e5)
    assert controller.quote(20.0).rate == PROHIBITIVE  # 900 of 800 are spent
    controller.replace_supply(30.0, 10_000.0, 2e5)
    assert controller.quote(30.0).rate < PROHIBITIVE
    controller.observe(40.0, 9100.0)
    assert controller.quote(40.0).rate_for(9000.0, 1.0) == PROHIBITIVE


def test_the_steps_of_a_choice_are_its_lower_hull():
    options = [Option(10.0, 0.0), Option(9.9, 50.0), Option(4.0, 100.0), Option(3.0, 200.0)]
    assert increments(reversed(options)) == [
        DemandIncrement(0.06, 100.0),
        DemandIncrement(0.01, 100.0),
    ]
    assert increments([Option(1.0, 0.0), Option(2.0, 5.0)]) == []
    assert increments([Option(inf, 0.0), Option(2.0, 5.0)]) == []
    assert increments([]) == []


def test_the_price_is_where_demand_meets_the_supply():
    demand = Demand(1e9)
    demand.add(
        [DemandIncrement(1.0, 10.0), DemandIncrement(0.1, 30.0), DemandIncrement(0.01, 100.0)]
    )
    demand.age(100.0)
    known = curve(demand, 200.0, {}, 1e-6)  # twice as much will be asked for
    assert known.price(1000.0) == 1e-6
    assert 0.1 < known.price(20.0) < 1.3
    assert 0.01 < known.price(79.0) <= 0.13
    assert 0.005 < known.price(100.0) < 0.1
    assert known.price(0.0) == PROHIBITIVE


def test_hours_of_a_day_tell_how_much_is_to_come():
    hours = Hours(1e9)
    assert hours.usual_s(0.0, 3600.0) == 3600.0
    hours.record(DAY_S, DAY_S)
    hours.add(20 * 3600.0, 100.0)
    assert hours.usual_s(0.0, 19 * 3600.0) == pytest.approx(0.25 * 19 * 3600.0)
    assert hours.usual_s(19.5 * 3600.0, 21 * 3600.0) > 10 * 3600.0
    assert hours.usual_s(7 * 3600.0, 7 * 3600.0 + 3 * DAY_S) == pytest.approx(3 * DAY_S)
    assert hours.usual_s(100.0, 50.0) == 0.0


def test_what_was_learned_helps_the_next_period_and_nonsense_is_refused():
    first = Pacer(1000.0, 0.0, 1e5)
    for second in range(0, 50_000, 100):
        first.observe(float(second), 1000.0)
        options = [Option(10.0, 0.0), Option(0.0, 10.0)]
        first.on_choice(float(second), options, options[0])
    second_period = Pacer(1000.0, 1e5, 2e5, learned=first.state())
    assert 0.5 < second_period.quote(1e5).rate < 2.0  # known at once: worth 1 s each
    # Who knows nothing spends a hundredth freely, and no more.
    ignorant = Pacer(1000.0, 1e5, 2e5).quote(1e5)
    assert ignorant.rate == ignorant.rate_for(9.0, 1.0) == 1e-5
    assert ignorant.rate_for(11.0, 1.0) == 100.0
    for nonsense in ({"demand": 3}, {"demand": {"a": 1}}, {"x": 1}):
        with pytest.raises(ValueError, match="nothing that a pacer has learned"):
            Pacer(1000.0, 1e5, 2e5, learned=nonsense)


def _spend(controller, supply, forced, dice):
    """A period of steps of 100 s, with choices that would take several supplies; spent and declined."""
    left, declined, at_s = supply, 0.0, 0.0
    for amount in forced:
        at_s += 100.0
        left -= amount
        controller.observe(at_s - 1.0, left)
        size = supply / 50.0 * exp(dice.gauss(-0.5, 1.0))
        saved_s = exp(dice.gauss(0.0, 2.0))
        options = [Option(saved_s, 0.0), Option(0.0, size)]
        cost_s = size * controller.quote(at_s - 1.0).rate_for(size, 1.0)
        chosen = options[cost_s < saved_s]
        controller.on_choice(at_s - 1.0, options, chosen)
        left -= chosen.amount
        declined += size - chosen.amount
    return supply - left, declined


@BOTH
@settings(max_examples=20)
@given(
    supply=st.floats(1e-3, 1e12),
    seed=st.integers(0, 10**6),
    share=st.floats(0.0, 0.5),
    shift=st.integers(0, 299),
    factor=st.floats(0.3, 1.5),
)
def test_a_budget_is_never_broken(make, supply, seed, share, shift, factor):
    """Whatever asks for more, and though what is used without a choice changes in the middle."""
    dice = random.Random(seed)
    usual = share * supply / 300.0
    forced = [usual * (factor if step >= shift else 1.0) for step in range(300)]
    spent, declined = _spend(make(supply, 0.0, 30_000.0), supply, forced, dice)
    if make is Pacer:
        assert spent <= supply
        assert spent >= 0.95 * supply or declined < 0.05 * supply
    else:
        # Odyssey's price swings from nothing to all measure, so that it may run dry too early.
        assert spent <= supply * 1.5


@pytest.mark.parametrize("idle_days", [0, 10, 30])
def test_long_idleness_sells_a_little_for_little_and_not_everything(idle_days):
    """900 MB went for 0.009 s once, after 30 days without use."""
    pacer = Pacer(900e6, 0.0, 31 * DAY_S)
    for hour in range(24 * idle_days + 1):
        pacer.observe(3600.0 * hour, 900e6)
    quote = pacer.quote(DAY_S * idle_days)
    assert 1e6 * quote.rate_for(1e6, 1.0) < 0.01
    for share in (0.2, 0.5, 0.9):
        amount = share * 900e6
        assert amount * quote.rate_for(amount, 1.0) > 3600.0


def test_what_may_not_fit_if_it_takes_more_than_its_guess_is_dear():
    """Of what is planned with, a half is sold at the price of the rest, seven tenths are not."""
    pacer = Pacer(1000.0, 0.0, 30 * DAY_S)
    for day in range(1, 20):
        pacer.observe(day * DAY_S, 1000.0)
        pacer.on_choice(day * DAY_S, [Option(10.0, 0.0), Option(1.0, 5.0)], Option(10.0, 0.0))
    quote = pacer.quote(19 * DAY_S)
    dear = 30 * DAY_S / 1000.0
    assert quote.rate_for(0.5 * quote.planned, 10.0) < dear
    assert quote.rate_for(0.7 * quote.planned, 10.0) == dear


_STEP_S = 1800.0


def _month(usual, on_trip, days=30, trip=7):
    """Return how much of 1000 units is spent; so many a day need no choice, and choices want 5000."""
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
        pacer.on_choice(at_s, options, chosen)
        spent += chosen.amount
    return spent


def test_a_trip_in_the_last_week_is_got_through(monkeypatch):
    assert _month(8.0, 8.0) > 950.0
    assert _month(8.0, 34.0) <= 1000.0
    # What made months break: all that the last days' habits leave over was counted on.
    monkeypatch.setattr(budget_pacer, "_SURE_LONG", 0.0)
    assert _month(8.0, 34.0) > 1000.0


@dataclass(frozen=True)
class Jumps:
    """Cheap up to an amount, dear beyond it, and not to be had beyond another."""

    cheap: float
    most: float
    rate: float = 1e-7

    def rate_for(self, amount, duration_s):
        if amount > self.most:
            return PROHIBITIVE
        return self.rate if amount <= self.cheap else 1000.0 * self.rate


@given(
    cheap=st.floats(1e-5, 1.0), most=st.floats(0.1, 1.2), amount=st.floats(1e-7, 1.1)
)  # fmt: skip
def test_jumps_are_known_to_a_hundredth(cheap, most, amount):
    quote = Jumps(1e9 * cheap, 1e9 * most)
    stepped = SteppedQuote(quote.rate, steps(quote, 1e9)).rate_for(1e9 * amount, 1.0)
    assert stepped >= quote.rate_for(1e9 * amount, DURATION_S) or amount > 1.0
    assert stepped <= quote.rate_for(1e9 * amount * 1.011, DURATION_S) or amount > 0.98


@pytest.mark.parametrize("make", [Pacer, Odyssey])
def test_controllers_prices_are_told_closely(make):
    controller = make(4e9, 0.0, 30 * 86_400.0)
    for number in range(2000):
        now_s, size = number * 600.0, 10.0 ** (4 + (number * 7 % 35) / 10)
        controller.observe(now_s, 4e9 - number * 0.8e6)
        options = [Option(0.01 * (number * 13 % 97), 0.0), Option(0.1, size)]
        controller.on_choice(now_s, options, options[1])
    quote, left = controller.quote(1.2e6), 2e9
    found = steps(quote, left)
    assert 2 < len(found) < 200
    stepped = SteppedQuote(quote.rate, found)
    for number in range(1, 900):
        amount = left * number / 1000
        exact = quote.rate_for(amount, DURATION_S)
        assert exact * 0.999 <= stepped.rate_for(amount, 1.0) <= 1.21 * quote.rate_for(
            amount * 1.011, DURATION_S
        )  # fmt: skip


def test_what_is_spent_has_no_steps():
    assert steps(Jumps(1.0, 0.0), 1e9) == []
    assert steps(Jumps(1.0, 1.0), 0.0) == []
    assert steps(Jumps(1.0, 1.0), float("nan")) == []
    assert SteppedQuote(PROHIBITIVE, []).rate_for(1.0, 1.0) == PROHIBITIVE


def first_hours(length_s, left_share, burst, *, chosen, units=4e9):
    """Return the share of the time and the price, times the supply, after a burst in a few minutes."""
    ends_s = 1000 * DAY_S
    begins_s = ends_s - left_share * length_s
    pacer = Pacer(units, ends_s - length_s, ends_s, now_s=begins_s)
    pacer.observe(begins_s, units)
    found, spent = [], 0.0
    minutes = [minute * length_s * left_share / 2000.0 for minute in range(1, 400)]
    for number, after_s in enumerate(minutes):
        if number < 10:
            spent += burst * units / 10.0
            if chosen:
                ways = [Option(4.0, 0.0), Option(1.0, burst * units / 10.0)]
                pacer.on_choice(begins_s + after_s, ways, ways[1])
        pacer.observe(begins_s + after_s, units - spent)
        quote = pacer.quote(begins_s + after_s)
        found.append(
            (after_s / (left_share * length_s), quote.rate_for(units / 1000.0, 10.0) * units)
        )
    return found


@pytest.mark.parametrize("chosen", [True, False])
@pytest.mark.parametrize(
    ("length_s", "left_share"),
    [
        (30 * DAY_S, 1.0), (30 * DAY_S, 2.5 / 30), (7 * DAY_S, 1.0), (DAY_S, 1.0), (DAY_S, 0.25),
        (365 * DAY_S, 1.0), (8 * 3600.0, 1.0), (3600.0, 0.5),
    ],
)  # fmt: skip
@pytest.mark.parametrize("units", [4e9, 20e3, 20.0])
def test_a_burst_at_the_beginning_does_not_make_the_rest_dear(length_s, left_share, chosen, units):
    """4 GB for a month, 80 MB in the first half hour: a megabyte cost 11 minutes for a day."""
    found = first_hours(length_s, left_share, 0.02, chosen=chosen, units=units)
    early = [price for share, price in found if share < 0.15]
    # A thousandth of the supply (4 MB of 4 GB) for two seconds, or a few minutes of a year.
    assert max(early) < 2e-3 * max(left_share * length_s, 1e6)


@pytest.mark.parametrize("length_s", [30 * DAY_S, DAY_S, 8 * 3600.0])
def test_what_runs_ahead_of_the_pace_pays_more_and_more(length_s):
    def price(burst):
        return first_hours(length_s, 1.0, burst, chosen=False)[12][1]

    rising = [price(each) for each in (0.03, 0.05, 0.08, 0.11)]
    assert rising == sorted(rising)
    assert price(0.2) >= 0.5 * length_s  # as dear as the whole supply for the whole time
