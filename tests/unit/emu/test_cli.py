"""`cedos-emu`: commands are found by their files, errors are one line with a status."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from emu import cli


def test_help_names_every_command_and_imports_none() -> None:
    script = (
        "import sys; from emu import cli\n"
        "try: cli.main()\n"
        "finally: print([m for m in sys.modules if m.startswith('emu.commands.')], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "--help"], capture_output=True, text=True, check=True
    )
    commands = {path.stem for path in Path(cli.__file__).with_name("commands").glob("[a-z]*.py")}
    assert "shell" in commands
    listed = done.stdout.partition("Commands:")[2]
    for name in commands:
        assert f"  {name.replace('_', '-')} " in listed
    assert done.stderr.strip() == "[]"


def test_an_unknown_command_is_refused() -> None:
    done = CliRunner().invoke(cli.group, ["nonsense"])
    assert done.exit_code == 2
    assert "nonsense" in done.output


def test_errors_are_one_line_and_their_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        sys, "argv", ["cedos-emu", "shell", "--place", "x", "--places", str(tmp_path), "true"]
    )
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith("cedos-emu: ")
    assert "places.csv" in said
    assert said.count("\n") == 1
