"""The posterior: outcomes of earlier predictions correct later ones."""

import json
from itertools import pairwise
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.base import Distribution
from predictors.posterior import Posterior

AROUND = Distribution((0.8, 0.9, 1.0, 1.1, 1.2))


WIFI_FIRST = {"wifi": AROUND, "cellular": AROUND.scaled(2.0)}


CELLULAR_FIRST = {"wifi": AROUND, "cellular": AROUND.scaled(0.5)}


def test_forecasts_that_were_wrong_when_they_favoured_this_are_doubted_only_then():
    """Wi-Fi takes three times what is said when it is said to be the best, and what is said else."""
    knows = Posterior()
    for _ in range(60):
        knows.learn(WIFI_FIRST, "wifi", 3.0)
        knows.learn(CELLULAR_FIRST, "wifi", 1.0)
    assert knows.seen == 120
    when_favoured = knows.of(WIFI_FIRST)["wifi"].mean
    else_s = knows.of(CELLULAR_FIRST)["wifi"].mean
    assert when_favoured > 1.5 * else_s
    assert else_s == pytest.approx(1.0, rel=0.2)
    assert knows.of(WIFI_FIRST)["cellular"] == WIFI_FIRST["cellular"]


def test_newer_ones_weigh_more_and_memory_is_bounded():
    knows = Posterior()
    for _ in range(200):
        knows.learn(WIFI_FIRST, "wifi", 8.0)
    slow_s = knows.of(WIFI_FIRST)["wifi"].mean
    for _ in range(400):
        knows.learn(WIFI_FIRST, "wifi", 1.0)
    assert knows.of(WIFI_FIRST)["wifi"].mean < 0.5 * slow_s
    assert len(knows._favoured["wifi"]) == 1  # what is long ago is forgotten


@given(
    st.lists(st.one_of(st.sampled_from([nan, inf, -1.0, 0.0]), st.floats(1e-9, 1e9)), max_size=20)
)
def test_whatever_is_measured_times_are_positive_and_ascend(measured):
    knows = Posterior()
    for actual in measured:
        knows.learn(WIFI_FIRST, "wifi", actual)
    for time in knows.of(WIFI_FIRST).values():
        assert all(0.0 < low <= high < inf for low, high in pairwise(time.samples))


@given(st.lists(st.tuples(st.booleans(), st.floats(1e-9, 1e9)), max_size=60))
def test_what_was_learned_is_kept_as_json(measured):
    knows = Posterior()
    for favoured, actual in measured:
        knows.learn(WIFI_FIRST if favoured else CELLULAR_FIRST, "wifi", actual)
    again = Posterior.from_state(json.loads(json.dumps(knows.state())))
    assert again.state() == knows.state()
    assert again.of(WIFI_FIRST) == knows.of(WIFI_FIRST)
    again.learn(WIFI_FIRST, "wifi", 2.0)
    knows.learn(WIFI_FIRST, "wifi", 2.0)
    assert again.of(CELLULAR_FIRST) == knows.of(CELLULAR_FIRST)


_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["wifi", "1", "-9999", "x"]), inner, max_size=3),
    ),
    max_leaves=8,
)


@given(st.one_of(_JSON, st.fixed_dictionaries({"seen": _JSON, "favoured": _JSON})))
def test_of_nonsense_nothing_is_learned(nonsense):
    try:
        found = Posterior.from_state(nonsense)
    except ValueError:
        return
    for time in found.of(WIFI_FIRST).values():
        assert all(0.0 < low <= high < inf for low, high in pairwise(time.samples))
