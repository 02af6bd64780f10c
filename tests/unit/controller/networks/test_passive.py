from dataclasses import replace
from ipaddress import ip_address, ip_interface

from cedos.controller.events import FlowSample
from cedos.controller.networks.context import Losses
from cedos.controller.networks.observation import PassiveSample, PassiveWatch
from cedos.model import FlowKey, Indicator, Network, NetworkKind

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
    losses.slept(100.0)
    assert losses.indicators() == {"loss": Indicator(0.0, -88.0)}
