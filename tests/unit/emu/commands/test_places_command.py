"""`cedos-emu places`: tables, checks that name every problem, pictures, and no matplotlib but there."""

import pytest
from click.testing import CliRunner

from cedos.errors import PlaceError
from emu.commands.places import command
from emu.places.check import check
from emu.places.places import load
from emu.places.synth import generate


@pytest.fixture
def folder(tmp_path):
    generate("walk-away", 7, 20, tmp_path)
    generate("static", 7, 15, tmp_path)
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(command, arguments)


def test_list_shows_every_place(folder):
    result = run("list", "--places", str(folder))
    assert result.exit_code == 0
    header, *rows = result.stdout.splitlines()
    assert header.split()[:3] == ["place", "scenario", "s"]
    assert rows[0].split()[:3] == ["walk-away-s7", "walk-away", "20"]
    assert rows[0].endswith("SYNTHETIC")
    assert len({row.index("SYNTHETIC") for row in rows[:2]}) == 1
    assert "2 places in" in result.stdout


def test_check_names_every_problem_with_file_and_line(folder):
    (folder / "wifi" / "walk-away-s7-wifi.trace.gz").write_bytes(b"not packed")
    (folder / "cellular" / "walk-away-s7-cellular.up.gz").unlink()
    (folder / "cellular" / "walk-away-s7-cellular.up").write_text("1\n9\n4\n")
    (folder / "cellular" / "static-s7-cellular.csv").write_text("t_s,cqi\n0,9\n1,high\n")
    with (folder / "places.csv").open("a") as file:
        file.write("ghost,x,maybe,yes,,nowhere,nothing,,,,\n")
    result = run("check", str(folder))
    assert isinstance(result.exception, PlaceError)
    assert "6 problems" in str(result.exception)
    for problem in (
        "places.csv:4: simultaneous is 'maybe'",
        "places.csv:4: no trace 'nowhere'",
        "places.csv:4: no trace 'nothing'",
        "walk-away-s7-wifi.trace.gz: ",
        "walk-away-s7-cellular.up:3: 4 after 9",
        "static-s7-cellular.csv:3: cqi is 'high'",
    ):
        assert problem in result.stdout


def test_synth_writes_a_collection(tmp_path):
    result = run(
        *("synth", "--kind", "station", "--seed", "4", "--count", "2"),
        *("--seconds", "12", "--out", str(tmp_path / "new")),
    )
    assert result.exit_code == 0
    assert list(load(tmp_path / "new")) == ["station-s4", "station-s5"]
    assert check(tmp_path / "new")[1] == []
    refused = run("synth", "--kind", "cruise", "--out", str(tmp_path))
    assert refused.exit_code == 2
    assert "walk-away" in refused.stderr


def described(folder, **cells):
    """A collection whose one place has these cells in places.csv."""
    row = {"place": "here", "wifi": "static-s7-wifi", "cellular": "static-s7-cellular"} | cells
    (folder / "places.csv").write_text(f"{','.join(row)}\n{','.join(row.values())}\n")
    return folder


@pytest.mark.parametrize("name", ["../../x", "a/b", "..", ".hidden"])
def test_a_place_whose_name_leads_elsewhere_is_refused(folder, name):
    with pytest.raises(PlaceError, match="would be no file's name"):
        load(described(folder, place=name))


def test_a_misspelt_column_is_named_and_ones_own_are_not(folder):
    described(folder)
    (folder / "wifi" / "static-s7-wifi.csv").write_text(
        "t_s,rsi_dbm,heart_rate\n" + "".join(f"{t},-60,71\n" for t in range(15))
    )
    said = run("check", str(folder)).stdout
    assert "static-s7-wifi.csv:1: nothing reads column 'rsi_dbm'; did you mean 'rssi_dbm'?" in said
    assert "heart_rate" not in said


def test_constant_rates_are_places_as_long_as_told(tmp_path):
    """A line alone is a rate for ever, as in Mahimahi's own traces."""
    for kind, name, text in (
        ("wifi", "twelve", "1\n"), ("wifi", "sixty", "1\n" * 5),
        ("wifi", "late", "20000\n" * 3), ("cellular", "lte", "4 \n8 \n12 \n"),
        ("cellular", "odd.down", "5\n139986\n"), ("cellular", "odd.up", "5\n140000\n"),
    ):  # fmt: skip
        (tmp_path / kind).mkdir(exist_ok=True)
        suffix = "" if "." in name else ".trace"
        (tmp_path / kind / f"{name}{suffix}").write_text(text)
    rows = [
        "place,wifi,cellular,common_s",
        "t,twelve,lte,",
        "s,sixty,lte,40",
        "o,twelve,odd,",
        "l,late,lte,",
    ]
    (tmp_path / "places.csv").write_text("\n".join(rows))
    result = run("check", str(tmp_path))
    assert result.exit_code == 0, result.output
    _, *rows = run("list", "--places", str(tmp_path)).stdout.splitlines()
    facts = {row.split()[0]: row.split()[1:] for row in rows[:3]}
    assert [facts[name][:2] for name in "tso"] == [
        ["1", "12.00"],
        ["40", "60.00"],
        ["139", "12.00"],
    ]
    assert [facts[name][3] for name in "tso"] == ["0.0%", "0.0%", "0.0%"]
    assert facts["s"][2] == "3.00"


def test_check_finds_files_that_disagree(folder):
    (folder / "wifi" / "static-s7-wifi.csv").write_text("t_s,cqi\n0,9\n1,8\n")
    figures, problems = check(folder)
    (problem,) = problems
    assert "static-s7-wifi.csv: has 2 s" in problem
    assert set(figures) == {"walk-away-s7", "static-s7"}
