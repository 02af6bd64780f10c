"""Families of models in plain Python say what scikit-learn says."""

import json
from math import nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.ensemble import ExtraTreesRegressor, RandomForestRegressor
from sklearn.tree import DecisionTreeRegressor

from emu.commands.train import KINDS as NAMED_IN_HELP
from predictors.completion import CompletionModel
from predictors.inputs import INPUTS, RULES, STRATEGIES, Rule, ewma_bps, harmonic_bps
from predictors.regressor import MISSING, Forest, Machine, Machines, Tree, mirror
from predictors.training.examples import Settings, table, typical_of, walk_rows
from predictors.training.learners import boosting, svr, tree_of
from predictors.training.train import KINDS, fit

# input 0 <= 1.5: left leaf 10, else (and for NaN) the leaf 20.
STUMP = {
    "feature": [0, -1, -1], "threshold": [1.5, 0.0, 0.0], "left": [1, 0, 0], "right": [2, 0, 0],
    "missing_left": [False, False, False], "value": [[], [10.0], [20.0]],
}  # fmt: skip


def test_a_stump_sends_each_value_to_its_side():
    forest = Forest((Tree.from_dict(STUMP, inputs=1, outputs=1),))
    assert [forest.predict([x]) for x in (1.0, 1.5, 1.6, float("nan"))] == [
        [10.0],
        [10.0],
        [20.0],
        [20.0],
    ]


def test_missing_goes_left_where_that_was_learned():
    stump = Tree.from_dict(STUMP | {"missing_left": [True, False, False]}, inputs=1, outputs=1)
    forest = Forest((stump,))
    assert [forest.predict([x]) for x in (1.0, 1.5, 1.6, float("nan"))] == [
        [10.0],
        [10.0],
        [20.0],
        [10.0],
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"feature": [1, -1, -1]},  # an input that is not there
        {"feature": [-2, -1, -1]},
        {"feature": ["a", -1, -1]},
        {"left": [0, 0, 0]},  # a walk that never ends
        {"right": [3, 0, 0]},
        {"threshold": [float("nan"), 0.0, 0.0]},
        {"threshold": [1.5]},
        {"value": [[], [10.0, 11.0], [20.0]]},  # another number of outputs
        {"value": [[], [float("inf")], [20.0]]},
        {"value": [[], ["a"], [20.0]]},
        {"value": None},
        {name: [] for name in STUMP},
    ],
)
def test_broken_trees_are_refused(change):
    with pytest.raises(ValueError, match=r"tree|node|leaf"):
        Tree.from_dict(STUMP | change, inputs=1, outputs=1)


@pytest.mark.parametrize(
    "data", [{}, {"trees": [], "scale": 1.0}, {"trees": [STUMP], "scale": "x"}, {"trees": 3}]
)
def test_broken_forests_are_refused(data):
    with pytest.raises(ValueError, match=r"forest|could not convert"):
        Forest.rebuild(data, INPUTS[:1], 1)


# A grid of few values, so that splits, ties with thresholds and missing values are all common.
# Our walk compares double precision, scikit-learn single precision: the grid is exact in both.
cells = st.one_of(st.integers(-4, 4).map(lambda n: n / 4), st.just(float("nan")))


@st.composite
def tables(draw):
    inputs, outputs = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    rows = draw(st.integers(4, 40))
    known = st.lists(
        st.lists(cells, min_size=inputs, max_size=inputs), min_size=rows, max_size=rows
    )
    target = st.lists(
        st.lists(st.integers(-9, 9).map(float), min_size=outputs, max_size=outputs),
        min_size=rows,
        max_size=rows,
    )
    asked = st.lists(st.lists(cells, min_size=inputs, max_size=inputs), min_size=1, max_size=30)
    return np.array(draw(known)), np.array(draw(target)), np.array(draw(asked))


@given(tables(), st.integers(1, 5), st.integers(0, 3))
def test_a_walk_gives_what_scikit_learn_gives(table, min_leaf, seed):
    known, target, asked = table
    grown = DecisionTreeRegressor(min_samples_leaf=min_leaf, random_state=seed).fit(known, target)
    ours = Forest((tree_of(grown),))
    theirs = grown.predict(asked).reshape(len(asked), -1)
    for row, expected in zip(asked.tolist(), theirs, strict=True):
        assert ours.predict(row) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("kind", [ExtraTreesRegressor, RandomForestRegressor])
def test_a_forest_gives_what_scikit_learn_gives_for_any_values_and_after_a_round_trip(kind):
    draw = np.random.default_rng(3)
    known = draw.normal(size=(400, 6)).astype(np.float32).astype(np.float64)
    target = np.column_stack([known[:, 0] * known[:, 1], known[:, 2]]) + draw.normal(size=(400, 2))
    known[draw.random(known.shape) < 0.15] = np.nan
    known[:, 5] = draw.normal(size=400).astype(np.float32)  # never missing in training
    grown = kind(12, min_samples_leaf=3, max_features=0.5, random_state=0)
    grown.fit(known, target)
    ours = Forest.average([tree_of(tree) for tree in grown.estimators_])
    again = Forest.rebuild(ours.to_dict(), INPUTS[:6], 2)
    asked = draw.normal(size=(300, 6)).astype(np.float32).astype(np.float64)
    asked[draw.random(asked.shape) < 0.3] = np.nan
    for row, expected in zip(asked.tolist(), grown.predict(asked), strict=True):
        assert ours.predict(row) == pytest.approx(expected, abs=1e-9)
        assert again.predict(row) == ours.predict(row)


@pytest.fixture(scope="module")
def learnable(examples):
    inputs, naive_s = table(examples, typical_of(examples), STRATEGIES)
    times_s = np.column_stack([examples.times_s[name] for name in STRATEGIES])
    return inputs, np.log(times_s / naive_s)


@pytest.mark.parametrize("grow", [boosting, svr])
def test_the_walk_agrees_with_scikit_learn(grow, learnable):
    inputs, targets = learnable
    grown = grow(inputs, targets, STRATEGIES, Settings(trees=12))
    few = inputs[::40].copy()
    few[0] = np.nan
    few[1, ::2] = np.nan
    assert walk_rows(grown.parts, few) == pytest.approx(grown.predict(few), abs=2e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_plain_json(kind, examples, usual):
    model = fit(examples, Settings(kind, trees=2 if kind != "svr" else None))
    again = CompletionModel.from_dict(json.loads(json.dumps(model.to_dict())))
    assert again.predict(usual) == model.predict(usual)


def test_help_names_every_kind():
    assert set(NAMED_IN_HELP) == set(KINDS)


def test_averages_run_over_seconds():
    # One second at 8, four at 4, five at 2 Mbit/s.
    rates = (8e6, 4e6, 2e6)
    assert harmonic_bps(rates) == pytest.approx(10 / (1 / 8e6 + 4 / 4e6 + 5 / 2e6))
    old = 0.6**1, 0.6**5, 0.6**10
    weights = (1 - old[0], old[0] - old[1], old[1] - old[2])
    assert ewma_bps(rates) == pytest.approx(
        sum(w * r for w, r in zip(weights, rates, strict=True)) / sum(weights)
    )
    assert harmonic_bps((nan, 4e6, nan)) == pytest.approx(4e6)
    assert np.isnan(ewma_bps((nan, nan, nan)))


def test_rules_know_what_they_say(usual, examples):
    models = {name: fit(examples, Settings(name)) for name in RULES}
    points = {name: model.points(usual) for name, model in models.items()}
    # 300 KB at 20 Mbit/s; the naive time is the last second's.
    assert points["last-rate"]["wifi"] == pytest.approx(models["ewma"].naive(usual)["wifi"])
    assert points["last-rtt"]["wifi"] < 0.8 * points["last-rate"]["wifi"]
    assert points["ewma"]["wifi"] > points["last-rate"]["wifi"], "it was slower before"
    assert points["ewma"]["mptcp_wifi"] == points["ewma"]["wifi"], "MPTCP is its primary alone"
    unknown = models["harmonic"].points({"size_bytes": 3e5})
    assert all(value > 0.0 for value in unknown.values())


def by_hand():
    return {
        "inputs": ["log_size", f"{MISSING}wifi_dns_s"], "fill": [2.0, 0.0], "mean": [1.0, 0.0],
        "scale": [2.0, 1.0], "gamma": 0.5, "vectors": [[0.0, 0.0], [1.0, 1.0]],
        "weights": [1.0, -2.0], "intercept": 0.25,
    }  # fmt: skip


def test_a_machine_by_hand():
    machine = Machine.from_dict(by_hand(), INPUTS)
    inputs = [nan] * len(INPUTS)
    inputs[0] = 3.0
    # (3 - 1) / 2 = 1, and the DNS time is missing: at the second vector, 2 away from the first.
    expected = 0.25 + np.exp(-0.5 * 2.0) - 2.0
    assert machine.predict(inputs) == pytest.approx(expected)
    assert Machines((machine,)).walk(mirror(inputs)) == [pytest.approx(expected)]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"inputs": ["log_moon", "log_size"]}, "other inputs"),
        ({"fill": [1.0]}, "differ in length"),
        ({"weights": [1.0]}, "differ in length"),
        ({"scale": [0.0, 1.0]}, "impossible numbers"),
        ({"gamma": -1.0}, "impossible numbers"),
        ({"vectors": [[nan, 0.0], [1.0, 1.0]]}, "impossible vectors"),
        ({"vectors": 7}, "not a support vector"),
    ],
)
def test_broken_machines_are_refused(change, reason):
    with pytest.raises(ValueError, match=reason):
        Machines.rebuild({"machines": [by_hand() | change]}, INPUTS, 1)
    with pytest.raises(ValueError, match="for 2 strategies"):
        Machines.rebuild({"machines": [by_hand()]}, INPUTS, 2)


def test_foreign_rules_are_refused():
    for data in ({"rule": "crystal", "of": ["wifi"]}, {"rule": "ewma", "of": ["pigeon"]}, {}):
        with pytest.raises(ValueError, match="not a rule"):
            Rule.rebuild(data, INPUTS, 1)
