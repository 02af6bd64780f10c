"""Policies: the settings that they give to cedos."""

from pathlib import Path

import pytest

from cedos.config import load
from emu import ROOT, policies
from emu.places import places
from emu.policies import Stage
from emu.policies.cedos import Cedos, configuration

TOLD = {
    "series": {
        interface: str(ROOT / f"traces/{kind}/walk-away-s7-{kind}.csv")
        for interface, kind in (("wlan0", "wifi"), ("lte0", "cellular"))
    },
    "started_at_s": {"wlan0": 0.0, "lte0": 0.0},
}


def test_the_honest_policy_is_told_nothing_of_the_place(tmp_path):
    place = places.load(ROOT / "traces")["walk-away-s7"]
    file = tmp_path / "cedos.toml"
    file.write_text(configuration(Stage(None, place, tmp_path, 0.0, 0.0, 1)))
    read = load(file)
    assert read.providers.series == {}
    assert not read.providers.host
    assert set(read.networks) == {"wlan0", "lte0"}


@pytest.mark.parametrize(
    ("name", "section", "forced"),
    [
        ("cedos-told", "providers", TOLD),
        ("cedos-start", "steering", {"mptcp": False, "rescue": False}),
    ],
)
def test_variants_change_their_own_settings_alone(monkeypatch, tmp_path, name, section, forced):
    mine = dict.fromkeys(forced, "mine") | {"other": 1}
    given = {section: mine, "decision": {"objective": "max-s"}}
    place = places.load(ROOT / "traces")["walk-away-s7"]
    started = []
    monkeypatch.setattr(Cedos, "start", lambda self, stage: started.append(stage))
    policy = policies.make(name)
    policy.start(Stage(None, place, tmp_path, 0.0, 0.0, 1, given))  # no laptop is touched
    assert policy.name == name
    assert started[0].settings == {**given, section: {"other": 1, **forced}}, (
        "they stay what makes it that policy"
    )


def test_every_policy_that_predicts_gets_the_model():
    given = {"cedos": {"plan": {"price_s_per_mb": 2.0}, "predictors": {"model": "shipped"}}}
    found = policies.with_predictors(given, Path("unseen.json"))
    assert found["cedos"] == {
        "plan": {"price_s_per_mb": 2.0},
        "predictors": {"model": "unseen.json"},
    }
    assert found["cedos-gateway"] == {"predictors": {"model": "unseen.json"}}
    assert "wifi-first" not in found
