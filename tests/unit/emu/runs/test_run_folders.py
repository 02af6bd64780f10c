"""Run folders: where they can be made, and the messages where they cannot."""

import os
import resource
import shutil
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from cedos.errors import DataSetError
from cedos.storage import model_files
from emu import ROOT
from emu.commands.collect import command as collect
from emu.commands.figures import command as figures
from emu.commands.report import command as report
from emu.commands.run import command
from emu.data import datasets
from emu.places import places as collections
from emu.places import synth
from emu.runs import analysis, experiment, runs, scenario, series
from emu.runs.runs import claimed

WANTED = scenario.Scenario(page=(scenario.PageLoad("pages", sites=2),), name="here")
TRACES = ROOT / "traces"
REFUSED = "holds a finished run: choose another --out, or replace it with --force"


def finished(directory, wanted=WANTED):
    folder = runs.RunFolder.create(directory, wanted, {"duration_s": 8.0, "synthetic": False})
    for table in runs.tables_of(wanted):
        folder.write_table(table, [])
    folder.write_json("summary.json", {"policies": {}})
    (directory / "report.html").touch()
    return directory


def test_a_data_set_is_not_replaced_unasked(tmp_path):
    out = tmp_path / "mine.parquet"
    out.write_text("hours of work")
    refused = CliRunner().invoke(collect, ["--places", str(TRACES), "--out", str(out)])
    assert isinstance(refused.exception, DataSetError)
    assert "is there already" in str(refused.exception)
    assert out.read_text() == "hours of work"
    # What describes another one of that name is not replaced either; --force comes farther.
    (tmp_path / "its.environment.json").write_text("{}")
    other = ["--places", str(TRACES), "--place", "nowhere", "--out", str(tmp_path / "its.other")]
    assert "is there already" in str(CliRunner().invoke(collect, other).exception)
    assert "nowhere" in str(CliRunner().invoke(collect, [*other, "--force"]).exception)


@pytest.mark.parametrize("name", ["mine.csv", "mine.parquet"])
def test_a_link_is_replaced_and_not_followed(tmp_path, name):
    """Write into a stranger's folder: root's data set was written over any file of the host."""
    elsewhere, out = tmp_path / "passwd", tmp_path / name
    elsewhere.write_text("root's")
    out.symlink_to(elsewhere)
    datasets.write(out, [{"place": "here", "size_bytes": 5, "direction": "down", "t_wifi_s": 1.0}])
    assert datasets.read(out).times_s["wifi"].tolist() == [1.0]
    model_files.save(model_files.load(), out)
    assert elsewhere.read_text() == "root's"
    assert sorted(tmp_path.iterdir()) == [out, elsewhere]


def test_drawn_places_follow_no_link(tmp_path):
    """Their names are known before: a stranger had root write over any file of the host."""
    here, elsewhere = tmp_path / "here", tmp_path / "passwd"
    synth.generate("static", 1, 10, here)
    made = [path for path in here.rglob("*") if path.is_file() and path.name != "places.csv"]
    assert len(made) == 5
    elsewhere.write_text("root's")
    (here / "places.csv").unlink()
    (here / "places.csv").symlink_to(tmp_path / "absent")
    for path in made:
        path.unlink()
        path.symlink_to(elsewhere)
    synth.generate("static", 1, 10, here)
    assert elsewhere.read_text() == "root's"
    assert not (tmp_path / "absent").exists()
    assert not any(path.is_symlink() for path in made)


@pytest.mark.parametrize("name", ["config.toml", "environment.json", "summary.json"])
def test_a_run_folder_that_is_nested_too_deep_is_refused_in_a_line(tmp_path, name):
    folder = finished(tmp_path / "run")
    depth = 200_000
    start = "analysis = " if name == "config.toml" else ""
    (folder / name).write_text(f"{start}{'[' * depth}{']' * depth}\n")
    with pytest.raises(DataSetError, match=f"{name}: not a finished run"):
        runs.read(folder)
    refused = CliRunner().invoke(report, [str(folder)])
    assert isinstance(refused.exception, DataSetError)
    assert not analysis.is_analysis(folder / name)


@pytest.mark.parametrize("command", [report, figures], ids=["report", "figures"])
def test_a_file_of_some_kilobytes_takes_no_more_than_a_bound_of_memory(tmp_path, command):
    """7 kB of 400,000 rows, each with the same text of 100 kB, took more than 9 GB; here 6 would do."""
    file = finished(tmp_path / "run") / "logs" / "switches.parquet"
    text = pa.array(["x" * 100_000])
    texts = pa.DictionaryArray.from_arrays(np.zeros(60_000, np.int32), text)
    pq.write_table(pa.table({"what": texts, "to": texts}), file, compression="zstd")
    assert file.stat().st_size < 10_000
    before = resource.getrlimit(resource.RLIMIT_AS)
    name = ["mobility"] if command is figures else []
    refused = CliRunner().invoke(command, [*name, str(tmp_path / "run")])
    assert isinstance(refused.exception, DataSetError)
    assert "more than fits into 4 GB" in str(refused.exception)
    assert resource.getrlimit(resource.RLIMIT_AS) == before


@pytest.mark.parametrize(
    "environment",
    ["[]", "{}", '{"duration_s": "x", "synthetic": 0}', '{"duration_s": 3e12, "synthetic": 0}'],
)
def test_odd_figures_are_told_in_a_line(tmp_path, environment):
    folder = finished(tmp_path / "run")
    (folder / "environment.json").write_text(environment)
    (folder / "summary.json").write_text('{"policies": {"wifi-first": {"n": 0}}}')
    refused = CliRunner().invoke(report, [str(folder)])
    assert isinstance(refused.exception, DataSetError)
    assert "the files hold" in str(refused.exception)


@pytest.mark.parametrize("name", ["config.toml", "summary.json", "logs/rates.parquet"])
def test_a_pipe_in_a_run_folder_is_not_waited_for(tmp_path, name):
    file = finished(tmp_path / "run") / name
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(DataSetError, match="not a file"):
        runs.read(tmp_path / "run")


@pytest.mark.parametrize("scenario_file", ["demo", "delphi_correlations"])
def test_a_finished_run_is_not_replaced_unasked(tmp_path, scenario_file):
    summary = finished(tmp_path / "run") / "summary.json"
    before = summary.read_bytes()
    file = ROOT / "emu" / "experiments" / f"{scenario_file}.toml"
    arguments = [str(file), "--places", str(TRACES), "--out", str(tmp_path / "run")]
    refused = CliRunner().invoke(command, arguments)
    assert isinstance(refused.exception, DataSetError)
    assert REFUSED in str(refused.exception)
    assert summary.read_bytes() == before


def test_a_series_goes_on_and_replaces_no_other(tmp_path, monkeypatch):
    places = collections.load(TRACES)
    names = tuple(places)[:2]
    wanted = scenario.Scenario(page=WANTED.page, places=names, duration_s=5.0)
    first, second = series.expand(wanted, places)
    ran = []
    monkeypatch.setattr(series, "write", lambda *given: {})

    def stub(one, known, target, report):
        ran.append(one.place)
        finished(target, one)

    def run(out, **fields):
        series.run(wanted, places, out, lambda share, what: None, lambda line: None, **fields)

    monkeypatch.setattr(series.experiment, "run", stub)
    finished(tmp_path / first.place, first)
    run(tmp_path)
    assert ran == [second.place]
    finished(tmp_path / second.place)
    with pytest.raises(DataSetError, match=f"{second.place} {REFUSED}"):
        run(tmp_path)
    with pytest.raises(DataSetError, match=REFUSED):
        run(tmp_path / second.place)
    assert ran == [second.place]
    run(tmp_path, force=True)
    assert ran == [second.place, second.place]
    # Nothing is left of a single run in whose place a series stands: it goes on like any other.
    for _ in range(2):
        run(tmp_path / second.place, force=True)
        assert {each.name for each in (tmp_path / second.place).iterdir()} == set(names)
    assert ran[2:] == [first.place, second.place]


def test_two_runs_do_not_write_into_one_folder(tmp_path, monkeypatch):
    """Also of a folder that another run has emptied for itself."""
    out = tmp_path / "run"
    finished(out)
    holding = (
        "import sys, time; from pathlib import Path; from emu.runs import runs\n"
        "with runs.claimed(Path(sys.argv[1])):\n"
        "    runs.make_way(Path(sys.argv[1])); print(flush=True); time.sleep(60)"
    )
    monkeypatch.setattr(experiment, "_run", lambda *given: pytest.fail("it was begun"))
    monkeypatch.setattr(analysis, "carry_out", lambda *given: pytest.fail("it was begun"))
    places = collections.load(TRACES)
    series_of = scenario.Scenario(page=WANTED.page, places=tuple(places)[:1], duration_s=5.0)
    with subprocess.Popen(
        [sys.executable, "-c", holding, str(out)], stdout=subprocess.PIPE
    ) as first:
        try:
            first.stdout.readline()
            for begin in (
                lambda: experiment.run(WANTED, places, out, lambda share, what: None),
                lambda: analysis.run(analysis.Analysis("correlations"), out),
                lambda: series.run(series_of, places, out, lambda share, what: None),
            ):
                with pytest.raises(DataSetError, match="another run is writing to"):
                    begin()
        finally:
            first.kill()
    # Its claim dies with it.
    with claimed(out):
        pass


def test_a_broken_place_does_not_block_the_others(tmp_path, monkeypatch):
    folder = tmp_path / "places"
    shutil.copytree(TRACES, folder)
    listed = (folder / "places.csv").read_text().splitlines()
    # One whose row names no trace, one whose trace is none, one that is sound.
    (folder / "places.csv").write_text("\n".join([listed[0], *listed[1:4]]) + "\n")
    known = collections.load(folder)
    row, trace, sound = known
    names = dict(zip(listed[0].split(","), listed[1].split(","), strict=False))
    next((folder / "wifi").glob(f"{names['wifi']}.*trace*")).unlink()
    path = known[trace].wifi.down_path
    path.unlink()
    path.with_name(path.name.removesuffix(".gz")).write_text("5\n3\n")
    known = collections.load(folder)
    wanted = scenario.Scenario(page=WANTED.page, places=(row, trace, sound), duration_s=5.0)
    ran = []
    failed = {}
    told = []

    def write(done, file, left_out):
        failed.update(left_out)
        return {}

    def stub(one, known, target, report):
        assert known[one.place].wifi.down
        ran.append(one.place)
        finished(target, one)

    monkeypatch.setattr(series, "write", write)
    monkeypatch.setattr(series.experiment, "run", stub)
    series.run(wanted, known, tmp_path / "out", lambda share, what: None, told.append)
    assert ran == [sound]
    assert set(failed) == {row, trace}
    assert "no trace" in failed[row]
    assert "must not decrease" in failed[trace]
    assert any(f"{row} is left out" in line for line in told)


def test_a_tree_is_modified_by_its_code_and_not_by_results(tmp_path, monkeypatch):
    result = tmp_path / "notebooks" / "results" / "a.json"
    result.parent.mkdir(parents=True)
    for file in (result, tmp_path / "code.py"):
        file.write_text("1")
    for words in (
        ["git", "init", "-q"],
        ["git", "add", "."],
        ["git", "-c", "user.name=x", "-c", "user.email=x@x", "commit", "-q", "-m", "first"],
    ):
        subprocess.run(words, cwd=tmp_path, check=True)
    monkeypatch.setattr(runs, "ROOT", tmp_path)
    result.write_text("2")
    assert runs.describe()["git"]["modified"] is False
    (tmp_path / "code.py").write_text("2")
    assert runs.describe()["git"]["modified"] is True


def test_arguments_name_no_place_of_this_machine(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["cedos-emu", "run", "--out", str(tmp_path / "a"), "p02"])
    assert runs.describe()["arguments"] == ["run", "--out", "a", "p02"]
