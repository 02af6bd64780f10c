"""Dispersion: a network's indicators by the arrivals of a train."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.host.monitor.probing.udp_train import BINS, INDICATORS, indicators

BITS = 9824


def arrivals_at(rate_bps, packets, burst=1):
    """Arrivals on a link that delivers `burst` packets at once."""
    return [(n, (n // burst) * burst * BITS / rate_bps) for n in range(packets)]


@given(st.floats(1e4, 1e9), st.sampled_from([1, 2, 5, 10]), st.integers(3, 20), st.floats(0, 1e9))
def test_the_rate_is_exact_on_links_that_deliver_in_bursts(rate_bps, burst, bursts, began_s):
    found = indicators(
        arrivals_at(rate_bps, burst * bursts, burst),
        packets=burst * bursts,
        packet_bits=BITS,
        waited_until_s=began_s,
    )
    assert found["udp_loss"] == 0
    assert found["udp_bps"] == pytest.approx(rate_bps, rel=1e-6)
    # First to last would be too much by the first burst.
    assert set(found) == set(INDICATORS)


def test_packets_lost_in_the_middle_lower_the_rate_by_themselves():
    all_of_them = arrivals_at(1e6, 50)
    found = indicators(
        [each for each in all_of_them if each[0] % 5 != 2 or each[0] == 49],
        packets=50,
        packet_bits=BITS,
        waited_until_s=2.0,
    )
    assert found["udp_loss"] == pytest.approx(0.2)
    assert found["udp_bps"] == pytest.approx(0.8e6, rel=0.03)


def test_a_network_that_dies_meanwhile_is_not_called_fast():
    found = indicators(arrivals_at(50e6, 10), packets=50, packet_bits=BITS, waited_until_s=2.0)
    assert found["udp_loss"] == pytest.approx(0.8)
    assert found["udp_bps"] == pytest.approx(9 * BITS / 2.0)


@pytest.mark.parametrize("arrivals", [[], [(3, 1.0)], [(0, 1.0), (1, 1.0)]])
def test_too_little_is_a_loss_and_no_rate(arrivals):
    found = indicators(arrivals, packets=50, packet_bits=BITS, waited_until_s=2.0)
    assert found == {"udp_loss": pytest.approx(1 - len(arrivals) / 50)}


@given(st.data(), st.integers(2, 60))
def test_whatever_comes_the_figures_are_figures(data, packets):
    some = data.draw(st.lists(st.integers(0, packets - 1), unique=True))
    times = sorted(
        data.draw(
            st.lists(
                st.floats(0, 100, allow_subnormal=False), min_size=len(some), max_size=len(some)
            )
        )
    )
    found = indicators(
        list(zip(some, times, strict=True)),
        packets=packets,
        packet_bits=BITS,
        waited_until_s=data.draw(st.floats(0, 200)),
    )
    assert all(math.isfinite(value) and value >= 0 for value in found.values())
    assert 0 <= found["udp_loss"] <= 1
    if "udp_bps" in found:
        assert found["udp_min_bps"] <= found["udp_max_bps"]
        assert found["udp_gap_p50_s"] <= found["udp_gap_p90_s"]
        spread_s = times[-1] - times[0]
        mean_bps = (len(times) - 1) * BITS / spread_s
        assert found["udp_min_bps"] <= mean_bps * (1 + 1e-9)
        assert found["udp_max_bps"] >= mean_bps * (1 - 1e-9)
        assert found["udp_max_bps"] <= BINS * mean_bps * (1 + 1e-9)
