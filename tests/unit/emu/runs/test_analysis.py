"""Analyses: a TOML file in, a run folder out, and clear words where that cannot be."""

import json

import pytest
from click.testing import CliRunner

from cedos.errors import ConfigError
from emu import ROOT
from emu.commands.run import command
from emu.runs import analysis

EXPERIMENTS = ROOT / "emu" / "experiments"


def written(folder, text):
    file = folder / "a.toml"
    file.write_text(text)
    return file


def test_every_shipped_analysis_can_be_read():
    files = [file for file in EXPERIMENTS.glob("*.toml") if analysis.is_analysis(file)]
    assert files
    for file in files:
        assert analysis.read(file).analysis in analysis.ANALYSES


def test_the_command_prints_json_or_writes_it(tmp_path):
    file, out = str(EXPERIMENTS / "delphi_correlations.toml"), tmp_path / "f.json"
    result = CliRunner().invoke(command, [file])
    assert result.exit_code == 0, result.output
    assert CliRunner().invoke(command, [file, "--json", str(out)]).exit_code == 0
    written = json.loads(out.read_text())
    assert written.pop("environment")["kernel"]
    assert written == json.loads(result.stdout)
    refused = CliRunner().invoke(command, [file, "--out", str(tmp_path)])
    assert "an analysis has no run folder" in refused.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('analysis = "horoscope"', "there is no analysis 'horoscope'; there are"),
        ('analysis = "correlations"\ndate = "x"', "date"),
        ("analysis = 7", "Expected `str`"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        analysis.read(written(tmp_path, text))


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("prediction", 'kinds = "trees"', "kinds: Expected `array`, got `str`"),
        ("prediction", "kinds = []", "kinds is empty"),
        ("exchanges", 'walking = ["static-s5"]', "needs the parameter driving"),
        ("exchanges", 'walking = []\ndriving = ["static-s5"]', "walking is empty"),
        ("choices", "train_share = 1.5", "a share from 0.1 to 0.9"),
    ],
)
def test_what_an_analysis_cannot_use_is_refused_before_it_begins(
    tmp_path, name, parameters, message
):
    file = written(tmp_path, f'analysis = "{name}"\n[parameters]\n{parameters}\n')
    with pytest.raises(ConfigError, match=message):
        analysis.carry_out(analysis.read(file), directory=ROOT / "traces")
