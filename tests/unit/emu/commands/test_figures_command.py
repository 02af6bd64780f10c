"""`cedos-emu figures`: from run folders to lines and a file."""

import json
import shutil

import pytest
from click.testing import CliRunner

from cedos.errors import DataSetError
from cedos.model import Direction
from emu.commands.figures import command
from emu.runs import runs, scenario
from emu.testbed.access import INTERFACES

POLICIES = ("wifi-first", "cedos")
LOAD = scenario.Load("x", "198.51.100.2", Direction.DOWN, 1000, 1000, slot_s=1.0)


@pytest.fixture
def run(tmp_path):
    """A finished run of one transfer for each policy: 4 s by Wi-Fi, 1 s by cedos."""
    wanted = scenario.Scenario(load=(LOAD,), place="walk-away-s7", policies=POLICIES)
    environment = {"duration_s": 8.0, "synthetic": True, "kernel": "6.1", "cores": 2, "git": {}}
    folder = runs.RunFolder.create(tmp_path / "run", wanted, environment)
    for table in runs.tables_of(wanted):
        folder.write_table(table, [])
    flows = [
        {
            "policy": policy, "repeat": 0, "number": 0, "direction": "down", "size_bytes": 1000,
            "mptcp": True, "planned_s": 0.0, "started_s": 0.0, "time_s": time_s, "censored": False,
            "network": "wifi",
        }
        for policy, time_s in zip(POLICIES, (4.0, 1.0), strict=True)
    ]  # fmt: skip
    folder.write_table("flows", flows)
    rates = [
        {
            "policy": policy, "repeat": 0, "at_s": at_s, "interface": interface,
            "received_bytes": int(at_s) * 1000, "sent_bytes": 0,
        }
        for policy in POLICIES
        for interface in INTERFACES.values()
        for at_s in (0.0, 8.0)
    ]  # fmt: skip
    folder.write_table("rates", rates)
    summaries = {name: {"censored": 0, "energy_j": 1.0, "cellular_mb": 0.0} for name in POLICIES}
    folder.write_json("summary.json", {"policies": summaries})
    return tmp_path / "run"


def test_a_set_is_said_and_written_with_where_it_comes_from(run, tmp_path):
    file = tmp_path / "new" / "figures.json"
    done = CliRunner().invoke(command, ["mobility", str(run), "--json", str(file)])
    assert done.exit_code == 0
    assert "walk-away-s7: wifi-first 4.00 s (1.00" in done.output
    assert "together, over the best fixed: wifi-first 1.00, cedos 0.25" in done.output
    found = json.loads(file.read_text())
    assert found["together"]["policies"]["cedos"]["over_best_fixed"] == 0.25
    (where,) = found["runs"]
    assert where == {
        "place": "walk-away-s7", "start_s": 0.0, "duration_s": 8.0, "repeats": 1, "kernel": "6.1",
        "cores": 2, "git": {},
    }  # fmt: skip


@pytest.mark.parametrize("name", ["calibration", "walk", "wget"])
def test_all_sets_print_lines(run, name):
    assert CliRunner().invoke(command, [name, str(run)]).exit_code == 0


@pytest.mark.parametrize("name", ["walk", "wget"])
def test_runs_of_one_place_are_repeats(run, tmp_path, name):
    file = tmp_path / "figures.json"
    shutil.copytree(run, tmp_path / "other")
    asked = [name, str(run), str(tmp_path / "other"), "--json", str(file)]
    assert CliRunner().invoke(command, asked).exit_code == 0
    twice = json.loads(file.read_text())
    assert CliRunner().invoke(command, [name, str(run), "--json", str(file)]).exit_code == 0
    once = json.loads(file.read_text())
    place = "walk-away-s7"
    if name == "walk":
        one, two = (each["places"][place]["policies"]["cedos"] for each in (once, twice))
        assert two["moved_each_s"] == 2 * one["moved_each_s"]
        assert two["mbps"] == one["mbps"]
    else:
        one, two = (each["by_place"][place]["cedos"] for each in (once, twice))
        assert two["n"] == 2 * one["n"]
        assert two["mean_mbps"] == pytest.approx(one["mean_mbps"])


def test_what_runs_lack_is_named(run, tmp_path):
    def refused(*arguments):
        done = CliRunner().invoke(command, list(arguments))
        assert isinstance(done.exception, DataSetError)
        return str(done.exception)

    other = tmp_path / "other"
    shutil.copytree(run, other)
    config = other / "config.toml"
    config.write_text(config.read_text().replace('"wifi-first"', '"mine"'))
    for name in ("mobility", "wget"):
        assert f"{other} has mine, cedos" in refused(name, str(other))
    file = tmp_path / "letter"
    file.write_text("dear")
    printed = refused("mobility", str(run), "--json", str(file / "x.json"))
    assert f"{file}: Not a directory" in printed
    assert "choose another --json" in printed
    assert file.read_text() == "dear"
