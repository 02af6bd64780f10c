"""What prices buy: where they are high, less is used of what they are put on."""

import csv
from pathlib import Path

import pytest

from emu.experiments.delphi.analyses import prices
from emu.lab.data import datasets
from emu.lab.data.datasets import TIMES


def rows_of(file: Path, count: int = 120) -> datasets.DataSet:
    """Wi-Fi takes twice as long as cellular, MPTCP nearly as long as both rates promise."""
    with file.open("w", newline="") as out:
        rows = csv.writer(out)
        rows.writerow(["place", "start_s", "size_bytes", "direction", *TIMES, "wifi_past5_bps"])
        for k in range(count):
            size = (3_000, 3_000_000)[k % 2]
            unit_s = size / 1e6
            rows.writerow(
                [f"p{k % 6}", k, size, "down", unit_s, unit_s / 2, unit_s / 2.9, unit_s / 2.9, 8e6]
            )
    return datasets.read(file)


def test_what_is_dear_is_used_less(tmp_path: Path) -> None:
    data = rows_of(tmp_path / "t.csv")
    found = prices.run(data, prices=((0.0, 0.0, 0.0), (100.0, 10.0, 0.1)))
    free, dear = found["frontier"]
    assert (free["time_ratio"], free["energy_ratio"], free["cellular_ratio"]) == (1.0, 1.0, 1.0)
    assert dear["cellular_mb"] == 0.0
    assert dear["mean_s"] == pytest.approx(found["fixed"]["wifi"]["mean_s"])
    assert dear["time_ratio"] > 1.0 > dear["energy_ratio"]
    assert found["rows"] == 120


def test_bytes_of_mptcp_are_divided_by_rates_and_small_ones_stay_together(tmp_path: Path) -> None:
    data = rows_of(tmp_path / "t.csv", 2)
    shares = prices.cellular_shares(data)
    assert shares["mptcp_wifi"].tolist() == pytest.approx([0.0, 2 / 3])
    assert shares["mptcp_cellular"].tolist() == pytest.approx([1.0, 2 / 3])
