"""Run folders: where they can be made, and the messages where they cannot."""

import errno
import os
import resource
import shutil
import struct
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from matplotlib.figure import Figure

from cedos.errors import CedosError, DataSetError
from cedos.storage import model_files
from emu import ROOT, bench, console
from emu.commands.age import command as age
from emu.commands.bench import command as bench_command
from emu.commands.collect import command as collect
from emu.commands.figures import command as figures
from emu.commands.observed import command as observed
from emu.commands.places import command as places_command
from emu.commands.report import command as report
from emu.commands.run import command
from emu.commands.train import command as train
from emu.data import datasets
from emu.experiments.cbsp.__main__ import main as cbsp
from emu.experiments.cedos.__main__ import main as cedos_tables
from emu.places import places as collections
from emu.places import synth
from emu.runs import analysis, experiment, page, runs, scenario, series
from emu.runs.runs import claimed

WANTED = scenario.Scenario(page=(scenario.PageLoad("pages", sites=2),), name="here")
TRACES = ROOT / "traces"
REFUSED = "holds a finished run: choose another --out, or remove it"
NONE = 0xFFFFFFFF
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
ALICE, BOB = 51_234, 51_235
# u::rwx, u:ALICE:rwx, g::r-x, m::rwx, o::r-x
ACCESS = struct.pack(
    "<I" + 5 * "HHI", 2, 1, 7, NONE, 2, 7, ALICE, 4, 5, NONE, 16, 7, NONE, 32, 5, NONE
)


@pytest.fixture(autouse=True)
def code_of_roots_own(monkeypatch):
    """Have the code lie where root alone may write: many tests are about users who may not."""
    monkeypatch.setattr(console, "ROOT", Path("/usr"))


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
    # What describes another one of that name is not replaced either.
    (tmp_path / "its.environment.json").write_text("{}")
    other = ["--places", str(TRACES), "--place", "nowhere", "--out", str(tmp_path / "its.other")]
    assert "is there already" in str(CliRunner().invoke(collect, other).exception)


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


def test_a_finished_run_is_not_replaced_unasked(tmp_path):
    summary = finished(tmp_path / "run") / "summary.json"
    before = summary.read_bytes()
    arguments = ["--places", str(TRACES), "--out", str(tmp_path / "run")]
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

    def stub(one, known, target, report):
        ran.append(one.place)
        finished(target, one)

    def run(out):
        series.run(wanted, places, out, lambda share, what: None, lambda line: None)

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
    # Nothing is left of a single run in whose place a series stands: it goes on like any other.
    (tmp_path / second.place / "summary.json").unlink()
    for _ in range(2):
        run(tmp_path / second.place)
        assert {each.name for each in (tmp_path / second.place).iterdir()} == set(names)
    assert ran[1:] == [first.place, second.place]


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
    places = collections.load(TRACES)
    series_of = scenario.Scenario(page=WANTED.page, places=tuple(places)[:1], duration_s=5.0)
    with subprocess.Popen(
        [sys.executable, "-c", holding, str(out)], stdout=subprocess.PIPE
    ) as first:
        try:
            first.stdout.readline()
            for begin in (
                lambda: experiment.run(WANTED, places, out, lambda share, what: None),
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
    told = []

    def stub(one, known, target, report):
        assert known[one.place].wifi.down
        ran.append(one.place)
        finished(target, one)

    monkeypatch.setattr(series.experiment, "run", stub)
    series.run(wanted, known, tmp_path / "out", lambda share, what: None, told.append)
    assert ran == [sound]
    assert any(line.startswith(f"{row} is left out: ") and "no trace" in line for line in told)
    assert any(f"{trace} is left out" in line and "must not decrease" in line for line in told)


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


def refused_words(command, arguments):
    refused = CliRunner().invoke(command, arguments)
    assert isinstance(refused.exception, CedosError), refused.output
    return str(refused.exception)


@AS_ROOT
@pytest.mark.parametrize(
    ("program", "option", "arguments"),
    [
        (command, "--out", ["--engine", "simulator", "--policy", "wifi-first", "--quick"]),
        (command, "--json", ["--engine", "simulator", "--policy", "wifi-first", "--quick"]),
        (bench_command, "--json", ["decision"]),
        (age, "--out", [str(TRACES / "transfers.parquet")]),
        (collect, "--out", ["--places", str(TRACES), "--engine", "simulator"]),
        (observed, "--out", [str(TRACES / "transfers.parquet")]),
        (places_command, "--out", ["synth", "--kind", "static", "--seconds", "12"]),
        (train, "--out", [str(TRACES / "transfers.parquet"), "--kind", "last-rate"]),
        (cbsp, "--out", ["cost"]),
        (cedos_tables, "--out", ["figure6"]),
    ],
)
def test_root_writes_into_no_folder_of_another_user(
    tmp_path, monkeypatch, program, option, arguments
):
    """A link that came while root wrote there: root wrote over, and removed, any file of the host."""
    monkeypatch.setattr(bench, "run", lambda *given: {"p50_us": 1.0})
    places = ["--places", str(TRACES)] if program is command else []
    alice = tmp_path / "alice"
    alice.mkdir()
    os.chown(alice, ALICE, ALICE)
    words = refused_words(program, [*arguments, *places, option, str(alice / "runs" / "one")])
    assert f"{alice} belongs to user {ALICE}" in words
    assert f"choose another {option}" in words
    assert not list(alice.iterdir())


@AS_ROOT
@pytest.mark.parametrize("of", ["report", "figures", "data", "default"])
def test_root_writes_beside_nothing_of_another_user(tmp_path, monkeypatch, of):
    alice = tmp_path / "alice"
    folder = finished(alice / "run")
    os.chown(alice, ALICE, ALICE)
    before = sorted(alice.rglob("*"))
    monkeypatch.chdir(alice)
    write = {
        "report": lambda: page._picture(Figure(), folder / "timeline.svg", ""),
        "figures": lambda: console.write(Path("run/figures.json"), "{}", "--json"),
        "data": lambda: datasets.write(folder / "x.csv", [{"size_bytes": 5}]),
        "default": lambda: runs.fresh("demo"),
    }
    with pytest.raises(DataSetError, match=f"{alice} belongs to user {ALICE}"):
        write[of]()
    assert sorted(alice.rglob("*")) == before


@AS_ROOT
@pytest.mark.parametrize(
    ("change", "refused"),
    [
        (lambda folder: folder.chmod(0o757), "may be changed by users beside root"),
        (lambda folder: folder.chmod(0o1757), ""),
        (lambda folder: (os.chown(folder, 0, ALICE), folder.chmod(0o775)), "may be changed"),
        (lambda folder: folder.chmod(0o775), ""),
        (lambda folder: os.setxattr(folder, "system.posix_acl_access", ACCESS), "may be changed"),
        (lambda folder: (folder / "one").mkdir(), ""),
        (lambda folder: ((folder / "one").mkdir(), os.chown(folder / "one", ALICE, 0)),
         f"one belongs to user {ALICE}"),
        (lambda folder: (folder / "one").symlink_to(folder.parent / "own"), ""),
        (lambda folder: (folder / "one").symlink_to("../own/../alice"),
         f"alice belongs to user {ALICE}"),
        (lambda folder: (folder / "one").symlink_to("one"), "choose another --out"),
        (lambda folder: (folder / "one").symlink_to("nothing"), "choose another --out"),
        (lambda folder: (folder.chmod(0o1777), (folder / "one").symlink_to("../own"),
                         os.chown(folder / "one", ALICE, 0, follow_symlinks=False)),
         f"one belongs to user {ALICE}"),
    ],
    ids=["written by all", "sticky", "of a group", "of root's group", "with an access list", "there",
         "taken before", "a link", "a link to another user's", "a ring", "a link to nothing",
         "another user's link"],
)  # fmt: skip
def test_whose_folders_root_writes_into(tmp_path, monkeypatch, change, refused):
    monkeypatch.delenv("SUDO_UID", raising=False)
    for name in ("folder", "own", "alice"):
        (tmp_path / name).mkdir()
    os.chown(tmp_path / "alice", ALICE, 0)
    change(tmp_path / "folder")
    out = tmp_path / "folder" / "one" / "run"
    if not refused:
        finished(out)
        with claimed(out):
            return
    with pytest.raises(DataSetError, match=refused), claimed(out):
        pass
    assert not list((tmp_path / "alice").iterdir())


@AS_ROOT
def test_root_writes_where_who_became_root_or_owns_the_code_may(tmp_path, monkeypatch):
    """`sudo ./run` in a developer's own clone: who gave root its code or its command has root anyway."""
    alice = tmp_path / "alice"
    alice.mkdir()
    os.chown(alice, ALICE, ALICE)
    alice.chmod(0o775)  # as many distributions have it, by a group of the user's own
    for number, name in ((BOB, "x"), (ALICE, "")):
        monkeypatch.setenv("SUDO_UID", str(number))
        if name:
            with pytest.raises(DataSetError, match="belongs to user"), claimed(alice / "run"):
                pass
        else:
            with claimed(alice / "run"):
                pass
    monkeypatch.delenv("SUDO_UID")
    monkeypatch.setattr(console, "ROOT", alice)
    finished(alice / "other")
    with claimed(alice / "other"):
        pass
    # Others than root are led to what they may write in any case.
    monkeypatch.undo()
    monkeypatch.setattr(os, "geteuid", lambda: BOB)
    with claimed(alice / "run"):
        pass


@AS_ROOT
@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777], ids=["all", "a group", "sticky"])
def test_who_may_change_the_code_may_lead_root(tmp_path, monkeypatch, mode):
    """A clone that a virtual machine shares, or a group has: root could not run the emulator there."""
    monkeypatch.delenv("SUDO_UID", raising=False)
    code, team, other = (tmp_path / name for name in ("code", "team", "other"))
    for folder, of in ((code, ALICE), (team, ALICE), (other, BOB)):
        folder.mkdir()
        os.chown(folder, 0, of)
        folder.chmod(0o775)
    code.chmod(mode)
    monkeypatch.setattr(console, "ROOT", code)
    allowed = {0o777: (code, team, other), 0o775: (code, team), 0o1777: (code,)}[mode]
    for folder in (code, team, other):
        with (
            nullcontext() if folder in allowed else pytest.raises(DataSetError, match="beside root")
        ):
            console.make_folder(folder / "runs", "--out")
    if mode == 0o775:
        for listed in (team, code):
            os.setxattr(listed, "system.posix_acl_access", ACCESS)
            with pytest.raises(DataSetError, match="beside root"):
                console.make_folder(team / "runs", "--out")
            os.removexattr(listed, "system.posix_acl_access")


@AS_ROOT
@pytest.mark.parametrize("of", ["all", "another user"])
def test_who_may_replace_the_code_may_lead_root(tmp_path, monkeypatch, of):
    """A clone below a folder of another user, or of all (`/data`): root could not run the emulator."""
    monkeypatch.delenv("SUDO_UID", raising=False)
    data = tmp_path / "data"
    code = data / "code"
    code.mkdir(parents=True)
    os.chown(code, ALICE, ALICE)
    os.chown(data, BOB if of == "another user" else 0, 0)
    data.chmod(0o777 if of == "all" else 0o755)
    with pytest.raises(DataSetError, match="beside root" if of == "all" else "belongs to user"):
        console.make_folder(code / "runs", "--out")
    monkeypatch.setattr(console, "ROOT", code)
    console.make_folder(code / "runs", "--out")
    (code / "bobs").mkdir()
    os.chown(code / "bobs", BOB, BOB)
    with pytest.raises(DataSetError, match="belongs to user"):
        console.make_folder(code / "bobs" / "runs", "--out")


@AS_ROOT
def test_root_writes_where_a_file_system_knows_no_access_lists(tmp_path, monkeypatch):
    """Many of FUSE refuse to list them: nothing could be written there."""

    def refuse(_path):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "listxattr", refuse)
    console.make_folder(tmp_path / "runs", "--out")


@pytest.mark.parametrize("name", ["/dev/null", "/dev/stdout", "/dev/made-up", "pipe"])
def test_no_file_takes_the_place_of_a_device(tmp_path, monkeypatch, name):
    """`--json /dev/null`: the host had a plain file of that name from then on."""
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(Path, "replace", lambda *given: pytest.fail("it was replaced"))
    monkeypatch.setattr(Path, "open", lambda *given: pytest.fail("it was begun"))
    with pytest.raises(DataSetError, match="cannot be written: choose another --json"):
        console.write(tmp_path / name, "{}", "--json")
