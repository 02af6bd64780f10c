"""Hard budgets: the networks that they bar."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.budget_kinds import Resource, Tariff
from cedos.model import Budget
from cedos.selector.budgets.hard import MOST_GONE, Account, Bars, Pace, Stage

DATA = Budget("data", Resource.DATA, 1000.0, "2026-12-01T00:00:00", hard=True)


MONEY = replace(DATA, name="money", resource=Resource.MONEY)


PRESENT = ("wlan0", "lte0", "usb0")


def account(spent, budget=DATA, *, over=False):
    return Account(budget, spent, 2e9, over)


def looked(bars, *accounts, present=PRESENT, metered=("lte0", "usb0")):
    bars.update(accounts, present, Tariff({"lte0": 1.0, "wlan0": 0.0}, metered))
    return sorted(bars.networks)


@pytest.mark.parametrize(
    ("spent", "stage"),
    [
        (0.0, Stage.EASY),
        (899.0, Stage.EASY),
        (900.0, Stage.NEARLY),
        # What Odyssey keeps back, 5 % of what is left and 1 % of all, is all there is.
        (989.0, Stage.NEARLY),
        (990.0, Stage.RESERVE),
        (999.9, Stage.RESERVE),
        (1000.0, Stage.SPENT),
        (5000.0, Stage.SPENT),
        (math.nan, Stage.EASY),
    ],
)
def test_stages(spent, stage):
    assert account(spent).stage is stage


def test_a_budget_of_all_metered_networks_bars_them_and_no_other():
    bars = Bars()
    assert looked(bars, account(999.0)) == []
    assert looked(bars, account(1000.0)) == ["lte0", "usb0"]
    assert bars.barred_by("data") == ("lte0", "usb0")
    assert bars.barred_by("money") == ()


def test_one_of_named_networks_bars_these_though_they_are_not_metered_or_not_there():
    named = replace(DATA, networks=("wlan0", "ppp0"))
    assert looked(Bars(), account(1000.0, named)) == ["ppp0", "wlan0"]


def test_raised_renewed_over_or_removed_it_is_lifted():
    for later in ([account(1000.0, replace(DATA, supply=2000.0))], [account(0.0)], []):
        bars = Bars()
        looked(bars, account(1000.0))
        assert looked(bars, *later) == []
    assert looked(Bars(), account(1000.0, over=True)) == []


def test_what_is_barred_twice_is_open_when_both_have_more():
    bars = Bars()
    both = account(1000.0), account(1000.0, MONEY)
    assert looked(bars, *both) == ["lte0", "usb0"]
    assert looked(bars, both[1]) == ["lte0"]
    assert looked(bars) == []


def test_one_that_is_unplugged_stays_barred_and_one_that_is_metered_no_more_does_not():
    bars = Bars()
    looked(bars, account(1000.0))
    assert looked(bars, account(1000.0), present=("wlan0",), metered=()) == ["lte0", "usb0"]
    assert looked(bars, account(1000.0), metered=("usb0",)) == ["usb0"]


def test_of_those_that_are_unplugged_the_last_ones_stay_barred():
    """Plug phones in, one after the other: each name stayed barred until the period ended."""
    bars = Bars()
    for number in range(300):
        name = f"usb{number}"
        looked(bars, account(1000.0), present=(name, "lte0"), metered=(name, "lte0"))
    looked(bars, account(1000.0), present=("lte0",), metered=("lte0",))
    assert {*bars.networks} == {"lte0", *(f"usb{n}" for n in range(300 - MOST_GONE, 300))}
    # One that was forgotten is barred when it comes.
    assert "usb7" in looked(bars, account(1000.0), present=("usb7",), metered=("usb7",))


@given(st.floats(1e-3, 1e12), st.floats(0.0, 1e12), st.floats(0.0, 1e12))
def test_the_more_is_spent_the_further_it_is(supply, one, other):
    budget = replace(DATA, supply=supply)
    less, more = sorted((one, other))
    assert account(less, budget).stage <= account(more, budget).stage
    assert account(account(0.0, budget).supply, budget).stage is Stage.SPENT


def test_what_is_coming_counts_and_what_is_barred_stays_so():
    assert replace(account(995.0), coming=5.0).stage is Stage.SPENT
    assert replace(account(995.0), coming=4.0).stage is Stage.RESERVE
    assert replace(account(1.0), coming=math.inf).stage is Stage.SPENT
    assert replace(account(5000.0, over=True), coming=math.inf).stage is Stage.EASY


def test_the_nearer_the_end_the_sooner_the_next_look():
    pace = Pace(usual_per_s=1e6)
    pace.observe(0.0, 10.0)
    # A quarter of the time that is left, between a twentieth of a second and one.
    for left, next_s in ((1e9, 1.0), (2e6, 0.5), (1.0, 0.05), (-5.0, 0.05)):
        assert pace.next_check_s(left, 10.0) == next_s
    assert pace.next_check_s(1.0, 12.0) == 0.2  # nothing moves
    pace.observe(8e6, 12.0)  # quicker than was thought
    assert pace.next_check_s(8e6, 12.0) == 0.5
    assert Pace(0.0).next_check_s(0.0, 0.0) == 1.0


def test_time_in_which_nothing_moved_makes_no_pace_slower():
    """A burst of 1 Gbit/s took a budget of 200 MB to 330 MB: it was thought to have lasted a minute."""
    pace = Pace(usual_per_s=1e6)
    for at_s in range(60):
        pace.observe(0.0, at_s)
    pace.observe(8e6, 60.0)
    assert pace.next_check_s(8e6, 60.0) == 0.25


def test_what_is_coming_follows_the_last_moments_and_is_never_much():
    pace = Pace(1e6)
    pace.observe(5e6, 10.0)
    assert pace.coming(1e9) == 0.0
    pace.observe(6e6, 11.0)
    assert pace.coming(1e9) == 2e5
    assert pace.coming(1e6) == 1e4  # 1 % of all, at most
    pace.observe(6e6, 11.5)
    assert pace.coming(1e9) == 2e5
    pace.observe(6e6, 12.1)
    assert pace.coming(1e9) == 0.0
    pace.observe(100.0, 13.0)  # a new period
    assert pace.coming(1e9) == 0.0
    pace.observe(200.0, 13.0)  # twice in one instant
    assert pace.coming(1e9) == 0.0
