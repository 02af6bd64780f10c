from dataclasses import replace
from ipaddress import ip_address, ip_interface

import pytest

from cedos.controller.events import FlowClosed
from cedos.controller.networks import delivery
from cedos.controller.networks.delivery import DeliveryWatch
from cedos.model import Direction, FlowKey, FlowSample, Network, NetworkKind
from predictors.inputs import naive_time_s

WIFI = Network("home", "wlan0", 1, NetworkKind.WIFI, False, (ip_interface("10.0.1.2/24"),))
KEY = FlowKey(ip_address("10.0.1.2"), 5000, ip_address("198.51.100.1"), 443)
OTHER = replace(KEY, local_port=5001)
# 20 ms away, and receiving.
RECEIVING = FlowSample(KEY, 1.0, 1, None, 0.02, 0.02, None, 50_000, 1_000, 0, 0.0, 0)


class Watched:
    """Looks every 0.2 s from second 1 on."""

    def __init__(self, *opened):
        self.watch = DeliveryWatch()
        self.at_s = 0.8
        for key in opened:
            self.watch.on_open(key, 0.8)

    def sample(self, *flows):
        self.at_s += 0.2
        samples = [replace(flow, at_s=self.at_s) for flow in flows]
        return dict(self.watch.observe(samples, [WIFI], self.at_s).get("home", {}))

    def down(self, *flows):
        return self.sample(*flows).get(Direction.DOWN)

    def up(self, *flows):
        return self.sample(*flows).get(Direction.UP)


def end(flow, at_s, **more):
    """A flow's end at the instant of its last data, unless `more` says otherwise."""
    closed = FlowClosed(
        flow.key, 0.0, flow.bytes_down, flow.bytes_up, flow.rtt_s, flow.rtt_min_s, at_s=at_s,
        idle_down_s=0.0, idle_ack_s=0.0,
    )  # fmt: skip
    return replace(closed, **more)


def test_a_slow_network_is_known_from_few_bytes():
    watched = Watched(KEY)
    watched.down(RECEIVING)
    found = watched.down(replace(RECEIVING, bytes_down=55_000))
    assert found.saturated
    assert found.rate_bps == pytest.approx(0.2e6)
    assert watched.down(replace(RECEIVING, bytes_down=57_000)) is None, "too little to say anything"


def test_small_answers_on_a_connection_that_is_kept_are_no_rate_of_the_network():
    """Once the small answers of a browser over a gateway's session were taken for Wi-Fi's rate."""
    kept = replace(RECEIVING, bytes_down=500_000, receive_rtt_s=0.04)
    watched = Watched(KEY)
    watched.down(kept)
    # 150 bytes ask for 1.3 kB, four times in 0.2 s.
    asked = replace(kept, bytes_down=505_200, bytes_up=1_600)
    assert watched.down(asked) is None
    # Few bytes ask for what one segment answers.
    asked = replace(asked, bytes_down=510_400, bytes_up=1_700)
    assert watched.down(asked) is None
    # 600 bytes ask for 15 kB each.
    asked = replace(asked, bytes_down=540_400, bytes_up=2_900)
    found = watched.down(asked)
    assert not found.saturated


def test_acknowledgements_of_a_session_and_an_upload_beside_are_no_requests():
    slow = replace(RECEIVING, bytes_down=500_000, receive_rtt_s=0.3)
    watched = Watched(KEY)
    watched.down(slow)
    for down, up in ((510_000, 1_060), (520_000, 31_060)):
        found = watched.down(replace(slow, bytes_down=down, bytes_up=up))
        assert found.saturated, "its sender had 15 kB under way"


def test_what_fits_on_the_path_is_told_by_its_least_round_trip():
    # The others waited in a queue, which is no part of the path.
    queued = replace(RECEIVING, bytes_down=300_000, rtt_s=0.4)
    watched = Watched(KEY)
    watched.down(queued)
    found = watched.down(replace(queued, bytes_down=550_000))
    assert found.saturated


def test_of_a_short_transfer_counts_what_came_past_its_slow_start():
    """A Wi-Fi of 50 Mbit/s: the first three of five round trips of 14 ms carry a third of it."""
    took_s = naive_time_s(300_000, 0.014, 50e6)
    short = replace(RECEIVING, key=OTHER, bytes_down=300_000, rtt_min_s=0.014, rtt_s=0.03)
    watched = Watched()
    watched.sample()
    watched.watch.on_open(OTHER, 1.01)
    watched.watch.on_close(end(short, 1.01 + took_s))
    found = watched.down()
    assert not found.saturated
    assert found.rate_bps == pytest.approx(50e6, rel=0.01)
    assert found.end_s == pytest.approx(1.01 + took_s)
    # One that lives counts likewise, once: what follows is held against what came before.
    watched = Watched()
    watched.sample()
    watched.watch.on_open(OTHER, 1.2 - took_s)
    found = watched.down(short)
    assert found.rate_bps == pytest.approx(50e6, rel=0.01)
    found = watched.down(replace(short, bytes_down=400_000))
    assert found.rate_bps == pytest.approx(4e6)


def test_the_end_of_a_long_transfer_is_as_good_as_its_middle():
    watched = Watched(KEY)
    watched.down(replace(RECEIVING, bytes_down=500_000))
    watched.watch.on_close(end(replace(RECEIVING, bytes_down=700_000), 1.19, idle_down_s=0.01))
    found = watched.down()
    assert found.saturated
    assert found.end_s == pytest.approx(1.18)
    # What its last data waited for was its end.
    watched = Watched(KEY)
    watched.down(replace(RECEIVING, bytes_down=500_000))
    watched.watch.on_close(end(replace(RECEIVING, bytes_down=600_000), 1.195, idle_down_s=0.11))
    found = watched.down()
    assert found.saturated


def test_what_ends_while_the_sockets_are_sampled_is_counted_once():
    watched = Watched(KEY, OTHER)
    watched.down(RECEIVING)
    last, whole = (
        replace(RECEIVING, bytes_down=150_000),
        replace(RECEIVING, key=OTHER, bytes_down=30_000),
    )
    for each in (last, whole):
        watched.watch.on_close(end(replace(each, bytes_down=each.bytes_down + 10_000), 1.2))
    found = watched.down(last, whole)
    assert found.carried_bytes == 110_000 + 40_000
    assert watched.down() is None


def test_of_flows_that_are_older_or_not_counted_nothing_is_said():
    watched = Watched()
    assert watched.down(replace(RECEIVING, bytes_down=10**9)) is None
    watched.watch.on_close(end(replace(RECEIVING, key=OTHER), 1.1))
    assert watched.down() is None
    watched = Watched(KEY)
    watched.watch.on_close(replace(end(RECEIVING, 1.0), exact=False))
    assert watched.down() is None
    watched = Watched()
    datagrams = replace(KEY, protocol="udp")
    watched.watch.on_open(datagrams, 0.9)
    watched.watch.on_close(replace(end(RECEIVING, 1.0), key=datagrams))
    assert watched.down() is None


@pytest.mark.parametrize(
    ("receive_rtt_s", "received", "queue_empty"),
    [
        (0.021, 250_000, True),
        (0.2, 250_000, False),  # a queue, or a sender that waits
        (None, 250_000, False),
        (0.021, 5_000, False),  # maybe from before
    ],
)
def test_a_download_whose_round_trips_are_short_has_no_queue(receive_rtt_s, received, queue_empty):
    """Of MPTCP over two networks, the faster one waits for the other: its trickle is not its rate."""
    watched = Watched(KEY)
    watched.sample(RECEIVING)
    new = replace(RECEIVING, bytes_down=50_000 + received, receive_rtt_s=receive_rtt_s)
    found = watched.down(new)
    assert found.queue_empty is queue_empty


def test_ended_flows_leave_nothing_behind(monkeypatch):
    monkeypatch.setattr(delivery, "_MOST_CLOSED", 10)
    watched = Watched()
    for port in range(6000, 6050):
        key = replace(KEY, local_port=port)
        watched.watch.on_open(key, 0.9)
        watched.watch.on_close(end(replace(RECEIVING, key=key), 1.0))
    found = watched.down()
    assert found.carried_bytes == 10 * RECEIVING.bytes_down
    still = replace(RECEIVING, idle_down_s=1.0)
    watched.watch.on_open(KEY, 1.0)
    watched.down(still)
    watched.watch.forget(KEY)
    it = watched.watch
    state = (it._opened_at_s, it._stood_down, it._stood_up, it._closed)
    assert not any(state)


def test_a_program_that_reads_slowly_does_not_show_what_the_network_carries():
    watched = Watched(KEY)
    slow = replace(RECEIVING, bytes_down=500_000, unread=True)
    watched.down(slow)
    found = watched.down(replace(slow, bytes_down=560_000))
    assert not found.saturated
    found = watched.down(replace(slow, bytes_down=620_000, unread=False))
    assert not found.saturated, "it stood still before it was read"
    found = watched.down(replace(slow, bytes_down=680_000, unread=False))
    assert found.saturated
