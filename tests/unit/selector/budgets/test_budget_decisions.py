"""Decisions with prices: the same choice turns when a budget gets scarce."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.model import Context, StrategyKind
from cedos.selector.budgets.controller import PROHIBITIVE
from cedos.selector.budgets.prices import Prices
from cedos.selector.decision.case import USUAL_KINDS, Case
from cedos.selector.decision.decide import decide
from cedos.selector.objective import Outcome, WeightedCost

NOTHING = Context(1000.0, {})
RECORD = {"number": 1, "made_unix_s": 0.0}


class Fixed:
    """A price that a test sets."""

    def __init__(self, rate, fits=float("inf")):
        self.rate = rate
        self.fits = fits

    def rate_for(self, amount, duration_s):
        return self.rate if amount <= self.fits else PROHIBITIVE


def choose(host, model, prices, size=10**6):
    objective = WeightedCost(name="budgets", prices=prices)
    return decide(Case(host.transfer(size), NOTHING, host.both, model, objective, **RECORD))


def data(rate, fits=float("inf")):
    return Prices(data={"lte0": (Fixed(rate, fits),)})


def test_a_megabyte_must_save_what_it_is_worth(host):
    model = host.oracle(wifi=3.0, cellular=1.0)
    assert str(choose(host, model, data(1.9e-6)).choice) == "single(lte0)"
    decision = choose(host, model, data(2.1e-6))
    assert str(decision.choice) == "single(wlan0)"
    assert decision.objective == "budgets"
    costs = {str(each.strategy): each.cost for each in decision.evaluations}
    assert costs == {"single(wlan0)": pytest.approx(3.0), "single(lte0)": pytest.approx(3.1)}


def test_what_does_not_fit_any_more_goes_elsewhere(host):
    model = host.oracle(wifi=300.0, cellular=1.0)
    assert str(choose(host, model, data(1e-9, fits=2e6)).choice) == "single(lte0)"
    assert str(choose(host, model, data(1e-9, fits=0.5e6)).choice) == "single(wlan0)"


def test_where_there_is_no_other_way_it_goes_all_the_same(host):
    """Nothing is blocked: of prohibitive ways the one with the fewest bytes is taken."""
    model = host.oracle(cellular=1.0)
    assert str(choose(host, model, data(PROHIBITIVE)).choice) == "single(lte0)"


def test_the_same_data_on_both_pays_in_full(host):
    objective = WeightedCost(prices=data(1e-6))
    decision = decide(Case(
        host.transfer(10**6), NOTHING, host.both, host.oracle(wifi=2.0, cellular=2.0),
        objective=objective, kinds=USUAL_KINDS | {StrategyKind.REDUNDANT}, **RECORD,
    ))  # fmt: skip
    cost = {each.strategy.kind: each.cost for each in decision.evaluations}
    assert cost[StrategyKind.REDUNDANT] == pytest.approx(3.0)


@given(
    st.floats(0.001, 1e4),
    st.floats(0.0, 1e3),
    st.floats(0.0, 1e10),
    st.floats(0.0, 1e-3),
    st.floats(0.0, 1.0),
)
def test_a_cost_never_falls_when_more_is_used(time_s, energy_j, data_s, rate, more):
    objective = WeightedCost(prices=Prices(energy=(Fixed(rate),), money=(Fixed(rate),)))
    less = Outcome(time_s, energy_j, 0.0, 1e6, 1.0, data_s)
    for dearer in (
        less._replace(energy_j=energy_j + more),
        less._replace(data_s=data_s + more),
        less._replace(money=1.0 + more),
    ):
        assert objective.cost(dearer) >= objective.cost(less)
