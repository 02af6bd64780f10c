"""Spare subflows, where they are worth the joules that they cost."""

from cedos.model import Network, NetworkKind
from cedos.selector.energy.power_model import DELPHI
from cedos.selector.energy.spares import not_worth_a_spare
from cedos.selector.objective import MaxS, MaxSPerE, WeightedCost

WIFI = Network("wlan0", "wlan0", 2, NetworkKind.WIFI, False)
LTE = Network("lte0", "lte0", 3, NetworkKind.CELLULAR, True)


def test_a_sleeping_radio_is_not_woken_where_joules_have_a_price() -> None:
    assert not_worth_a_spare([WIFI, LTE], WeightedCost(0.01), DELPHI, {}) == {"lte0"}
    assert not_worth_a_spare([WIFI, LTE], MaxSPerE(), DELPHI, {}) == {"lte0"}


def test_speed_at_any_price_keeps_spares_everywhere() -> None:
    assert not_worth_a_spare([WIFI, LTE], MaxS(), DELPHI, {}) == set()
    assert not_worth_a_spare([WIFI, LTE], WeightedCost(), DELPHI, {}) == set()


def test_a_radio_that_is_awake_anyway_takes_spares() -> None:
    assert not_worth_a_spare([LTE], WeightedCost(0.01), DELPHI, {"lte0": 0.2}) == set()
    assert not_worth_a_spare([LTE], WeightedCost(0.01), DELPHI, {"lte0": 5.0}) == {"lte0"}
