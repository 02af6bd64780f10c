import math

import pytest

from cedos.controller.networks.context import ContextKeeper
from cedos.controller.networks.rates import RateSample
from cedos.model import Direction, Indicator


def value(keeper, name, now_s, network="wlan0"):
    return keeper.snapshot(now_s).networks[network][name].value


def test_a_round_trip_that_is_told_late_counts_at_its_instant_and_is_not_the_newest():
    keeper = ContextKeeper(rtt_window_s=2.0, rtt_min_window_s=10.0)
    for at_s, rtt_s in ((9.0, 0.030), (9.5, 0.040), (7.0, 0.020)):
        keeper.observe_rtt("wlan0", rtt_s, at_s)
    assert value(keeper, "rtt_s", 10.0) == 0.035
    assert value(keeper, "rtt_min_s", 10.0) == 0.020
    assert keeper.snapshot(10.0).networks["wlan0"]["rtt_s"].measured_at_s == 9.5


@pytest.mark.parametrize("nonsense", [0.0, -1.0, math.nan, math.inf])
def test_an_impossible_rtt_is_ignored(nonsense):
    keeper = ContextKeeper()
    keeper.observe_rtt("wlan0", nonsense, 1.0)
    assert keeper.snapshot(2.0).networks.get("wlan0", {}) == {}


def test_a_radio_without_a_connection_is_dead_until_it_has_one():
    keeper = ContextKeeper()
    keeper.observe_up("lte0", True, 0.0)
    for at_s, available in ((1.0, 0.0), (2.0, 1.0)):
        keeper.update("lte0", {"available": Indicator(available, at_s)})
        verdict = keeper.snapshot(at_s).verdicts["lte0"]
        assert verdict.condemned is (available == 0.0)
        assert value(keeper, "available", at_s, "lte0") == available


@pytest.mark.parametrize(
    ("rtts_s", "rate_bps"),
    [
        ({}, 0.2e6),
        ({9.0: 0.05}, 0.2e6),  # long before
        ({9.0: 0.05, 10.1: 0.055}, 8e6),
        ({9.0: 0.05, 9.7: 0.055}, 8e6),
        ({9.0: 0.05, 10.1: 0.075}, 8e6),  # half a segment takes 30 ms at 0.2 Mbit/s
        ({9.0: 0.05, 10.1: 0.085}, 0.2e6),
        ({9.0: 0.05, 9.7: 0.085, 10.1: 0.05}, 0.2e6),
    ],
)
def test_who_carries_little_while_round_trips_are_short_does_not_set_the_pace(rtts_s, rate_bps):
    keeper = ContextKeeper()
    quick, slow = (
        {Direction.DOWN: RateSample(begin_s, begin_s + 0.2, carried, saturated=True)}
        for begin_s, carried in ((8.0, 200_000), (10.0, 5_000))
    )
    keeper.observe_delivery("lte0", quick)
    for at_s, rtt_s in rtts_s.items():
        keeper.observe_rtt("lte0", rtt_s, at_s)
    keeper.observe_delivery("lte0", slow)
    assert value(keeper, "past1_bps", 10.3, "lte0") == pytest.approx(rate_bps)


def test_unsteady_round_trips_make_no_rate_of_a_network_of_few_slow_bytes():
    """Replayed: four packets in 0.16 s, sent again, over a Wi-Fi that had just carried 18 Mbit/s."""
    keeper = ContextKeeper()
    for at_s, rtt_s in ((9.0, 0.0305), (9.6, 0.033), (10.1, 0.0377)):
        keeper.observe_rtt("wlan0", rtt_s, at_s)
    quick = RateSample(8.0, 9.0, 2_250_000, saturated=True)
    keeper.observe_delivery("wlan0", {Direction.DOWN: quick})
    few = RateSample(10.0, 10.16, 5_792, saturated=True)
    keeper.observe_delivery("wlan0", {Direction.DOWN: few})
    assert value(keeper, "past1_bps", 10.2) == pytest.approx(18e6)
    # At 4 Mbit/s a segment takes 3 ms: who waits 7 ms more than ever waits in a queue.
    faded = RateSample(10.2, 10.4, 100_000, saturated=True)
    keeper.observe_delivery("wlan0", {Direction.DOWN: faded})
    assert value(keeper, "past1_bps", 10.5) == pytest.approx(4e6)


def test_a_provider_is_preferred_until_it_falls_silent():
    keeper = ContextKeeper(grace_s=2.5)
    keeper.update("wlan0", {"past1_bps": Indicator(50e6, 10.0)})
    keeper.observe_delivery(
        "wlan0", {Direction.DOWN: RateSample(10.0, 11.0, 1_000_000, saturated=True)}
    )
    assert value(keeper, "past1_bps", 11.0) == 50e6
    keeper.observe_delivery(
        "wlan0", {Direction.DOWN: RateSample(11.0, 13.0, 1_000_000, saturated=True)}
    )
    assert value(keeper, "past1_bps", 13.0) == pytest.approx(4e6)


def test_of_two_given_values_the_newer_counts_and_nonsense_does_not():
    keeper = ContextKeeper()
    keeper.update("wlan0", {"rssi_dbm": Indicator(-60.0, 2.0)})
    keeper.update("wlan0", {"rssi_dbm": Indicator(-70.0, 1.0)})
    keeper.update("wlan0", {"rssi_dbm": Indicator(math.nan, 3.0)})
    assert value(keeper, "rssi_dbm", 3.0) == -60.0
    keeper.update("wlan0", {"rssi_dbm": Indicator(-65.0, 2.0)})
    assert value(keeper, "rssi_dbm", 3.0) == -65.0


def test_networks_are_apart_and_a_lost_one_is_forgotten():
    keeper = ContextKeeper()
    keeper.observe_ping("wlan0", 0.01, 1.0)
    keeper.observe_ping("lte0", 0.05, 1.0)
    assert value(keeper, "rtt_s", 1.0, "lte0") == 0.05
    before = keeper.snapshot(1.0)
    keeper.forget("wlan0")
    assert set(keeper.snapshot(1.0).networks) == {"lte0"}
    assert set(before.networks) == {"wlan0", "lte0"}
    assert before.at_s == 1.0
