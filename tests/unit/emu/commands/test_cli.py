"""`cedos-emu`: commands are found by their files, errors are one line with a status."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from emu.commands import cedos_emu
from emu.places import places

ROOT = Path(__file__).parents[4]
COMMANDS = ("shell", "collect")


def test_help_names_every_command_and_imports_none():
    script = (
        "import sys; from emu.commands import cedos_emu\n"
        "try: cedos_emu.main()\n"
        "finally: print([m for m in sys.modules if m.startswith('emu.commands.')"
        " and not m.endswith('.cedos_emu')], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "--help"], capture_output=True, text=True, check=True
    )
    commands = {path.stem for path in Path(cedos_emu.__file__).parent.glob("[a-z]*.py")}
    commands.remove("cedos_emu")
    assert "shell" in commands
    listed = done.stdout.partition("Commands:")[2]
    for name in commands:
        assert f"  {name} " in listed
    assert done.stderr.strip() == "[]"


def test_examples_name_places_that_come_with_the_repository():
    known = places.load(ROOT / "traces")
    texts = [
        (ROOT / "README.md").read_text(),
        *(CliRunner().invoke(cedos_emu.group, [each, "--help"]).output for each in COMMANDS),
    ]
    found = re.findall(r"--places (?:traces|my-walks) --place (\S+)", "\n".join(texts))
    assert len(found) >= 5
    assert [name for name in found if name not in known] == []


def test_errors_are_one_line_and_their_status(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        sys, "argv", ["cedos-emu", "shell", "--place", "x", "--places", str(tmp_path), "true"]
    )
    with pytest.raises(SystemExit) as stopped:
        cedos_emu.main()
    assert stopped.value.code == 1
    output = capsys.readouterr().err
    assert output.startswith("cedos-emu: ")
    assert "places.csv" in output
    assert output.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [["places", "list"], ["train", "x.parquet", "--out", "y"], ["run"]]
)
def test_an_installation_without_extras_says_so(arguments):
    modules = ["matplotlib", "numpy", "pyarrow", "rich", "sklearn", "threadpoolctl", "tomli_w"]
    script = (
        f"import sys; sys.modules.update(dict.fromkeys({modules}))\n"
        "from emu.commands import cedos_emu; cedos_emu.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 4
    assert "cedos-emu: the Python package " in done.stderr
    assert "pip install '.[emu]'" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("text", ["inf:down", "nan", "x:up", "3000:sideways", "0", "-3:up"])
def test_a_size_that_is_none_is_refused_in_a_line(text):
    done = CliRunner().invoke(
        cedos_emu.group, ["collect", "--out", "x.parquet", "--places", ".", f"--size={text}"]
    )
    assert done.exit_code == 2
    assert f"'--size': '{text}'" in done.output
