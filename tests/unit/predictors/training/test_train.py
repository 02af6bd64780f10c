from dataclasses import replace

import numpy as np
import pytest

from predictors.completion import CompletionModel
from predictors.inputs import STRATEGIES
from predictors.training.examples import Settings
from predictors.training.train import LEARNED, fit

FEW = Settings(trees=5)


def off(model, examples, name):
    points = np.array([model.points(examples.row(k))[name] for k in range(len(examples))])
    return np.abs(points / examples.times_s[name] - 1.0)


@pytest.mark.parametrize("kind", LEARNED)
def test_it_learns_what_there_is_to_learn(examples, kind):
    train = examples.groups < 9
    model = fit(examples.take(train), Settings(kind=kind))
    test = examples.take(~train)
    for name in STRATEGIES:
        # The data are noisy by 15 %, which is 10 % in the median.
        assert np.median(off(model, test, name)) < 0.16
        assert model.provenance["held_out"][name] < 0.16
    assert model.provenance["kind"] == kind


def test_intervals_cover_places_never_seen(made_up):
    examples = made_up(groups=30, each=40, seed=5)
    train = examples.groups < 20
    model = fit(examples.take(train), FEW)
    test = examples.take(~train)
    for name in STRATEGIES:
        predicted = [model.predict(test.row(k))[name] for k in range(len(test))]
        low = np.array([each.quantile(0.05) for each in predicted])
        high = np.array([each.quantile(0.95) for each in predicted])
        time_s, censored = test.times_s[name], test.censored[name]
        covered = np.mean((time_s <= high) & ((low <= time_s) | censored))
        assert 0.84 <= covered <= 0.96


def test_the_same_rows_and_seed_give_the_same_model(examples):
    assert fit(examples, FEW).to_dict() == fit(examples, FEW).to_dict()
    assert fit(examples, FEW).to_dict() != fit(examples, replace(FEW, seed=1)).to_dict()


@pytest.mark.parametrize("kind", LEARNED)
def test_what_few_data_sets_tell_is_learned_from_where_it_is_told(made_up, kind):
    """In these rows, transfers take four times as long where many access points are seen."""
    examples = made_up(groups=6, each=30, seed=2)
    many = np.random.default_rng(3).random(len(examples)) < 0.5
    more = replace(
        examples,
        columns={**examples.columns, "wifi_ap_count": np.where(many, 30.0, 3.0)},
        times_s={name: np.where(many, 4.0, 1.0) * t for name, t in examples.times_s.items()},
    )
    model = fit(more, replace(FEW, kind=kind, trees=20, folds=3, min_leaf=5))
    assert "wifi_ap_count" in model.features
    row = more.row(0)
    few, crowd = (model.points(row | {"wifi_ap_count": count})["wifi"] for count in (3.0, 30.0))
    assert crowd > 1.5 * few
    assert CompletionModel.from_dict(model.to_dict()).points(row) == model.points(row)


def test_strategies_measured_apart_are_learned_apart(examples):
    some = {
        name: np.where(examples.groups % 2 == k % 2, time_s, np.nan)
        for k, (name, time_s) in enumerate(examples.times_s.items())
    }
    patchy = replace(examples, times_s=some)
    model = fit(patchy, FEW)
    assert model.strategies == STRATEGIES
    assert np.median(off(model, examples, "mptcp_cellular")) < 0.16


def test_censored_rows_make_the_spread_wider_not_the_point_worse(examples):
    """A tenth of all transfers end at a limit just above their usual time: nobody knows how late."""
    late = np.random.default_rng(1).random(len(examples)) < 0.1
    times_s = {name: time_s.copy() for name, time_s in examples.times_s.items()}
    times_s["wifi"][late] *= 6.0
    told = replace(examples, times_s=times_s, censored={**examples.censored, "wifi": late})
    models = [fit(each, FEW) for each in (told, replace(told, censored=examples.censored))]
    highs = [
        np.median([each.predict(told.row(k))["wifi"].quantile(0.95) for k in range(9)])
        for each in models
    ]
    assert highs[0] >= highs[1]
    assert np.median(off(models[0], examples, "wifi")) < 0.35


def test_too_little_to_learn_from_is_said(examples):
    with pytest.raises(ValueError, match="at least two"):
        fit(examples.take(examples.groups == 0), FEW)
    with pytest.raises(ValueError, match="no completion times"):
        fit(replace(examples, times_s={}), FEW)


def test_transfers_of_which_one_strategy_is_known_teach_of_the_others_too(made_up):
    """Beside rows of all strategies stand some with Wi-Fi's time alone: four times as long there."""
    examples = made_up(groups=8, each=60, seed=2)
    alone = np.arange(len(examples)) % 2 == 1
    times_s = {
        name: np.where(alone, 4.0 * time_s if name == "wifi" else np.nan, time_s)
        for name, time_s in examples.times_s.items()
    }
    told = {**examples.columns, "wifi_rate_age_s": np.where(alone, 30.0, np.nan)}
    model = fit(replace(examples, columns=told, times_s=times_s), replace(FEW, trees=20))
    row = examples.row(0)
    fresh, old = model.points(row), model.points(row | {"wifi_rate_age_s": 30.0})
    assert old["wifi"] > 2.5 * fresh["wifi"]
    assert model.strategies == STRATEGIES
    assert old["cellular"] < 1.6 * fresh["cellular"]
    assert np.median(off(model, examples.take(~alone), "cellular")) < 0.16
