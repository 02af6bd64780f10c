"""Rules of probing: the fixed rate, Delphi's passive change, and the value of an answer."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.model import Evaluation, Indicator, Strategy, StrategyKind
from emu.data.probe_rules import FixedRate, Moment, PassiveChange, ProbeValue, expected_saving


def seen(**values):
    return {name: Indicator(value, 0.0) for name, value in values.items()}


def moment(now_s=0.0, **radio):
    return Moment(now_s, indicators={"wlan0": seen(**radio)})


def evaluation(network, cost):
    strategy = Strategy(StrategyKind.SINGLE, (network,))
    return Evaluation(strategy, cost, cost / 2, cost * 2, 0.0, 0.0, cost)


def choice(now_s, wifi, cellular, per_s=1.0):
    costs = {"lte0": cellular} | ({} if wifi is None else {"wlan0": wifi})
    return Moment(
        now_s,
        indicators={},
        evaluations=tuple(evaluation(name, cost) for name, cost in costs.items()),
        transfers_per_s=per_s,
    )


RULES = [FixedRate(2.0), PassiveChange(0.2), ProbeValue(0.01)]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_a_network_never_probed_is_probed_and_then_not_at_once_again(rule):
    at = choice(0.0, 0.1, 0.5)
    assert rule.weigh("wlan0", at)
    rule.probed("wlan0", at)
    assert not rule.weigh("wlan0", at)


def test_the_fixed_rate_knows_nothing_but_time():
    rule = FixedRate(2.0)
    rule.probed("wlan0", moment(10.0, rssi_dbm=-50))
    assert not rule.weigh("wlan0", moment(11.9, rssi_dbm=-90))
    assert rule.weigh("wlan0", moment(12.0, rssi_dbm=-50))


def test_delphis_sum_over_indicators_in_units_of_their_ranges():
    rule = PassiveChange(0.5)
    rule.probed("wlan0", moment(rssi_dbm=-60.0, chan_util=0.2))
    # 10 dB of 40, and 0.3 of 1
    assert rule.change("wlan0", moment(rssi_dbm=-70.0, chan_util=0.5)) == pytest.approx(0.55)
    assert rule.weigh("wlan0", moment(rssi_dbm=-70.0, chan_util=0.5))
    assert not rule.weigh("wlan0", moment(rssi_dbm=-70.0, chan_util=0.4))
    # a wider range that has been seen makes the same change smaller
    rule.change("wlan0", moment(rssi_dbm=-105.0))
    assert rule.change("wlan0", moment(rssi_dbm=-70.0, chan_util=0.2)) == pytest.approx(10 / 60)


def test_an_indicator_that_came_or_went_is_a_change():
    rule = PassiveChange(0.5)
    rule.probed("wlan0", moment(rssi_dbm=-60.0))
    assert rule.change("wlan0", moment()) == 1.0
    assert rule.change("wlan0", moment(rssi_dbm=-60.0, cqi=4)) == 1.0


def test_worth_grows_with_age_until_a_probe_pays():
    rule = ProbeValue(0.05)
    rule.probed("wlan0", choice(0.0, 0.2, 0.3))
    worths = [rule.worth("wlan0", choice(age, 0.2, 0.3)) for age in (0.0, 1.0, 5.0, 20.0, 60.0)]
    assert worths == sorted(worths)
    assert worths[0] == 0.0
    assert not rule.weigh("wlan0", choice(0.5, 0.2, 0.3))
    assert rule.weigh("wlan0", choice(60.0, 0.2, 0.3))
    assert worths[-1] > 0.05


def test_a_dead_network_is_tried_again_and_a_lone_one_never():
    rule = ProbeValue(0.05)
    rule.probed("wlan0", choice(0.0, None, 0.3))
    assert not rule.weigh("wlan0", choice(0.01, None, 0.3))
    assert rule.weigh("wlan0", choice(20.0, None, 0.3))
    assert rule.worth("lte0", choice(20.0, None, 0.3)) == 0.0


def test_nothing_to_send_means_no_probe():
    rule = ProbeValue(1e-9)
    rule.probed("wlan0", choice(0.0, 0.2, 0.3))
    idle = choice(60.0, 0.2, 0.3, per_s=0.0)
    assert not rule.weigh("wlan0", idle)


@given(st.floats(0, 10), st.floats(1e-3, 10))
def test_the_expected_saving_is_the_integral(gap, sigma):
    steps = [-8.0 + 16.0 * (k + 0.5) / 4000 for k in range(4000)]
    weights = [math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi) * 16.0 / 4000 for z in steps]
    whole = sum(w * max(0.0, z * sigma - gap) for z, w in zip(steps, weights, strict=True))
    assert expected_saving(gap, sigma) == pytest.approx(whole, rel=1e-3, abs=1e-6 * sigma)


def test_a_network_met_in_a_bad_second_is_expected_back_as_it_was():
    known, new = ProbeValue(0.05), ProbeValue(0.05)
    known.probed(
        "wlan0", choice(0.0, 0.1, 0.5)
    )  # so it was believed until this probe found otherwise
    for rule in (known, new):
        rule.probed("wlan0", choice(10.0, 5.0, 0.5))
    # A drift from 5 s to below 0.5 s is not to be expected; a return to 0.1 s is.
    assert not new.weigh("wlan0", choice(13.0, 5.0, 0.5))
    assert known.weigh("wlan0", choice(13.0, 5.0, 0.5))
    gone = known.worth("wlan0", choice(13.0, None, 0.5))
    assert gone > new.worth("wlan0", choice(13.0, None, 0.5))
