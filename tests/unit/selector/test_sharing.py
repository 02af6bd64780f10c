"""The choice of helpers (the paper's, its baselines, that of least cost), encounters and the map."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cedos.selector.sharing import (
    NOWHERE,
    TYPICAL_BPS,
    BandwidthMap,
    HelperOffer,
    LeastCost,
    NetworkType,
    Relative,
    by_price,
    encounter_s,
    high_bandwidth_first,
    long_encounter_first,
)

METRES = st.floats(-200, 200)
SPEEDS = st.floats(-30, 30)


@given(METRES, METRES, SPEEDS, SPEEDS, st.floats(1, 150))
def test_at_the_end_of_the_encounter_the_hosts_are_as_far_apart_as_the_range(
    dx, dy, rx, ry, range_m
):
    assume(math.hypot(rx, ry) > 0.01)
    found = encounter_s(Relative(dx, dy, rx, ry), range_m)
    if math.hypot(dx, dy) > range_m:
        assert found == 0.0
    else:
        assert found >= -1e-6
        apart_m = math.hypot(dx + rx * found, dy + ry * found)
        assert apart_m == pytest.approx(range_m, abs=1e-4 * range_m)


def test_a_helper_that_passes_by():
    # 30 m ahead, going away at 2 m/s: 20 m more until it is out of 50 m.
    assert encounter_s(Relative(30, 0, 2, 0), 50) == pytest.approx(10)
    # Coming nearer at 2 m/s: 30 m to here, and 50 m beyond.
    assert encounter_s(Relative(30, 0, -2, 0), 50) == pytest.approx(40)


def test_hosts_that_move_together_stay_in_range():
    assert encounter_s(Relative(10, 10, 0, 0), 50) == math.inf
    assert encounter_s(Relative(60, 0, 0, 0), 50) == 0.0


M = 1e6


def offer(name, price=0, rate=M, encounter=math.inf, **more):
    return HelperOffer(name.encode(), price, rate, encounter_s=encounter, **more)


def names(choice):
    return "".join(each.helper.decode() for each in choice.helpers)


ALL = [by_price, high_bandwidth_first, long_encounter_first]


def test_the_lower_price_comes_first():
    offers = [offer("a", 300, 9 * M), offer("b", 100, M), offer("c", 200, M)]
    assert names(by_price(offers, 1.5 * M)) == "bc"


def test_of_equal_prices_the_most_data_before_it_is_gone_comes_first():
    """A_i = S_i * min(beta_i, delta_i): 4 Mbit/s for 10 s carry less than 1 Mbit/s for 100 s."""
    offers = [
        offer("a", 100, 4 * M, 10.0),
        offer("b", 100, M, 100.0),
        offer("c", 100, 9 * M, 100.0, battery_s=2.0),
    ]
    assert names(by_price(offers, 20 * M)) == "bac"


def test_the_baselines_of_the_paper():
    offers = [offer("a", 1, 5 * M, 10.0), offer("b", 9, 2 * M, 99.0), offer("c", 5, 9 * M, 20.0)]
    assert names(high_bandwidth_first(offers, 10 * M)) == "ca"
    assert names(long_encounter_first(offers, 10 * M)) == "bc"


def test_without_history_the_type_of_network_tells():
    types = [NetworkType.GPRS, NetworkType.HSDPA, NetworkType.EDGE, NetworkType.UMTS]
    offers = [offer(kind.name[0], 1, None, network=kind) for kind in types]
    assert names(high_bandwidth_first(offers, math.inf)) == "HUEG"
    assert offers[1].rate_bps == TYPICAL_BPS[NetworkType.HSDPA]
    known = offer("k", 1, 5 * M, network=NetworkType.GPRS)
    assert known.rate_bps == 5 * M


OFFERS = st.lists(
    st.builds(
        HelperOffer,
        st.binary(min_size=4, max_size=4),
        st.integers(0, 5_000_000),
        st.floats(0, 100 * M) | st.none(),
        st.sampled_from(NetworkType),
        st.floats(0, 1e4) | st.just(math.inf),
        st.floats(0, 1e4) | st.just(math.inf),
    ),
    max_size=12,
    unique_by=lambda it: it.helper,
)


@given(OFFERS, st.floats(1e5, 200 * M), st.sampled_from(ALL))
def test_the_first_h_helpers_suffice_and_no_fewer(offers, wanted, strategy):
    taken = strategy(offers, wanted).helpers
    rates = [each.rate_bps for each in taken]
    assert sum(rates[:-1]) < wanted
    assert sum(rates) >= wanted or len(taken) == len(offers)


@given(OFFERS, st.floats(1e5, 200 * M))
def test_the_least_cost_is_never_above_that_of_the_paper(offers, wanted):
    ours = LeastCost()
    found = ours.cost(ours(offers, wanted).helpers, wanted)
    for helpers in ([it] for it in offers):
        assert found <= ours.cost(helpers, wanted)
    for strategy in (by_price, high_bandwidth_first):
        assert found <= ours.cost(strategy(offers, wanted).helpers, wanted)
    again = ours(list(reversed(offers)), wanted)
    assert again == ours(offers, wanted), "the order of the offers does not matter"


def test_a_helper_that_soon_leaves_counts_for_the_time_it_stays():
    offers = [offer("l", 500_000, 8 * M, 6.0), offer("s", 600_000, 8 * M)]
    assert names(by_price(offers, 8 * M)) == "l"
    assert names(LeastCost()(offers, 8 * M))[0] == "s"


def test_more_than_is_wanted_buys_nothing():
    offers = [offer("a", 500_000, 8 * M), offer("b", 500_000, 8 * M)]
    choice = LeastCost()(offers, 8 * M)
    assert len(choice.helpers) == 1
    assert choice.rate_bps == pytest.approx(8 * M)


NOON = 1_800_014_400.0  # 12:00 UTC
DAY = 86_400.0


def test_the_nearest_record_counts():
    known = BandwidthMap(b"secret")
    here, there = known.place(46.948, 7.447), known.place(47.377, 8.540)
    assert known.rate_bps(b"bob", here, NOON) is None
    known.on_carried(b"bob", there, 9e6, NOON)
    assert known.rate_bps(b"bob", here, NOON) == 9e6, "better than nothing"
    known.on_carried(b"bob", here, 2e6, NOON + 8 * 3600)
    known.on_carried(b"bob", there, 9e6, NOON + 9 * 3600)
    assert known.rate_bps(b"bob", here, NOON) == 2e6, "another time of the day, but here"
    known.on_carried(b"bob", here, 5e6, NOON)
    assert known.rate_bps(b"bob", here, NOON + DAY) == 5e6
    assert known.rate_bps(b"cyd", here, NOON) is None


def test_a_rate_follows_what_is_measured():
    known = BandwidthMap(b"secret")
    for rate in (1e6, 3e6):
        known.on_carried(b"bob", NOWHERE, rate, NOON)
    assert known.rate_bps(b"bob", NOWHERE, NOON) == 2e6
    for _ in range(30):
        known.on_carried(b"bob", NOWHERE, 8e6, NOON)
    assert 7.9e6 < (known.rate_bps(b"bob", NOWHERE, NOON) or 0) < 8e6


def test_places_are_cells_of_some_200_m_and_hashed_with_the_secret():
    known = BandwidthMap(b"secret")
    here = known.place(46.9481, 7.4471)
    assert known.place(46.9482, 7.4472) == here, "15 m on"
    assert known.place(46.9521, 7.4471) != here, "440 m on"
    assert BandwidthMap(b"another").place(46.9481, 7.4471) != here


def test_it_is_bounded_and_one_helper_cannot_push_out_the_others():
    known = BandwidthMap(b"secret", helpers=4, cells=8)
    known.on_carried(b"bob", NOWHERE, 1e6, NOON)
    for number in range(100):
        known.on_carried(b"cyd", bytes([number]), 1e6, NOON)
    assert known.rate_bps(b"bob", NOWHERE, NOON) == 1e6
    assert len(known) == 9
    for number in range(100):
        known.on_carried(bytes([number]), NOWHERE, 1e6, NOON)
    assert len(known) == 4


def test_it_survives_in_a_file():
    known = BandwidthMap(b"secret")
    for number in range(5):
        known.on_carried(bytes([number]), NOWHERE, 1e6 * number, NOON)
    again = BandwidthMap(b"secret")
    for record in known.records():
        again.restore(record)
    assert list(again.records()) == list(known.records())
