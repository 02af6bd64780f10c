"""Helpers that join a transfer, by the price of their bytes and the time saved."""

from dataclasses import replace
from ipaddress import ip_address, ip_interface

import pytest

from cedos.budget_kinds import Resource
from cedos.model import Network, NetworkKind, PhoneUse, Strategy, StrategyKind
from cedos.selector.budgets.pacer import PacerQuote
from cedos.selector.budgets.prices import prices
from cedos.selector.decision.case import Case
from cedos.selector.decision.decide import decide
from cedos.selector.decision.helpers import with_helpers
from cedos.selector.objective import MaxS, MaxSPerE, WeightedCost
from predictors.base import Distribution

SINGLE, MPTCP = StrategyKind.SINGLE, StrategyKind.MPTCP
SIZE = 10_000_000
TO_SAVE_TIME = WeightedCost().for_phone(PhoneUse.TO_SAVE_TIME)


def helper(number, price=0.5, *, up=True):
    own = ip_interface(f"169.254.1.{number}/32")
    gateway = ip_address("198.51.100.9")
    return Network(
        f"helper-{number}", "wlan0", 1, NetworkKind.HELPER, True, (own,), up=up,
        leads_to=gateway, money_per_mb=price / 1000,
    )  # fmt: skip


class Rates:
    """Predictors that know the rate of each network by the round trip that it is given in ms."""

    strategies = ("wifi", "cellular", "mptcp_wifi", "mptcp_cellular")
    features = ("size_bytes", "wifi_rtt_s", "cellular_rtt_s")

    def predict(self, features, /):
        rates = {
            role: features[f"{role}_rtt_s"] * 1e6
            for role in ("wifi", "cellular")
            if features.get(f"{role}_rtt_s", 0) > 0
        }
        times = {role: features["size_bytes"] * 8 / rate for role, rate in rates.items()}
        return {name: Distribution((time_s,)) for name, time_s in times.items()}


def decided(
    host, *helpers, objective=TO_SAVE_TIME, own=("wlan0",), size=SIZE, deadline_s=None, **mbps
):
    """Decide on a download; `mbps`: the rate of each network, with _ for -."""
    known = {"wlan0": host.wlan, "lte0": host.lte}
    context = host.context(**{f"{name}_rtt_s": rate for name, rate in mbps.items()})
    renamed = {name.replace("helper", "helper-"): each for name, each in context.networks.items()}
    case = Case(
        replace(host.transfer(size), deadline_s=deadline_s),
        replace(context, networks=renamed),
        [known[name] for name in own],
        Rates(),
        objective,
        kinds=(SINGLE, MPTCP),
    )
    return with_helpers(case, decide(case), helpers)


def test_a_helper_joins_a_network_that_is_slower_than_its_price(host):
    # At 1 s a megabyte: a free network of less than 8 Mbit/s takes longer.
    found = decided(host, helper(1), wlan0=4, helper1=4)
    assert found.choice == Strategy(MPTCP, ("wlan0", "helper-1"))
    (both,) = [each for each in found.evaluations if each.strategy == found.choice]
    assert both.time_s == pytest.approx(10.0)  # 20 s over either
    assert both.metered_bytes == pytest.approx(SIZE / 2)
    assert "helper-1 for 0.5 a GB carries data beside wlan0: 10 s, not 20 s" in found.reason


def test_beside_a_metered_network_only_the_price_in_money_counts(host):
    found = decided(host, helper(1), own=("lte0",), lte0=20, helper1=4)
    assert found.choice == Strategy(MPTCP, ("lte0", "helper-1"))
    dear = decided(host, helper(1, price=50.0), own=("lte0",), lte0=20, helper1=4)
    assert dear.choice == Strategy(SINGLE, ("lte0",))


def test_the_cheapest_come_first_and_dear_ones_stay_out(host):
    helpers = [helper(1, price=9.0), helper(2, price=0.2), helper(3, price=0.4)]
    objective = WeightedCost()  # freely: money alone counts, at 60 s a unit
    found = decided(
        host, *helpers, objective=objective, wlan0=10, helper1=10, helper2=10, helper3=10
    )
    assert found.choice == Strategy(MPTCP, ("wlan0", "helper-2", "helper-3"))


def test_helpers_go_instead_of_a_network_whose_budget_is_dear(host):
    quoted = [(Resource.DATA, ("lte0",), PacerQuote(60e-6))]
    objective = replace(WeightedCost(), prices=prices(quoted, ("lte0",)))
    found = decided(host, helper(1), objective=objective, own=("lte0",), lte0=8, helper1=4)
    assert found.choice == Strategy(SINGLE, ("helper-1",))
    assert "instead of lte0" in found.reason


def test_a_budget_that_names_a_helper_prices_its_bytes(host):
    quoted = [(Resource.DATA, ("helper-1",), PacerQuote(60e-6))]
    objective = replace(WeightedCost(), prices=prices(quoted, ("lte0",)))
    found = decided(host, helper(1), helper(2), objective=objective, wlan0=4, helper1=4, helper2=4)
    assert found.choice == Strategy(MPTCP, ("wlan0", "helper-2"))


@pytest.mark.parametrize(
    ("objective", "joins"), [(MaxS(), True), (MaxSPerE(beta=0.0, gamma=2.0), False)]
)
def test_delphis_objectives_count_time_or_money(host, objective, joins):
    found = decided(host, helper(1), objective=objective, wlan0=20, helper1=4)
    assert ("helper-1" in found.choice.networks) is joins


def test_none_joins_where_a_deadline_is_met_without(host):
    assert len(decided(host, helper(1), deadline_s=60.0, wlan0=4, helper1=4).choice.networks) == 1
    assert len(decided(host, helper(1), deadline_s=12.0, wlan0=4, helper1=4).choice.networks) == 2


def test_who_leaves_is_not_chosen(host):
    before = decided(host, wlan0=4, helper1=4)
    assert decided(host, helper(1, up=False), wlan0=4, helper1=4) == before
    waiting = decided(host, helper(1, up=False), own=())
    assert waiting.choice.kind is StrategyKind.DEFER
