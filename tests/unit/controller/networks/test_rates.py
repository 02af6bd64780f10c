""""""

from dataclasses import replace
from ipaddress import ip_address, ip_interface

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.controller.networks.context import Losses
from cedos.controller.networks.observation import PassiveSample, PassiveWatch
from cedos.controller.networks.rates import RateEstimator, RateSample
from cedos.model import Direction, FlowKey, FlowSample, Indicator, Network, NetworkKind


def fed(megabits, *, saturated=True):
    """Return an estimator that has seen one stretch a second, from second 0 on."""
    rates = RateEstimator()
    for second, rate in enumerate(megabits):
        carried = int(rate * 125_000)
        rates.observe(RateSample(float(second), second + 1.0, carried, saturated))
    return rates


def values(rates):
    return {name: indicator.value for name, indicator in rates.indicators().items()}


def test_what_somebody_else_held_back_is_no_rate_and_leaves_the_last_one():
    rates = fed([8.0, 8.0])
    rates.observe(RateSample(2.0, 3.0, 10_000, saturated=False))
    rates.observe(RateSample(4.0, 5.0, 20_000, saturated=False))
    assert values(rates)["past1_bps"] == pytest.approx(8e6)
    ages = {name: i.measured_at_s for name, i in rates.indicators().items()}
    assert {ages[name] for name in ("past1_bps", "past5_bps", "past10_bps")} == {2.0}


def test_at_least_what_was_delivered_is_the_best_of_twenty_seconds():
    rates = fed([2.0, 9.0, 3.0, 1.0], saturated=False)
    rates.observe(RateSample(4.0, 21.9, 187_500, saturated=False))
    assert rates.indicators() == {"delivery_down_bps": Indicator(9e6, 2.0)}
    rates.observe(RateSample(21.9, 22.0, 12_500, saturated=False))
    assert rates.indicators() == {"delivery_down_bps": Indicator(3e6, 3.0)}


def test_a_counter_tells_the_least_and_nothing_after_it_began_anew():
    rates = RateEstimator(Direction.UP)
    rates.on_counter(10**9, 1.0)
    assert rates.indicators() == {}
    rates.on_counter(0, 2.0)
    assert rates.indicators() == {}
    rates.on_counter(1_000_000, 3.0)
    rates.on_counter(1_000_000, 4.0)
    assert rates.indicators() == {"delivery_up_bps": Indicator(8e6, 3.0)}
    rates.observe(RateSample(3.0, 4.0, 500_000, saturated=True))
    assert set(rates.indicators()) == {
        "past1_up_bps", "past5_up_bps", "past10_up_bps", "delivery_up_bps",
    }  # fmt: skip


def test_sleep_makes_all_older_and_joins_nothing_across_it():
    rates = fed([8.0])
    rates.on_counter(0, 1.0)
    rates.on_sleep(100.0)
    assert {i.measured_at_s for i in rates.indicators().values()} == {-99.0}
    rates.on_counter(10**9, 2.0)
    assert values(rates)["delivery_down_bps"] == pytest.approx(8e6)
    rates.observe(RateSample(2.0, 2.5, 125_000, saturated=True))
    assert set(values(rates).values()) == {2e6}


@given(
    st.lists(
        st.tuples(st.floats(-1, 7), st.floats(0, 3), st.integers(1, 10**7), st.booleans()),
        min_size=1,
        max_size=60,
    )
)
def test_no_rhythm_breaks_it_and_no_rate_is_beyond_the_fastest(steps):
    rates, at_s, fastest = RateEstimator(), 0.0, 0.0
    for pause_s, lasts_s, carried, saturated in steps:
        begin_s = at_s + pause_s
        at_s = max(begin_s + lasts_s, at_s)
        stretch = RateSample(begin_s, at_s, carried, saturated)
        rates.observe(stretch)
        if at_s > begin_s:
            fastest = max(fastest, stretch.rate_bps)
        for indicator in rates.indicators().values():
            assert 0.0 < indicator.value <= fastest * (1 + 1e-9)
            assert indicator.measured_at_s <= at_s


def test_a_trickle_without_a_queue_is_no_rate():
    rates = fed([8.0])
    rates.observe(RateSample(1.0, 2.0, 550_000, saturated=True, queue_empty=True))
    assert values(rates)["past1_bps"] == pytest.approx(4.4e6), "more than half"
    rates = fed([8.0])
    # What MPTCP has left for its second network: seen live, 6.8 Mbit/s after 19 over a Wi-Fi of 50.
    rates.observe(RateSample(1.0, 2.0, 354_000, saturated=True, queue_empty=True))
    rates.observe(RateSample(2.0, 3.0, 25_000, saturated=True, queue_empty=True))
    assert values(rates)["past1_bps"] == pytest.approx(8e6)
    assert values(rates)["delivery_down_bps"] == pytest.approx(8e6)
    # With a queue that is all that the network can do; and nobody remembers a rate for ever.
    rates.observe(RateSample(3.0, 4.0, 25_000, saturated=True))
    assert values(rates)["past1_bps"] == pytest.approx(0.2e6)
    late = fed([8.0])
    late.observe(RateSample(61.5, 62.5, 25_000, saturated=True, queue_empty=True))
    assert values(late)["past1_bps"] == pytest.approx(0.2e6)
    new = RateEstimator()
    new.observe(RateSample(0.0, 1.0, 25_000, saturated=True, queue_empty=True))
    assert values(new)["past1_bps"] == pytest.approx(0.2e6)


def test_the_end_of_an_upload_over_an_empty_path_is_no_rate():
    """Seen live: 7.7 Mbit/s within the second before, and 1.3 then, over an uplink of 37."""
    rates = RateEstimator(Direction.UP)
    rates.observe(RateSample(0.0, 0.2, 190_000, saturated=False))
    rates.observe(RateSample(0.2, 0.4, 32_000, saturated=True, queue_empty=True))
    assert "past1_up_bps" not in rates.indicators()
    # With a queue it is, but the network did carry more within that second.
    rates.observe(RateSample(0.4, 0.6, 32_000, saturated=True))
    assert rates.indicators()["past1_up_bps"].value == pytest.approx(4.44e6)


WIFI = Network("home", "wlan0", 1, NetworkKind.WIFI, False, (ip_interface("10.0.1.2/24"),))
KEY = FlowKey(ip_address("10.0.1.2"), 5000, ip_address("198.51.100.1"), 443)
FIRST = FlowSample(KEY, 1.0, 1, None, 0.030, 0.020, None, 100_000, 1_000, 0, 0.01, 0)


def test_an_rtt_counts_when_something_sent_was_acknowledged():
    watch = PassiveWatch()
    watch.observe([FIRST], [WIFI])
    assert watch.observe([replace(FIRST, rtt_s=0.04)], [WIFI])["home"].rtts_s == []
    sent = replace(FIRST, rtt_s=0.05, bytes_up=2_000)
    assert watch.observe([sent], [WIFI])["home"].rtts_s == [0.05]
    unknown = replace(sent, rtt_s=None, bytes_up=3_000)
    assert watch.observe([unknown], [WIFI])["home"].rtts_s == []


def test_a_host_that_only_downloads_has_round_trips():
    watch = PassiveWatch()
    first = replace(FIRST, receive_rtt_s=0.06)
    watch.observe([first], [WIFI])
    assert watch.observe([replace(first, at_s=2.0)], [WIFI])["home"] == PassiveSample()
    more = replace(first, at_s=4.0, bytes_down=600_000, receive_rtt_s=0.07)
    assert watch.observe([more], [WIFI])["home"].rtts_s == [0.07]
    trickle = replace(more, at_s=5.0, bytes_down=600_500, receive_rtt_s=0.5)
    assert watch.observe([trickle], [WIFI])["home"].rtts_s == []


def test_segments_sent_again():
    watch = PassiveWatch()
    first = replace(FIRST, segments=100, retransmits=2, unacknowledged=10)
    watch.observe([first], [WIFI])
    later = replace(first, at_s=3.0, segments=300, retransmits=12, bytes_up=251_000)
    glimpse = watch.observe([later], [WIFI])["home"]
    assert (glimpse.segments, glimpse.segments_again) == (200, 10)


def test_the_loss_rate_needs_segments_and_forgets():
    losses = Losses()
    losses.observe(10, 5, 1.0)
    assert losses.indicators() == {}
    losses.observe(30, 1, 2.0)
    assert losses.indicators() == {"loss": Indicator(0.15, 2.0)}
    losses.observe(0, 0, 3.0)
    assert losses.indicators() == {"loss": Indicator(0.15, 2.0)}
    losses.observe(100, 0, 12.0)
    assert losses.indicators() == {"loss": Indicator(0.0, 12.0)}
    losses.on_sleep(100.0)
    assert losses.indicators() == {"loss": Indicator(0.0, -88.0)}
