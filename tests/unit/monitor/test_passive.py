from dataclasses import replace
from ipaddress import ip_address, ip_interface

from cedos.model import FlowKey, Network, NetworkKind
from cedos.monitor.events import FlowSample
from cedos.monitor.passive import FlowWatch, Glimpse

WIFI = Network("home", "wlan0", 1, NetworkKind.WIFI, False, (ip_interface("10.0.1.2/24"),))
KEY = FlowKey(ip_address("10.0.1.2"), 5000, ip_address("198.51.100.1"), 443)
FIRST = FlowSample(KEY, 1.0, 1, None, 0.030, 0.020, None, 100_000, 1_000, 0, 0.01, 0)


def test_a_flow_that_keeps_receiving_saturates_its_network() -> None:
    watch = FlowWatch()
    assert watch.observe([FIRST], [WIFI]) == {"home": Glimpse((), busy=False)}
    more = replace(FIRST, at_s=2.0, bytes_down=200_000)
    assert watch.observe([more], [WIFI]) == {"home": Glimpse((), busy=True)}
    paused = replace(more, at_s=3.0, bytes_down=300_000, idle_down_s=0.5)
    assert watch.observe([paused], [WIFI]) == {"home": Glimpse((), busy=False)}
    trickle = replace(paused, at_s=4.0, bytes_down=300_500, idle_down_s=0.0)
    assert watch.observe([trickle], [WIFI]) == {"home": Glimpse((), busy=False)}


def test_an_rtt_counts_when_something_sent_was_acknowledged() -> None:
    watch = FlowWatch()
    watch.observe([FIRST], [WIFI])
    assert watch.observe([replace(FIRST, rtt_s=0.04)], [WIFI])["home"].rtts_s == ()
    sent = replace(FIRST, rtt_s=0.05, bytes_up=2_000)
    assert watch.observe([sent], [WIFI])["home"].rtts_s == (0.05,)
    unknown = replace(sent, rtt_s=None, bytes_up=3_000)
    assert watch.observe([unknown], [WIFI])["home"].rtts_s == ()


def test_flows_of_no_network_are_left_out() -> None:
    watch = FlowWatch()
    other = replace(FIRST, key=replace(KEY, local=ip_address("172.17.0.2")))
    assert watch.observe([other], [WIFI]) == {}
