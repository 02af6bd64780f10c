from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.ensemble import ExtraTreesRegressor, RandomForestRegressor
from sklearn.tree import DecisionTreeRegressor

from predictors.inputs import INPUTS
from predictors.training.trees import tree_of
from predictors.tree import Forest, Tree

# input 0 <= 1.5: left leaf 10, else (and for NaN) the leaf 20.
STUMP: dict[str, Any] = {
    "feature": [0, -1, -1],
    "threshold": [1.5, 0.0, 0.0],
    "left": [1, 0, 0],
    "right": [2, 0, 0],
    "missing_left": [False, False, False],
    "value": [[], [10.0], [20.0]],
}


def test_a_stump_sends_each_value_to_its_side() -> None:
    forest = Forest((Tree.from_dict(STUMP, inputs=1, outputs=1),))
    assert [forest.predict([x]) for x in (1.0, 1.5, 1.6, float("nan"))] == [
        [10.0],
        [10.0],
        [20.0],
        [20.0],
    ]


def test_missing_goes_left_where_that_was_learned() -> None:
    stump = Tree.from_dict(STUMP | {"missing_left": [True, False, False]}, inputs=1, outputs=1)
    forest = Forest((stump,))
    assert [forest.predict([x]) for x in (1.0, 1.5, 1.6, float("nan"))] == [
        [10.0],
        [10.0],
        [20.0],
        [10.0],
    ]


def test_trees_are_averaged_or_added_up() -> None:
    one = Tree.from_dict(STUMP, inputs=1, outputs=1)
    other = Tree.from_dict(STUMP | {"value": [[], [1.0], [2.0]]}, inputs=1, outputs=1)
    assert Forest.average([one, other]).predict([0.0]) == [5.5]
    assert Forest((one, other)).predict([9.0]) == [22.0]


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
def test_broken_trees_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"tree|node|leaf"):
        Tree.from_dict(STUMP | change, inputs=1, outputs=1)


@pytest.mark.parametrize(
    "data", [{}, {"trees": [], "scale": 1.0}, {"trees": [STUMP], "scale": "x"}, {"trees": 3}]
)
def test_broken_forests_are_refused(data: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"forest|could not convert"):
        Forest.over(data, INPUTS[:1], 1)


# A grid of few values, so that splits, ties with thresholds and missing values are all common.
# Our walk compares double precision, scikit-learn single precision: the grid is exact in both.
cells = st.one_of(st.integers(-4, 4).map(lambda n: n / 4), st.just(float("nan")))


@st.composite
def tables(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
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


@settings(max_examples=150, deadline=None)
@given(tables(), st.integers(1, 5), st.integers(0, 3))
def test_a_walk_gives_what_scikit_learn_gives(
    table: tuple[np.ndarray, np.ndarray, np.ndarray], min_leaf: int, seed: int
) -> None:
    known, target, asked = table
    grown = DecisionTreeRegressor(min_samples_leaf=min_leaf, random_state=seed).fit(known, target)
    ours = Forest((tree_of(grown),))
    theirs = grown.predict(asked).reshape(len(asked), -1)
    for row, expected in zip(asked.tolist(), theirs, strict=True):
        assert ours.predict(row) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("kind", [ExtraTreesRegressor, RandomForestRegressor])
def test_a_forest_gives_what_scikit_learn_gives_for_any_values_and_after_a_round_trip(
    kind: Any,
) -> None:
    draw = np.random.default_rng(3)
    known = draw.normal(size=(400, 6)).astype(np.float32).astype(np.float64)
    target = np.column_stack([known[:, 0] * known[:, 1], known[:, 2]]) + draw.normal(size=(400, 2))
    known[draw.random(known.shape) < 0.15] = np.nan
    known[:, 5] = draw.normal(size=400).astype(np.float32)  # never missing in training
    grown = kind(12, min_samples_leaf=3, max_features=0.5, random_state=0)
    grown.fit(known, target)
    ours = Forest.average([tree_of(tree) for tree in grown.estimators_])
    again = Forest.over(ours.to_dict(), INPUTS[:6], 2)
    asked = draw.normal(size=(300, 6)).astype(np.float32).astype(np.float64)
    asked[draw.random(asked.shape) < 0.3] = np.nan
    for row, expected in zip(asked.tolist(), grown.predict(asked), strict=True):
        assert ours.predict(row) == pytest.approx(expected, abs=1e-9)
        assert again.predict(row) == ours.predict(row)
