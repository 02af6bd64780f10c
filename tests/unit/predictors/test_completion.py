"""Sizes and shapes of held-out errors."""

from copy import deepcopy
from dataclasses import replace
from math import inf, log, nan

import numpy as np
import pytest

from predictors.completion import LEAST_SIZE, CompletionModel, distribution_around
from predictors.inputs import INPUTS, STRATEGIES
from predictors.training.examples import Settings
from predictors.training.train import fit


@pytest.fixture(scope="module")
def model(examples):
    return fit(examples, Settings(trees=4))


@pytest.fixture
def data(model):
    return deepcopy(model.to_dict())


def by_hand():
    """Wi-Fi alone: twice the naive time where the size is above e bytes, errors 0.5 to 2."""
    leaf = {"feature": [-1], "threshold": [0.0], "left": [0], "right": [0], "missing_left": [False]}
    tree = {
        "feature": [0, -1, -1], "threshold": [1.0, 0.0, 0.0], "left": [1, 0, 0], "right": [2, 0, 0],
        "missing_left": [False] * 3, "value": [[], [0.0], [0.6931471805599453]],
    }  # fmt: skip
    return {
        "features": ["size_bytes", "wifi_rtt_s"],
        "inputs": ["log_size"],
        "typical": {
            "wifi_rtt_s": 0.5,
            "wifi_past1_bps": 8e6,
            "cellular_rtt_s": 1.0,
            "cellular_past1_bps": 8e6,
        },
        "parts": [{"strategies": ["wifi"], "kind": "trees", "scale": 1.0, "trees": [tree]}],
        "errors": {
            "sizes": {"scale": 1.0, "trees": [leaf | {"value": [[0.6931471805599453]]}]},
            "limits": [0.5],
            "shapes": [{"wifi": [0.0, 0.0, 0.0]}, {"wifi": [-1.0, 0.0, 1.0]}],
        },
        "provenance": {},
    }


def test_a_model_by_hand():
    model = CompletionModel.from_dict(by_hand())
    # Naive: two round trips and 1000 bytes at 8 Mbit/s.
    assert model.points({"size_bytes": 1000.0}) == {"wifi": pytest.approx(2 * (1.0 + 0.001))}
    assert model.predict({"size_bytes": 1000.0, "wifi_rtt_s": 0.01})["wifi"].samples == (
        pytest.approx((0.021, 0.042, 0.084))
    )


def test_a_file_with_its_inputs_in_another_order_is_the_same_model(model, data, usual):
    order = list(reversed(range(len(INPUTS))))
    data["inputs"] = [INPUTS[k] for k in order]
    forests = [*data["parts"], data["errors"]["sizes"]]
    for tree in [tree for forest in forests for tree in forest["trees"]]:
        tree["feature"] = [order.index(k) if k >= 0 else k for k in tree["feature"]]
    assert CompletionModel.from_dict(data).predict(usual) == model.predict(usual)


def test_any_indicator_may_be_missing(model, usual):
    for name in usual.keys() - {"size_bytes"}:
        absent = {column: value for column, value in usual.items() if column != name}
        assert model.predict(absent) == model.predict({**usual, name: nan})
    assert set(model.predict({"size_bytes": 3000.0})) == set(STRATEGIES)
    with pytest.raises(KeyError, match="size_bytes"):
        model.predict({"wifi_rtt_s": 0.02})


def shapes(shape):
    return [dict.fromkeys(STRATEGIES, shape)] * 3


def broken(data):
    tree = data["parts"][0]["trees"][0]
    errors, parts = data["errors"], data["parts"]
    deep = [[70.0] * len(leaf) for leaf in tree["value"]]
    return {
        "not known here: crystal_ball": data | {"features": ["crystal_ball"]},
        "not known here: log_moon": data | {"inputs": ["log_moon", *data["inputs"][1:]]},
        "not known here: pigeon": data | {"parts": [parts[0] | {"strategies": ["pigeon"]}]},
        "no features": data | {"features": []},
        "without regressors": data | {"parts": []},
        "compares input": data | {"inputs": data["inputs"][:1]},
        "typical values": data | {"typical": dict.fromkeys(data["typical"], 0.0)},
        "twice": data | {"parts": parts * 2},
        "beyond all measure": data
        | {"parts": [parts[0] | {"trees": [tree | {"value": deep}], "scale": 1.0}]},
        "no known kind": data | {"parts": [parts[0] | {"kind": "oracle"}]},
        "2 limits part 3 shapes": data | {"errors": errors | {"shapes": []}},
        "error sizes must ascend": data | {"errors": errors | {"limits": [2.0, 1.0]}},
        "errors must ascend": data | {"errors": errors | {"shapes": shapes([2.0, 1.0])}},
        "errors must be finite": data | {"errors": errors | {"shapes": shapes([0.0, inf])}},
        "not a completion model": {name: data[name] for name in data if name != "errors"},
        "not a completion": data | {"parts": 7},
        "a forest without trees": data | {"errors": errors | {"sizes": {"trees": [], "scale": 1}}},
    }


def test_broken_and_foreign_models_are_refused_with_a_reason(data):
    for reason, wrong in broken(data).items():
        with pytest.raises(ValueError, match=reason):
            CompletionModel.from_dict(wrong)


def test_errors_stand_around_the_point():
    assert distribution_around(2.0, log(2.0), (-1.0, 0.0, 1.0)).samples == pytest.approx(
        (1.0, 2.0, 4.0)
    )
    assert max(distribution_around(1.0, 27.0, (0.0, 50.0)).samples) < 1e11


def test_intervals_are_wide_where_a_network_cannot_be_foretold(made_up):
    """Half of the rows have lost pings, and are ten times as slow or fast as the others, by chance."""
    examples = made_up(groups=20, each=40, seed=8)
    rng = np.random.default_rng(9)
    wild = rng.random(len(examples)) < 0.5
    factor = np.where(wild, np.exp(rng.normal(0.0, 1.5, len(examples))), 1.0)
    told = replace(
        examples,
        columns={**examples.columns, "wifi_ping_loss": np.where(wild, 0.4, 0.0)},
        times_s={**examples.times_s, "wifi": factor * examples.times_s["wifi"]},
    )
    model = fit(told, Settings(trees=5))

    def spread(row, name):
        found = model.predict(row)[name]
        return log(found.quantile(0.95) / found.quantile(0.05))

    rows = [told.row(k) for k in range(0, len(told), 7)]
    calm = [row | {"wifi_ping_loss": 0.0} for row in rows]
    lossy = [row | {"wifi_ping_loss": 0.4} for row in rows]
    wide, narrow = (np.median([spread(row, "wifi") for row in each]) for each in (lossy, calm))
    assert wide > 2.0 * narrow
    # The other network's errors are its own.
    wide, narrow = (np.median([spread(row, "cellular") for row in each]) for each in (lossy, calm))
    assert wide < 1.5 * narrow


def test_a_model_that_never_errs_is_not_believed_to_the_last_digit(examples):
    perfect = replace(
        examples,
        columns={"size_bytes": examples.columns["size_bytes"]},
        times_s={name: np.ones(len(examples)) for name in examples.times_s},
    )
    same_size = replace(perfect, columns={"size_bytes": np.full(len(examples), 3e3)})
    model = fit(same_size, Settings(trees=3))
    assert all(size >= LEAST_SIZE for size in model.errors.expected_sizes([8.0] * 200))
    assert model.predict({"size_bytes": 3e3})["wifi"].mean == pytest.approx(1.0, abs=0.02)
