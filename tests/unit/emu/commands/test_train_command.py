"""`cedos-emu train` and `evaluate`: what DATA must hold, where files go, and what figures are worth."""

import csv
import random
import sys

import pytest

from cedos.errors import ModelError
from cedos.storage import model_files
from emu.commands import cedos_emu

STRATEGIES = ("wifi", "cellular", "mptcp_wifi", "mptcp_cellular")


def data(path, *measured):
    """Forty rows of four places, of which the first column alone may be there and empty."""
    draw = random.Random(path.name)
    columns = ["place", "size_bytes", "direction", *(f"t_{name}_s" for name in STRATEGIES)]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for row in range(40):
            times = [
                f"{draw.uniform(0.1, 0.5):.3f}" if name in measured else "" for name in STRATEGIES
            ]
            writer.writerow([f"place{row % 4}", 300_000, "down", *times])
    return path


def cedos_emu_status(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["cedos-emu", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        cedos_emu.main()
    return int(stopped.value.code or 0)


def test_a_strategy_without_times_is_refused_unless_it_is_meant(tmp_path, monkeypatch, capsys):
    file, out = data(tmp_path / "some.csv", *STRATEGIES[1:]), tmp_path / "model.json"
    asked = ("train", file, "--out", out, "--kind", "last-rate")
    assert cedos_emu_status(monkeypatch, *asked) == 2
    said = capsys.readouterr().err
    assert "no times for wifi: this model cannot choose it" in said
    assert said.count("\n") == 1
    assert not out.exists()
    assert cedos_emu_status(monkeypatch, *asked, "--partial") == 0
    with pytest.raises(ModelError, match="no times of wifi alone"):
        model_files.load(out)


def test_a_file_that_cannot_be_written_is_named_before_the_work(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    never = tmp_path / "file" / "x.json"
    for asked in (
        ("evaluate", tmp_path / "no.csv", "--json"),
        ("train", tmp_path / "no.csv", "--out"),
    ):
        assert cedos_emu_status(monkeypatch, *asked, never) == 1
        said = capsys.readouterr().err
        assert said.startswith(f"cedos-emu: {never.parent}: Not a directory: ")
        assert said.count("\n") == 1


def test_groups_that_are_left_out_teach_nothing(tmp_path, monkeypatch, capsys):
    file, out = data(tmp_path / "all.csv", *STRATEGIES), tmp_path / "model.json"
    asked = ("train", file, "--out", out, "--kind", "last-rate", "--without")
    assert cedos_emu_status(monkeypatch, *asked, "place1", "--without", "place2") == 0
    provenance = model_files.load(out).provenance
    assert (provenance["rows"], provenance["places"]) == (20, 2)
    assert provenance["without"] == ["place1", "place2"]
    assert cedos_emu_status(monkeypatch, *asked, "plaice1") == 2
    assert "no such group; it has place0, place1, place2, place3" in capsys.readouterr().err


def test_each_mistake_in_a_scenario_has_its_line(tmp_path, monkeypatch, capsys):
    scenario = tmp_path / "mine.toml"
    scenario.write_text("first = 1\nsecond = 2\n")
    assert cedos_emu_status(monkeypatch, "run", scenario) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert all(line.startswith(f"cedos-emu: {scenario}:") for line in lines)
