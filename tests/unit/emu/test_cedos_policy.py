"""The daemon's configuration that the policy writes lies in the run folder, wherever it was asked for."""

from pathlib import Path

import pytest

from cedos.config import load
from emu.places import places
from emu.policies.base import Stage
from emu.policies.cedos import configuration

ROOT = Path(__file__).resolve().parents[3]


def test_a_collection_named_relatively_is_found_from_the_run_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    place = places.load(Path("traces"))["walk-away-s7"]
    stage = Stage(None, place, tmp_path, 0.0, 0.0)  # no laptop is touched
    file = tmp_path / "cedos.toml"
    file.write_text(configuration(stage))
    monkeypatch.chdir(tmp_path)
    series = load(file).providers.series
    assert set(series) == {"wlan0", "lte0"}
    assert all(path.is_file() for path in series.values())
