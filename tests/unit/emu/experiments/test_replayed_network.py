"""A network without its clock, against what can be counted by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.model import NetworkKind
from emu import ROOT
from emu.experiments.replayed_network import HEADER_BYTES, ReplayedNetwork, joined
from emu.places import places
from emu.places.traces import Trace
from emu.testbed.access import Access


def network(down, rtt_s=0.04, **more):
    return ReplayedNetwork(Access(NetworkKind.WIFI, up=down, down=down, rtt_s=rtt_s), **more)


def with_gaps(seconds, *gaps):
    """A packet per millisecond but in the gaps (first second, last second + 1)."""
    times = np.arange(1, seconds * 1000 + 1)
    for first, past in gaps:
        times = times[(times <= first * 1000) | (times > past * 1000)]
    return Trace(times, seconds * 1000)


STEADY = Trace.constant(12e6, 10.0)


def test_a_small_exchange_takes_a_round_trip_and_its_packets():
    found = network(STEADY).exchange(0.0, 1000, 4000)
    # Up at 1 ms, at the server at 21, three packets through the downlink from 41 on.
    assert found.served_at_s == pytest.approx(0.021)
    assert found.completed_at_s == pytest.approx(0.043)
    assert found.lost_at_s == math.inf
    assert found.bytes_until() == (1000 + 2 * HEADER_BYTES, 4000 + 3 * HEADER_BYTES)
    assert found.received_bytes() == 4000


def test_a_large_download_reaches_the_links_rate():
    size = 3_000_000
    found = network(STEADY).exchange(0.0, 100, size)
    packets = math.ceil(size / 1448)
    assert packets / 1000 < found.completed_at_s < packets / 1000 + 0.3


def test_a_short_outage_is_waited_for():
    net = network(with_gaps(20, (5, 7)))
    assert net.contacts() == ()
    found = net.exchange(5.5, 1000, 4000)
    assert found.completed_at_s == pytest.approx(7.043, abs=0.002)


def test_a_long_outage_loses_what_is_under_way():
    net = network(with_gaps(20, (5, 12)), detection_s=3.0)
    found = net.exchange(6.0, 1000, 4000)
    assert found.completed_at_s == math.inf
    assert found.lost_at_s == pytest.approx(8.0)
    assert found.served_at_s == math.inf
    assert found.bytes_until() == (0, 0)
    with pytest.raises(ValueError, match="not attached"):
        net.exchange(8.0, 1000, 4000)


def test_the_host_believes_late_and_regains_at_once():
    net = network(with_gaps(20, (5, 12)), detection_s=3.0)
    assert [net.up_at(t) for t in (4.9, 7.9, 8.1, 11.9, 12.0, 25.1, 28.1)] == [
        *(True, True, False, False, True),
        *(True, False),
    ]
    assert net.next_change_s(0.0) == pytest.approx(8.0)
    assert net.next_change_s(8.0) == pytest.approx(12.0)
    assert net.next_change_s(12.0) == pytest.approx(28.0)
    assert net.attached_since_s(4.0) == pytest.approx(-8.0)
    assert net.attached_since_s(26.0) == pytest.approx(12.0)
    assert net.attached_since_s(9.0) is None


@given(
    start_s=st.floats(0, 100),
    later_s=st.floats(0, 20),
    size=st.integers(1, 200_000),
    more=st.integers(0, 100_000),
)
def test_later_or_larger_never_ends_earlier(start_s, later_s, size, more):
    net = network(with_gaps(20, (5, 7)))
    first = net.exchange(start_s, 500, size)
    assert first.completed_at_s > start_s + net.rtt_s - 0.002
    assert net.exchange(start_s, 500, size + more).completed_at_s >= first.completed_at_s
    assert net.exchange(start_s + later_s, 500, size).completed_at_s >= first.completed_at_s
    assert first.received_bytes() == size
    passed = [at_s for at_s, _ in first.down if at_s > first.served_at_s]
    assert passed == sorted(passed)


HERE = ROOT / "traces"


def test_each_part_is_where_it_belongs():
    known = list(places.load(HERE).values())[:3]
    found = joined(known)
    assert set(found) == {"wifi", "cellular"}
    total_s = sum(place.common_s for place in known)
    for name, access in found.items():
        assert access.down.period_s == total_s
        begin_s = 0.0
        for place in known:
            own = place.networks[name].down
            for second in (1, place.common_s // 2, place.common_s - 2):
                assert access.down.rate_bps(
                    begin_s + second, begin_s + second + 1
                ) == pytest.approx(own.rate_bps(second, second + 1), abs=24_000)
            begin_s += place.common_s
