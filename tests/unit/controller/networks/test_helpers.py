"""The bytes of helpers, by looks at connections and their ends."""

from dataclasses import replace
from ipaddress import ip_address, ip_interface

from cedos.controller.events import FlowClosed
from cedos.controller.networks.observation import HelperBytes
from cedos.model import FlowKey, FlowSample, Network, NetworkKind

GATEWAY = ip_address("198.51.100.9")


def helper(number):
    own = ip_interface(f"169.254.1.{number}/32")
    return Network(
        f"helper-{number}", "wlan0", 2, NetworkKind.HELPER, True, (own,), leads_to=GATEWAY
    )


def key(number, port=4000):
    return FlowKey(ip_address(f"169.254.1.{number}"), port, GATEWAY, 443)


def sample(number, down, up, port=4000):
    return FlowSample(
        key(number, port), 10.0, 1, None, 0.02, 0.02, None, down, up, 0, 0.01, 0, idle_ack_s=0.1
    )


def counting(*there, at_the_start=False):
    counted = HelperBytes()
    if not at_the_start:
        counted.networks_changed([])
    counted.networks_changed([helper(each) for each in there])
    return counted


def test_each_helper_has_the_bytes_of_its_address():
    counted = counting(1, 2)
    assert counted.on_samples([sample(1, 1000, 10), sample(2, 300, 3)]) == {"helper-1", "helper-2"}
    assert counted.on_samples([sample(1, 1500, 10), sample(2, 300, 3)]) == {"helper-1"}
    assert (counted.of("helper-1"), counted.of("helper-2")) == ((1500, 10), (300, 3))


def test_what_begins_after_the_daemon_s_start_counts_whole():
    """Short connections by a helper of before the start, or a reload, were never charged."""
    counted = counting(1, at_the_start=True)
    counted.on_close(FlowClosed(key(1, 3999), 100.0, 7000, 70))  # older than the daemon
    assert counted.of("helper-1") == (0, 0)
    counted.on_open(key(1, 4001))
    counted.on_close(FlowClosed(key(1, 4001), 100.0, 50, 5))
    counted.on_open(key(1, 4002))
    counted.on_samples([sample(1, 1_000_000, 10_000), sample(1, 300, 3, port=4002)])
    assert counted.of("helper-1") == (350, 8)
    # After the first look also those whose opening was not told: the monitor may be too busy.
    counted.on_close(FlowClosed(key(1, 4003), 100.0, 20, 2))
    counted.on_samples([sample(1, 1_000_000, 10_000), sample(1, 400, 4, port=4004)])
    assert counted.of("helper-1") == (350 + 20 + 400, 8 + 2 + 4)


def test_of_helpers_before_the_daemon_only_what_they_carry_from_now_on_counts():
    counted = counting(1, at_the_start=True)
    counted.on_samples([sample(1, 1_000_000, 10_000)])
    assert counted.of("helper-1") == (0, 0)
    counted.on_samples([sample(1, 1_000_500, 10_000)])
    assert counted.of("helper-1") == (500, 0)


def test_only_connections_to_the_gateway_are_a_helpers():
    """A program may send from a helper's address to any host, datagrams without an answer, too."""
    counted = counting(1)
    aside = replace(key(1), remote=ip_address("192.168.1.1"))
    datagrams = replace(key(1), protocol="udp")
    for each in (aside, datagrams):
        counted.on_open(each)
        assert counted.on_samples([replace(sample(1, 1000, 10), key=each)]) == set()
        counted.on_close(FlowClosed(each, 100.0, 2000, 20))
    assert counted.of("helper-1") == (0, 0)
