"""The daemon's configuration, as the policies that start it write it."""

from pathlib import Path

import pytest

from cedos.config import load
from emu import policies
from emu.places import places
from emu.policies.base import Stage
from emu.policies.cedos import Cedos, configuration
from emu.repository import ROOT


def test_a_collection_named_relatively_is_found_from_the_run_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    place = places.load(Path("traces"))["walk-away-s7"]
    stage = Stage(None, place, tmp_path, 0.0, 0.0, 1)  # no laptop is touched
    file = tmp_path / "cedos.toml"
    file.write_text(configuration(stage))
    monkeypatch.chdir(tmp_path)
    series = load(file).providers.series
    assert set(series) == {"wlan0", "lte0"}
    assert all(path.is_file() for path in series.values())


@pytest.mark.parametrize(
    ("name", "section", "forced"),
    [
        ("cedos-blind", "providers", {"series": {}, "offset_s": {}}),
        ("cedos-start", "steering", {"mptcp": False, "rescue": False}),
    ],
)
def test_variants_change_their_own_settings_alone(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
    section: str,
    forced: dict[str, object],
) -> None:
    mine = dict.fromkeys(forced, "mine") | {"other": 1}
    given = {section: mine, "decision": {"objective": "max-s"}}
    place = places.load(ROOT / "traces")["walk-away-s7"]
    started: list[Stage] = []
    monkeypatch.setattr(Cedos, "start", lambda self, stage: started.append(stage))
    policy = policies.make(name)
    policy.start(Stage(None, place, tmp_path, 0.0, 0.0, 1, given))  # no laptop is touched
    assert policy.name == name
    assert started[0].settings == {**given, section: {"other": 1, **forced}}, (
        "they stay what makes it that policy"
    )
