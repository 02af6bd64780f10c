import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.errors import HistoryError
from cedos.host.profiler.sizes import CHUNKED, UNKNOWN, Prior, SizeHistory, resource_name
from cedos.model import Direction

DOWN, UP = Direction.DOWN, Direction.UP


def taught(sizes, host="a.example"):
    history = SizeHistory()
    for size in sizes:
        history.learn(host, 443, DOWN, size)
    return history


def test_delphis_defaults_where_nothing_is_known():
    history = SizeHistory()
    unknown = history.estimate("a.example", 443, DOWN, prior=UNKNOWN)
    assert (unknown.median_bytes, unknown.source) == (3_000, "default")
    assert unknown.low_bytes < 100
    assert unknown.high_bytes > 100_000
    chunked = history.estimate("a.example", 443, DOWN, prior=CHUNKED)
    assert (chunked.median_bytes, chunked.source) == (100_000, "default")
    assert len(history) == 0  # asking makes no entry


def test_one_sample_moves_the_median_and_leaves_the_interval_wide():
    for size in (10, 1_200_000_000):
        estimate = taught([size]).estimate("a.example", 443, DOWN)
        assert (estimate.median_bytes, estimate.source) == (size, "history")
        assert estimate.low_bytes <= size / 4
        assert estimate.high_bytes >= size * 4


def test_evidence_outweighs_the_past():
    history = taught([1_000] * 40)
    estimate = history.estimate("a.example", 443, DOWN, evidence=[70_000])
    assert (estimate.median_bytes, estimate.source) == (70_000, "history")
    assert estimate.low_bytes <= 1_000  # it may not be so
    assert (
        history.estimate_above("a.example", 443, DOWN, 500, evidence=[70_000]).median_bytes
        == 70_000
    )
    beyond = history.estimate_above("a.example", 443, DOWN, 80_000, evidence=[70_000])
    assert beyond.low_bytes > 80_000
    new = SizeHistory().estimate("b.example", 80, DOWN, evidence=[9])
    assert (new.median_bytes, new.source) == (9, "history")


def test_intervals_cover_nine_tenths_of_what_comes():
    # Hosts unlike each other (typical sizes over five orders of magnitude) and unlike the prior.
    draw = random.Random(7)
    covered = {2: [], 5: [], 10: [], 20: [], 40: []}
    for _ in range(500):
        centre, spread = draw.gauss(math.log(30_000), 2.5), abs(draw.gauss(0.8, 0.5)) + 0.05
        sizes = [round(math.exp(draw.gauss(centre, spread))) for _ in range(41)]
        for n, hits in covered.items():
            estimate = taught(sizes[:n]).estimate("a.example", 443, DOWN)
            hits.append(estimate.low_bytes <= sizes[n] <= estimate.high_bytes)
    shares = {n: sum(hits) / len(hits) for n, hits in covered.items()}
    assert all(0.85 <= share <= 0.99 for share in shares.values()), shares


@given(st.lists(st.integers(0, 10**12), max_size=60), st.integers(0, 10**15), st.floats(1, 1e9))
def test_estimates_are_ordered_and_lie_ahead(sizes, so_far, prior_bytes):
    history, prior = taught(sizes), Prior(prior_bytes)
    first = history.estimate("a.example", 443, DOWN, prior=prior)
    assert 0 <= first.low_bytes <= first.median_bytes <= first.high_bytes
    then = history.estimate_above("a.example", 443, DOWN, so_far, prior=prior)
    assert so_far < then.low_bytes <= then.median_bytes <= then.high_bytes


def test_memory_is_bounded_and_the_least_used_goes():
    history = SizeHistory(max_hosts=3)
    for host in "abc":
        for size in range(1000):
            history.learn(host, 443, DOWN, size)
    history.estimate("a", 443, DOWN)
    history.learn("d", 443, DOWN, 5)
    assert len(history) == 3
    assert [history.samples(host, 443, DOWN) for host in "abcd"] == [48, 0, 48, 1]


def test_the_state_comes_back_through_json():
    history = taught([1, 2, 3_000_000_000])
    history.learn("2001:db8::1", 22, UP, 9)
    history.learn_resource(resource_name("a.example", 80, b"/x"), 12_345)
    again = SizeHistory.from_state(json.loads(json.dumps(history.state())))
    assert again.state() == history.state()
    assert again.estimate("a.example", 443, DOWN) == history.estimate("a.example", 443, DOWN)
    assert len(SizeHistory.from_state(history.state(), max_hosts=1)) == 1


@pytest.mark.parametrize(
    "state",
    [
        None,
        [],
        {},
        {"version": 1, "hosts": []},
        {"version": 2},
        {"version": 2, "hosts": []},
        {"version": 2, "hosts": 5, "resources": []},
        {"version": 2, "hosts": [["a", 1]], "resources": []},
        {"version": 2, "hosts": [["a", "1", [], []]], "resources": []},
        {"version": 2, "hosts": [["a", 1, [2.5], []]], "resources": []},
        {"version": 2, "hosts": [["a", 1, [10**400], []]], "resources": []},
        {"version": 2, "hosts": [], "resources": [["a"]]},
        {"version": 2, "hosts": [], "resources": [[1, 2]]},
    ],
)
def test_a_broken_state_is_refused(state):
    with pytest.raises(HistoryError, match="not a history of sizes"):
        SizeHistory.from_state(state)


def test_an_estimate_holds_until_an_eighth_of_its_samples_is_new():
    history = SizeHistory()
    for _ in range(48):
        history.learn("a.example", 443, Direction.DOWN, 1_000)
    before = history.estimate("a.example", 443, Direction.DOWN)
    for _ in range(5):
        history.learn("a.example", 443, Direction.DOWN, 900_000)
    assert history.estimate("a.example", 443, Direction.DOWN) is before
    history.learn("a.example", 443, Direction.DOWN, 900_000)
    assert history.estimate("a.example", 443, Direction.DOWN).high_bytes > before.high_bytes


def test_resources_are_known_by_their_last_size():
    history = SizeHistory(max_hosts=3)
    names = [resource_name("a.example", 80, b"/%d" % number) for number in range(5)]
    assert len({*names, resource_name("a.example", 81, b"/0")}) == 6
    assert history.resource(names[0]) is history.resource(None) is None
    for size in (5, 6):
        for name in names:
            history.learn_resource(name, size)
    assert [history.resource(name) for name in names] == [None, None, 6, 6, 6]
