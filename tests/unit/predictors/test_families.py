"""Families of models in plain Python say what scikit-learn says."""

import json
from collections.abc import Mapping
from math import nan
from typing import Any

import numpy as np
import pytest

from emu.commands.train import KINDS as NAMED_IN_HELP
from predictors.completion import CompletionModel
from predictors.inputs import INPUTS, STRATEGIES
from predictors.rules import RULES, Rule, ewma_bps, harmonic_bps
from predictors.svr import MISSING, Machine, Machines
from predictors.training.boosting import boosting
from predictors.training.examples import Examples, Settings, table, typical_of, walked
from predictors.training.svr import svr
from predictors.training.train import KINDS, fit
from predictors.tree import mirrored


@pytest.fixture(scope="module")
def learnable(examples: Examples) -> tuple[Any, Any]:
    inputs, naive_s = table(examples, typical_of(examples), STRATEGIES)
    times_s = np.column_stack([examples.times_s[name] for name in STRATEGIES])
    return inputs, np.log(times_s / naive_s)


@pytest.mark.parametrize("grow", [boosting, svr])
def test_the_walk_agrees_with_scikit_learn(grow: Any, learnable: tuple[Any, Any]) -> None:
    inputs, targets = learnable
    grown = grow(inputs, targets, STRATEGIES, Settings(trees=12))
    few = inputs[::40].copy()
    few[0] = np.nan
    few[1, ::2] = np.nan
    assert walked(grown.parts, few) == pytest.approx(grown.predict(few), abs=2e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_plain_json(
    kind: str, examples: Examples, usual: Mapping[str, float]
) -> None:
    model = fit(examples, Settings(kind, trees=2 if kind != "svr" else None))
    again = CompletionModel.from_dict(json.loads(json.dumps(model.to_dict())))
    assert again.predict(usual) == model.predict(usual)
    assert again.hazards(usual) == model.hazards(usual)


def test_help_names_every_kind() -> None:
    assert set(NAMED_IN_HELP) == set(KINDS)


def test_averages_run_over_seconds() -> None:
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


def test_rules_know_what_they_say(usual: Mapping[str, float], examples: Examples) -> None:
    models = {name: fit(examples, Settings(name)) for name in RULES}
    points = {name: model.points(usual) for name, model in models.items()}
    # 300 KB at 20 Mbit/s; the naive time is the last second's.
    assert points["last-rate"]["wifi"] == pytest.approx(models["ewma"].naive(usual)["wifi"])
    assert points["last-rtt"]["wifi"] < 0.8 * points["last-rate"]["wifi"]
    assert points["ewma"]["wifi"] > points["last-rate"]["wifi"], "it was slower before"
    assert points["ewma"]["mptcp_wifi"] == points["ewma"]["wifi"], "MPTCP is its primary alone"
    unknown = models["harmonic"].points({"size_bytes": 3e5})
    assert all(value > 0.0 for value in unknown.values())


def by_hand() -> dict[str, Any]:
    return {
        "inputs": ["log_size", f"{MISSING}wifi_dns_s"],
        "fill": [2.0, 0.0],
        "mean": [1.0, 0.0],
        "scale": [2.0, 1.0],
        "gamma": 0.5,
        "vectors": [[0.0, 0.0], [1.0, 1.0]],
        "weights": [1.0, -2.0],
        "intercept": 0.25,
    }


def test_a_machine_by_hand() -> None:
    machine = Machine.from_dict(by_hand(), INPUTS)
    inputs = [nan] * len(INPUTS)
    inputs[0] = 3.0
    # (3 - 1) / 2 = 1, and the DNS time is missing: at the second vector, 2 away from the first.
    expected = 0.25 + np.exp(-0.5 * 2.0) - 2.0
    assert machine.predict(inputs) == pytest.approx(expected)
    assert Machines((machine,)).walk(mirrored(inputs)) == [pytest.approx(expected)]


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
def test_broken_machines_are_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Machines.over({"machines": [by_hand() | change]}, INPUTS, 1)
    with pytest.raises(ValueError, match="for 2 strategies"):
        Machines.over({"machines": [by_hand()]}, INPUTS, 2)


def test_foreign_rules_are_refused() -> None:
    for data in ({"rule": "crystal", "of": ["wifi"]}, {"rule": "ewma", "of": ["pigeon"]}, {}):
        with pytest.raises(ValueError, match="not a rule"):
            Rule.over(data, INPUTS, 1)


def test_collapses_are_foretold_where_something_tells_of_them(examples: Examples) -> None:
    """Wi-Fi whose pings are lost stands still for seconds, every other time."""
    draw = np.random.default_rng(4)
    lossy = draw.random(len(examples)) < 0.3
    times_s = dict(examples.times_s)
    times_s["wifi"] = times_s["wifi"] + 10.0 * (lossy & (draw.random(len(examples)) < 0.5))
    told = Examples(
        {**examples.columns, "wifi_ping_loss": np.where(lossy, 0.6, 0.0)},
        times_s,
        examples.censored,
        examples.groups,
    )
    model = fit(told, Settings(trees=5))
    facts = told.row(0) | {"wifi_ping_loss": 0.6}
    calm = facts | {"wifi_ping_loss": 0.0}
    assert model.hazards(facts)["wifi"] > 0.2 > 4.0 * model.hazards(calm)["wifi"]
    assert model.hazards(facts)["cellular"] < 0.1
