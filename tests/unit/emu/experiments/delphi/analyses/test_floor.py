"""What bounds any choice: two measurements of the same instants, and what was known of a place."""

import csv
from pathlib import Path
from typing import Any

import pytest

from emu.data import datasets
from emu.data.datasets import TIMES
from emu.experiments.delphi import floor

# Seconds over Wi-Fi, cellular, and both with either primary.
WIFI_BEST = (1.0, 2.0, 3.0, 4.0)
CELLULAR_BEST = (3.0, 1.5, 4.0, 4.0)


def written(file: Path, times_s: list[tuple[float, ...]], first_start_s: float = 0.0) -> Path:
    with file.open("w", newline="") as out:
        rows = csv.writer(out)
        rows.writerow(["place", "group", "start_s", "size_bytes", "direction", *TIMES])
        for k, each in enumerate(times_s):
            rows.writerow([f"p{k % 3}", f"p{k % 3}", first_start_s + k, 3000, "down", *each])
    return file


class Steady:
    """A model of networks that do as they promise."""

    def naive(self, row: Any) -> dict[str, float]:
        return {"wifi": 1.5, "cellular": 1.5}


@pytest.fixture(autouse=True)
def always_wifi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floor, "models_by_group", lambda data, *_, **__: [Steady()] * len(data))
    monkeypatch.setattr(floor, "cedos_choices", lambda rows, *_: ["wifi"] * len(rows))


def test_the_oracle_of_one_measurement_is_scored_on_the_other(tmp_path: Path) -> None:
    ours = written(tmp_path / "ours.csv", [WIFI_BEST] * 4 + [CELLULAR_BEST] * 2)
    # The second one found Wi-Fi best three times only.
    theirs = written(tmp_path / "theirs.csv", [WIFI_BEST] * 3 + [CELLULAR_BEST] * 3)
    found = floor.run(datasets.read(ours), str(theirs))
    told = found["max_s"]["told"]["all"]
    assert told["cedos"]["within10_share"] == pytest.approx(4 / 6)
    assert told["cedos"]["regret_mean"] == pytest.approx(2 / 6)  # twice as long, twice in six
    assert told["second_knows_first"]["within10_share"] == pytest.approx(5 / 6)
    assert told["second_knows_first"]["regret_mean"] == pytest.approx(1 / 6)
    assert told["first_knows_second"]["mean_s_over_oracle"] == pytest.approx(9.0 / 7.5)
    assert found["noise"]["wifi"]["median"] == 0.0


def test_other_instants_say_nothing(tmp_path: Path) -> None:
    ours = written(tmp_path / "ours.csv", [WIFI_BEST] * 6)
    theirs = written(tmp_path / "theirs.csv", [WIFI_BEST] * 6, first_start_s=100.0)
    found = floor.run(datasets.read(ours), str(theirs))
    assert "told" not in found["max_s"]
    assert "noise" not in found
    assert found["max_s"]["kinds"]["3000 down"]["n"] == 6
    assert "kinds measured twice" not in found["max_s"]["kinds"]


def test_later_transfers_of_a_place_are_compared(tmp_path: Path) -> None:
    count = 3 * (floor.FIRST + 2)
    found = floor.run(datasets.read(written(tmp_path / "ours.csv", [CELLULAR_BEST] * count)))
    places = found["max_s"]["places"]
    assert places["rows"] == 6  # two after the first thirty, at each of three places
    assert places["regret_never_seen"] == pytest.approx(1.0)
    assert places["gone_share"] == 0.0
