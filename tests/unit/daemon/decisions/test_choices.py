"""The configured method of taking uncertainty reaches every decision, and is told with it."""

import json
from collections.abc import Sequence
from importlib import resources
from ipaddress import ip_interface

import pytest

from cedos import config
from cedos.controller.config import Choices
from cedos.controller.decisions.decider import Decider
from cedos.controller.events import ChoiceAsked
from cedos.controller.flows.learning import Learning
from cedos.controller.flows.living_flows import LivingFlows
from cedos.controller.outbox import Outbox
from cedos.daemon.startup import choices
from cedos.errors import ConfigError
from cedos.model import Context, Network, NetworkKind, SizeEstimate, Transfer
from cedos.selector.objective import WeightedCost
from cedos.selector.uncertainty import METHODS
from predictors.base import Distribution

BOTH = (
    Network("wlan0", "wlan0", 2, NetworkKind.WIFI, False, (ip_interface("10.0.0.2/24"),)),
    Network("lte0", "lte0", 3, NetworkKind.CELLULAR, True, (ip_interface("10.1.0.2/24"),)),
)


class Gamble:
    """Each network is quick nine times of ten."""

    features: Sequence[str] = ()

    def predict(self, features):
        return {name: Distribution((0.1,) * 9 + (10.0,)) for name in ("wifi", "cellular")}


def configured(tmp_path, text):
    file = tmp_path / "cedos.toml"
    file.write_text(f"[decision]\n{text}\n")
    problems = []
    found = choices(config.load(file), tmp_path, problems)
    assert problems == []
    return found


@pytest.mark.parametrize("key", ["features", "inputs"])
def test_a_model_trained_with_other_features_is_refused_and_the_rule_of_thumb_decides(
    tmp_path, key
):
    data = json.loads(resources.files("predictors").joinpath("shipped.json").read_bytes())
    data[key].append("wifi_moon_phase")
    model = tmp_path / "model.json"
    model.write_text(json.dumps(data))
    file = tmp_path / "cedos.toml"
    file.write_text(f'[predictors]\nmodel = "{model}"\n')
    problems = []
    found = choices(config.load(file), tmp_path, problems)
    assert found.model is None
    (said,) = problems
    for words in (str(model), key, "not known here: wifi_moon_phase", "cedos-emu train", "thumb"):
        assert words in said
    decider = Decider(found, LivingFlows(), Outbox())
    decider.networks_changed(BOTH)
    transfer = Transfer(SizeEstimate(4000, 4000, 4000, "hint"))
    asked = ChoiceAsked(transfer, False, False)
    assert "rule of thumb" in decider.choose(asked, Context(10.0, {})).decision.reason


@pytest.mark.parametrize("method", METHODS)
def test_a_method_other_than_the_default_is_told_with_every_decision(tmp_path, method):
    chosen = configured(tmp_path, f'method = "{method}"')
    assert isinstance(chosen.model, Learning) is (method == "bayesian")
    gambling = Choices(
        WeightedCost(), Gamble(), 3000, 0.1, 0.1, redundant=True, method=chosen.method
    )
    decider = Decider(gambling, LivingFlows(), Outbox())
    decider.networks_changed(BOTH)
    transfer = Transfer(SizeEstimate(4000, 4000, 4000, "hint"))
    twice, once = (
        decider.choose(ChoiceAsked(transfer, redundant, False), Context(10.0, {})).decision
        for redundant in (True, False)
    )
    assert str(twice.choice).startswith("single" if method == "trusting" else "redundant")
    # What everybody does by default need not be said.
    for decision in (twice, once):
        assert (chosen.method.words in decision.reason) is (method != "brute-force")


def test_a_method_that_nobody_knows_is_refused_with_those_there_are(tmp_path):
    with pytest.raises(ConfigError, match=r"(?s)method.*"):
        configured(tmp_path, 'method = "dice"')
