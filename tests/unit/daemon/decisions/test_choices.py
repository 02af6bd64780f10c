"""The predictors that decisions are taken with."""

import json
from importlib import resources

import pytest

from cedos import config
from cedos.daemon.startup import choices
from cedos.storage import model_files


@pytest.mark.parametrize("key", ["features", "inputs"])
def test_a_model_with_other_features_is_refused_and_the_shipped_one_decides(tmp_path, key):
    data = json.loads(resources.files("predictors").joinpath("shipped.json").read_bytes())
    data[key].append("wifi_moon_phase")
    model = tmp_path / "model.json"
    model.write_text(json.dumps(data))
    file = tmp_path / "cedos.toml"
    file.write_text(f'[predictors]\nmodel = "{model}"\n')
    problems = []
    found = choices(config.load(file), problems)
    assert found.model == model_files.load()
    (said,) = problems
    for words in (
        str(model),
        key,
        "not known here: wifi_moon_phase",
        "cedos-emu train",
        "come with",
    ):
        assert words in said
