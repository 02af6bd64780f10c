"""A general model at places that are not like the others."""

import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from itertools import pairwise
from math import inf, nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.base import Distribution
from predictors.completion import CompletionModel
from predictors.online import MOST_PLACES, Adaptive, Posterior
from predictors.place import KNOTS, Place, Prior, knot
from predictors.training.examples import Examples, Settings
from predictors.training.train import fit


@pytest.fixture(scope="module")
def model(examples: Examples) -> CompletionModel:
    return fit(examples, Settings(trees=4))


def middle(adaptive: Adaptive, facts: Mapping[str, float], name: str, place: str = "cafe") -> float:
    return adaptive.predict(facts, place)[name].quantile(0.5)


def carried(
    adaptive: Adaptive,
    facts: Mapping[str, float],
    name: str,
    factor: float,
    count: int,
    place: str = "cafe",
    every_s: float = 60.0,
) -> None:
    """`count` transfers that take `factor` times what the general model says, give or take chance."""
    draw = np.random.default_rng(3)
    begun_s = 1000.0 * adaptive.transfers_at(place)
    for number in range(count):
        actual = factor * adaptive.model.points(facts)[name] * float(np.exp(draw.normal(0, 0.05)))
        adaptive.update(facts, name, actual, place, begun_s + number * every_s)


def test_a_new_place_starts_from_the_general_model(
    model: CompletionModel, usual: Mapping[str, float]
) -> None:
    adaptive = Adaptive(model)
    assert adaptive.predict(usual, "cafe") == model.predict(usual)
    carried(adaptive, usual, "wifi", 2.0, 30)
    assert adaptive.predict(usual, "library") == model.predict(usual)
    assert (adaptive.transfers_at("cafe"), adaptive.transfers_at("library")) == (30, 0)


def test_within_tens_of_transfers_it_becomes_its_own(
    model: CompletionModel, usual: Mapping[str, float]
) -> None:
    """Wi-Fi takes 1.6 times what it should: after 30 transfers three quarters of that are known."""
    adaptive = Adaptive(model)
    general = middle(adaptive, usual, "wifi")
    carried(adaptive, usual, "wifi", 1.6, 30)
    assert middle(adaptive, usual, "wifi") == pytest.approx(1.6 * general, rel=0.12)


def test_what_was_not_tried_learns_from_what_was(model: CompletionModel) -> None:
    prior = Prior.usual(model.strategies)
    place = Place(prior)
    for _ in range(20):
        place.learn(0, 3e5, 0.4, None, covered=True)
    shifts = dict(zip(model.strategies, place.shifts(3e5), strict=True))
    assert shifts["wifi"] > shifts["mptcp_wifi"] > shifts["cellular"] > 0.0
    # And sizes far away learn less.
    assert shifts["wifi"] > place.shifts(3e3)[0] > 0.0


def test_one_transfer_that_stood_still_does_not_make_a_place(
    model: CompletionModel, usual: Mapping[str, float]
) -> None:
    adaptive = Adaptive(model)
    carried(adaptive, usual, "wifi", 1.0, 20)
    before = middle(adaptive, usual, "wifi")
    carried(adaptive, usual, "wifi", 100.0, 1)
    assert middle(adaptive, usual, "wifi") < 1.15 * before


def test_a_place_that_changes_is_learned_anew(
    model: CompletionModel, usual: Mapping[str, float]
) -> None:
    adaptive = Adaptive(model)
    general = middle(adaptive, usual, "wifi")
    carried(adaptive, usual, "wifi", 1.0, 80)
    assert adaptive.state()["places"]["cafe"]["changes"] == 0
    carried(adaptive, usual, "wifi", 2.2, 25)
    assert adaptive.state()["places"]["cafe"]["changes"] >= 1
    assert middle(adaptive, usual, "wifi") > 1.6 * general


def test_what_happened_at_once_counts_little_more_than_once(
    model: CompletionModel, usual: Mapping[str, float]
) -> None:
    apart, together = Adaptive(model), Adaptive(model)
    carried(apart, usual, "wifi", 1.5, 8)
    carried(together, usual, "wifi", 1.5, 8, every_s=0.0)
    assert middle(apart, usual, "wifi") > 1.02 * middle(together, usual, "wifi")


def test_months_later_little_is_left_and_clocks_may_jump(
    model: CompletionModel, usual: Mapping[str, float]
) -> None:
    adaptive = Adaptive(model)
    general = middle(adaptive, usual, "wifi")
    carried(adaptive, usual, "wifi", 1.6, 30)
    learned = middle(adaptive, usual, "wifi")
    point = model.points(usual)["wifi"]
    adaptive.update(usual, "wifi", 1.6 * point, "cafe", -5e9)  # backwards: as if no time had passed
    assert middle(adaptive, usual, "wifi") == pytest.approx(learned, rel=0.05)
    adaptive.update(usual, "wifi", point, "cafe", 1e9)
    assert middle(adaptive, usual, "wifi") < general + 0.2 * (learned - general)


def test_intervals_grow_where_they_miss_and_shrink_where_they_do_not(
    model: CompletionModel, usual: Mapping[str, float]
) -> None:
    def width(adaptive: Adaptive) -> float:
        time = adaptive.predict(usual, "cafe")["wifi"]
        return time.quantile(0.95) / time.quantile(0.05)

    wild, calm = Adaptive(model), Adaptive(model)
    point = model.points(usual)["wifi"]
    for number in range(40):
        wild.update(usual, "wifi", point * (3.0 if number % 2 else 0.33), "cafe")
        calm.update(usual, "wifi", point, "cafe")
    general = model.predict(usual)["wifi"]
    assert width(wild) > 1.3 * general.quantile(0.95) / general.quantile(0.05) > 1.3 * width(calm)


def test_the_model_itself_stays_as_it_was(
    model: CompletionModel, usual: Mapping[str, float]
) -> None:
    before = deepcopy(model.predict(usual))
    carried(Adaptive(model), usual, "cellular", 3.0, 30)
    assert model.predict(usual) == before


def test_state_survives_json(model: CompletionModel, usual: Mapping[str, float]) -> None:
    adaptive = Adaptive(model)
    carried(adaptive, usual, "wifi", 1.5, 10)
    carried(adaptive, usual, "mptcp_wifi", 0.8, 5, place="office")
    again = Adaptive.from_state(model, json.loads(json.dumps(adaptive.state())))
    for place in ("cafe", "office", None):
        assert again.predict(usual, place) == adaptive.predict(usual, place)
    assert again.state() == adaptive.state()


def wrong_states(state: dict[str, Any]) -> dict[str, Any]:
    cafe = state["places"]["cafe"]
    return {
        "another model": state | {"model": "00000000"},
        "not an adaptive": {"places": {}},
        "not a place": state | {"places": {"cafe": {}}},
        "another shape": state | {"places": {"cafe": cafe | {"mean": [0.0]}}},
        "numbers that are none": state
        | {"places": {"cafe": cafe | {"mean": [float("nan")] * len(cafe["mean"])}}},
    }


def test_foreign_states_are_refused_with_a_reason(
    model: CompletionModel, usual: Mapping[str, float]
) -> None:
    adaptive = Adaptive(model)
    carried(adaptive, usual, "wifi", 1.5, 2)
    for reason, state in wrong_states(adaptive.state()).items():
        with pytest.raises(ValueError, match=reason):
            Adaptive.from_state(model, state)


def test_impossible_times_and_strategies_are_refused(
    model: CompletionModel, usual: Mapping[str, float]
) -> None:
    adaptive = Adaptive(model)
    for actual in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="positive"):
            adaptive.update(usual, "wifi", actual)
    with pytest.raises(KeyError):
        adaptive.update(usual, "pigeon", 1.0)
    assert adaptive.state()["places"] == {}


def test_the_place_used_longest_ago_goes_first(
    model: CompletionModel, usual: Mapping[str, float]
) -> None:
    adaptive = Adaptive(model)
    for number in range(MOST_PLACES + 3):
        adaptive.update(usual, "wifi", 1.0, f"p{number}")
    assert adaptive.transfers_at("p2") == 0
    assert adaptive.transfers_at("p3") == 1


def test_knots_hold_beyond_their_ends() -> None:
    assert knot(1.0) == (0, 0.0)
    assert knot(1e12) == (len(KNOTS) - 1, 0.0)
    below, share = knot(3e5)
    assert below == 1
    assert 0.0 < share < 1.0


def test_places_that_differ_make_a_wider_prior(made_up: Callable[..., Examples]) -> None:
    examples = made_up(groups=20, each=40)
    habits = np.random.default_rng(2).normal(0, 0.4, 20)[examples.groups]
    apart = Examples(
        examples.columns,
        {name: time_s * np.exp(habits) for name, time_s in examples.times_s.items()},
        examples.censored,
        examples.groups,
    )
    sds = []
    for each in (examples, apart):
        prior = fit(each, Settings(trees=5)).places
        assert prior is not None
        sds.append(prior.covariance[0][0] ** 0.5)
    assert sds[1] > 2.0 * sds[0]


AROUND = Distribution((0.8, 0.9, 1.0, 1.1, 1.2))


WIFI_FIRST = {"wifi": AROUND, "cellular": AROUND.scaled(2.0)}


CELLULAR_FIRST = {"wifi": AROUND, "cellular": AROUND.scaled(0.5)}


def test_without_knowledge_predictions_stay() -> None:
    assert Posterior().of(WIFI_FIRST) == WIFI_FIRST


def test_forecasts_that_were_wrong_when_they_favoured_this_are_doubted_only_then() -> None:
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


def test_newer_ones_weigh_more_and_memory_is_bounded() -> None:
    knows = Posterior()
    for _ in range(200):
        knows.learn(WIFI_FIRST, "wifi", 8.0)
    slow_s = knows.of(WIFI_FIRST)["wifi"].mean
    for _ in range(400):
        knows.learn(WIFI_FIRST, "wifi", 1.0)
    assert knows.of(WIFI_FIRST)["wifi"].mean < 0.5 * slow_s
    assert len(knows._favoured["wifi"]) == 1  # what is long ago is forgotten


def test_what_was_never_favoured_before_says_nothing() -> None:
    knows = Posterior()
    knows.learn(WIFI_FIRST, "wifi", 3.0)
    assert knows.of(CELLULAR_FIRST) == CELLULAR_FIRST


@given(
    st.lists(st.one_of(st.sampled_from([nan, inf, -1.0, 0.0]), st.floats(1e-9, 1e9)), max_size=20)
)
def test_whatever_is_measured_times_are_positive_and_ascend(measured: list[float]) -> None:
    knows = Posterior()
    for actual in measured:
        knows.learn(WIFI_FIRST, "wifi", actual)
    for time in knows.of(WIFI_FIRST).values():
        assert all(0.0 < low <= high < inf for low, high in pairwise(time.samples))


@given(st.lists(st.tuples(st.booleans(), st.floats(1e-9, 1e9)), max_size=60))
def test_what_was_learned_is_kept_as_json(measured: list[tuple[bool, float]]) -> None:
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
def test_of_nonsense_nothing_is_learned(nonsense: Any) -> None:
    try:
        found = Posterior.from_state(nonsense)
    except ValueError:
        return
    for time in found.of(WIFI_FIRST).values():
        assert all(0.0 < low <= high < inf for low, high in pairwise(time.samples))
