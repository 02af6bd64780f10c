from dataclasses import replace
from ipaddress import ip_address, ip_interface

import pytest
from kit.controller import LTE, WLAN

from cedos.controller.events import FlowClosed, FlowOpened, SizeLearned
from cedos.controller.flows.finished_transfer import FinishedTransfer, finished_transfer
from cedos.controller.flows.living_flows import LivingFlows
from cedos.host.profiler.frame import CapturedPacket
from cedos.host.profiler.profiler import Profiler
from cedos.model import (
    CompetingTransfer,
    Context,
    Direction,
    FlowKey,
    FlowSample,
    Indicator,
    Network,
    NetworkKind,
    SizeEstimate,
)
from cedos.selector.decision.case import assign
from cedos.storage import model_files

ETHERNET = Network("eth0", "eth0", 4, NetworkKind.ETHERNET, False, (ip_interface("10.2.0.2/24"),))
BOTH = (WLAN, LTE)
OTHER = FlowKey(ip_address("10.0.0.2"), 4001, ip_address("198.51.100.1"), 80)
DONE = FinishedTransfer("wifi", assign(BOTH), "wlan0", Direction.DOWN, 100_000, 0.5)
KNOWN = Context(
    0.0,
    {
        name: {
            "rtt_s": Indicator(0.03, 0.0),
            "rtt_min_s": Indicator(0.03, 0.0),
            "past1_bps": Indicator(1e7, 0.0),
        }
        for name in ("wlan0", "lte0")
    },
)


@pytest.fixture(scope="module")
def model():
    return model_files.load()


def test_it_is_kept_what_predictors_were_shown_and_what_others_made_of_it(model):
    alone = DONE.predict(KNOWN, model)
    assert alone.lengthened == 1.0
    assert alone.columns["wifi_rtt_s"] == 0.03
    assert alone.columns["size_bytes"] == 100_000
    others = {"wlan0": {Direction.DOWN: (CompetingTransfer(OTHER, 1e6),)}}
    beside = DONE.predict(replace(KNOWN, competing=others), model)
    assert beside.columns == alone.columns
    assert beside.lengthened > 1.3
    usual_s, longer_s = alone.expected["wifi"][1], beside.expected["wifi"][1]
    assert longer_s / usual_s == pytest.approx(beside.lengthened)
    assert beside.expected["cellular"] == alone.expected["cellular"]


def test_predictors_are_not_shown_this_hosts_own_queue(model):
    full = {
        "rtt_s": Indicator(0.13, 0.0),
        "delivery_down_bps": Indicator(1e7, 0.0),
    }
    networks = {**KNOWN.networks, "wlan0": {**KNOWN.networks["wlan0"], **full}}
    queued = DONE.predict(replace(KNOWN, networks=networks), model)
    assert queued.columns["wifi_rtt_s"] == pytest.approx(0.03)
    assert queued.lengthened > 1.0


KEPT = FlowKey(ip_address("10.0.0.2"), 4000, ip_address("198.51.100.1"), 443)


class Kept:
    """A connection over TLS that is looked at now and then; `took_s` when it has ended."""

    def __init__(self, key=KEPT, *, tls=True, networks=BOTH):
        self.key, self.networks = key, networks
        self.flows = LivingFlows()
        self.flows.networks_changed(networks)
        self.flow = self.flows.on_open(FlowOpened(key, 10.0, 110.0))
        guess = SizeEstimate(30_000, 30_000, 30_000, "default")
        self.flows.on_size(SizeLearned(key, Direction.DOWN, guess, tls=tls))

    def look(self, at_s, down, up, quiet_s, unacknowledged=0):
        sample = FlowSample(
            self.key, at_s, 1, None, 0.02, 0.02, None, down, up, 0, quiet_s, unacknowledged, quiet_s
        )
        self.flows.on_samples([sample], at_s)

    def took_s(self, at_s, down, up, quiet_s):
        finished = self.finished(at_s, down, up, quiet_s)
        return finished.time_s if finished is not None else None

    def finished(self, at_s, down, up, quiet_s):
        closed = FlowClosed(
            self.key, at_s + 100.0, down, up, 0.02, 0.02,
            at_s=at_s, idle_down_s=quiet_s, idle_ack_s=quiet_s,
        )  # fmt: skip
        record = self.flows.on_close(closed)
        assert record is not None
        return finished_transfer(self.flow, record, closed, self.networks)


def test_a_kept_connection_that_asks_again_is_more_than_one_transfer():
    """30 kB in a minute: so slow was a Wi-Fi believed to be, for seconds, each time that one ended."""
    kept = Kept()
    kept.look(10.2, 20_000, 800, 0.05)
    kept.look(30.0, 20_000, 800, 19.8)
    kept.look(69.0, 20_000, 800, 58.8)
    kept.look(70.1, 20_000, 1_200, 0.05, 400)
    assert kept.took_s(75.0, 30_000, 1_200, 4.7) is None
    # The same between two looks.
    kept = Kept()
    kept.look(12.0, 20_000, 800, 1.8)
    assert kept.took_s(12.9, 30_000, 1_200, 0.1) is None
    # Or one that was made long before it was needed.
    kept = Kept()
    kept.look(15.0, 4_000, 500, 4.9)
    assert kept.took_s(15.4, 30_000, 1_200, 0.1) is None
    # Or is told something now and then, and says next to nothing.
    kept = Kept()
    kept.look(55.0, 20_000, 800, 44.8)
    assert kept.took_s(60.0, 20_100, 840, 3.0) is None


def test_a_handshake_of_tls_is_no_part_of_what_predictors_know():
    assert Kept().took_s(10.5, 30_000, 800, 0.4) == pytest.approx(0.08)
    assert Kept(tls=False).took_s(10.5, 30_000, 800, 0.4) == pytest.approx(0.1)


def test_of_a_plain_request_nothing_is_taken_off_for_tls():
    """Until something was read of it a flow may be anything; each took a round trip too little then."""
    key, profiler = replace(KEPT, remote_port=80), Profiler()
    request = b"GET /a HTTP/1.1\r\nHost: example.org\r\n\r\n"
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 29900\r\n\r\n"
    kept = Kept(key, tls=False)
    for event in [
        *profiler.on_open(key, 10.0),
        *profiler.observe(CapturedPacket(key, True, request, 1, 1), 10.02),
        *profiler.observe(CapturedPacket(key, False, answer, 1, 1 + len(request)), 10.04),
    ]:
        kept.flows.on_size(event)
    assert kept.took_s(10.5, 30_000, 800, 0.4) == pytest.approx(0.1)


def test_what_came_from_a_host_before_the_router_is_not_judged():
    disk = replace(KEPT, remote=ip_address("10.0.0.9"))
    assert Kept(disk).took_s(10.5, 30_000, 800, 0.4) is None


@pytest.mark.parametrize("network", ["eth0", "wlan0", "lte0"])
def test_of_three_networks_each_is_judged(network, model):
    """Predictors know two: of Wi-Fi beside Ethernet and a phone nothing was learned."""
    all_three = (ETHERNET, WLAN, LTE)
    (local,) = (each.addresses[0].ip for each in all_three if each.name == network)
    finished = Kept(replace(KEPT, local=local), networks=all_three).finished(10.5, 30_000, 800, 0.4)
    assert (finished.network, finished.tells) == (network, True)
    prediction = finished.predict(KNOWN, model)
    assert (prediction.network, prediction.strategy) == (network, finished.strategy)


FIRST = FlowKey(ip_address("10.0.0.2"), 4000, ip_address("198.51.100.1"), 80)
SECOND = FlowKey(ip_address("10.1.0.2"), 4001, ip_address("198.51.100.1"), 80)
SIZE = 1_000_000


@pytest.mark.parametrize(
    ("spoiled", "strategy"),
    [
        ({}, "wifi"),
        ({"second": SIZE // 2}, "mptcp_wifi"),
        ({"second": SIZE}, None),
        ({"requests": 2}, None),
        ({"carried": SIZE // 2}, None),
        ({"exact": False}, None),
        ({"took_s": -1.0}, None),
        ({"unread": True}, None),
    ],
    ids=str,
)
def test_of_what_is_not_known_well_no_time_is_told(spoiled, strategy):
    """A download was moved in the middle, asked again, broken off, counted in part, or read slowly."""
    how = {
        "second": 0,
        "requests": 1,
        "carried": SIZE,
        "exact": True,
        "took_s": 3.0,
        "unread": False,
    }
    how |= spoiled
    flows = LivingFlows()
    flows.networks_changed(BOTH)
    flow = flows.on_open(FlowOpened(FIRST, 0.0, 100.0))
    size = SizeEstimate(SIZE, SIZE, SIZE, "content-length")
    for _ in range(how["requests"]):
        flows.on_size(SizeLearned(FIRST, Direction.DOWN, size))
    end_s, second = how["took_s"] + 3.0, how["second"]
    for look_s in (1.0, 1.2) if how["unread"] else ():
        sample = FlowSample(
            FIRST, look_s, 1, None, 0.03, 0.03, 1e6, 1000, 0, 0, 0.0, 0, unread=True
        )
        flows.on_samples([sample], look_s)
    if second:
        flows.on_open(FlowOpened(SECOND, 0.1, 100.1))
        for key in (FIRST, SECOND):
            flows.join(7, key, 0.1)
        flows.on_samples(
            [FlowSample(SECOND, 1.0, 1, 7, 0.03, 0.03, 1e6, second, 0, 0, 0.0, 0)], 1.0
        )
        flows.on_close(FlowClosed(SECOND, 100.0 + end_s, second, 0, at_s=end_s, exact=how["exact"]))
    closed = FlowClosed(
        FIRST, 100.0 + end_s, how["carried"] - second, 100, at_s=end_s, exact=how["exact"],
        idle_down_s=3.0, idle_ack_s=3.0,
    )  # fmt: skip
    finished = finished_transfer(flow, flows.on_close(closed), closed, BOTH)
    assert (finished and finished.strategy) == strategy
