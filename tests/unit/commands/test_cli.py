"""The command line itself: help, errors, exit status, and how quick it is."""

import importlib
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import click
import pytest

from cedos import errors
from cedos.commands.cedos import COMMANDS, ROOMS, main
from cedos.commands.console.manual import Manual
from cedos.errors import CedosError


def files_in(room: str) -> set[str]:
    folder = Path(importlib.import_module(room).__path__[0])
    return {path.stem.replace("_", "-") for path in folder.glob("[a-z]*.py")}


def test_every_file_is_a_command() -> None:
    programs = {
        script.name.removeprefix("cedos-")
        for script in entry_points(group="console_scripts")
        if script.value.startswith("cedos.commands.") and script.name != "cedos"
    }
    assert programs == files_in("cedos.commands.sessions") == {"cat", "get", "pod", "put", "serve"}
    assert files_in("cedos.commands.gateway") == set(ROOMS)
    assert files_in("cedos.commands") - {"cedos"} == set(COMMANDS) - set(ROOMS)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_a_manual_page(cedos: Any, name: str) -> None:
    result = cedos(name, "--help")
    assert result.exit_code == 0
    for section in (f"Usage: cedos {name}", "Options:", "Examples:", "Exit status:"):
        assert section in result.stdout
    command = main.get_command(click.Context(main), name)
    assert isinstance(command, Manual)
    assert any(f"cedos {name}" in line for line, _ in command.examples)
    assert len(command.help or "") > 100


def test_help_lists_every_command(cedos: Any) -> None:
    result = cedos("--help")
    for name, purpose in COMMANDS.items():
        assert f"  {name} " in result.stdout
        assert purpose in " ".join(result.stdout.split())


def test_a_misspelt_command_is_told_which_there_is(cedos: Any) -> None:
    refused = cedos("stauts")
    assert refused.exit_code == 2
    assert "No such command 'stauts'. Did you mean 'status'?" in refused.stderr


def test_help_imports_no_command() -> None:
    code = (
        "import sys; from cedos.commands.cedos import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'asyncio', 'aiohttp', 'msgspec', 'structlog', 'pyroute2', 'http.client'}\n"
        "sys.exit(' '.join(heavy & set(sys.modules)) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_asking_does_not_import_the_server() -> None:
    code = (
        "import sys; import cedos.commands.status\n"
        "heavy = {'asyncio', 'aiohttp', 'structlog', 'pyroute2', 'dbus_fast'}\n"
        "sys.exit(' '.join(heavy & set(sys.modules)) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_version(cedos: Any) -> None:
    assert cedos("--version").stdout.startswith("cedos, version ")


@pytest.mark.parametrize("arguments", [("nothing",), ("status", "--nothing"), ("example", "x")])
def test_wrong_usage(cedos: Any, arguments: tuple[str, ...]) -> None:
    assert cedos(*arguments).exit_code == 2


ALL_ERRORS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, CedosError)
]


@pytest.mark.parametrize("kind", ALL_ERRORS)
def test_an_error_is_its_message_and_its_exit_status(
    cedos: Any, monkeypatch: pytest.MonkeyPatch, kind: type[CedosError]
) -> None:
    def fail(*_: object) -> None:
        raise kind("file:1: wrong\nfile:2: wrong too")

    monkeypatch.setattr("cedos.commands.status.ControlClient", fail)
    result = cedos("status")
    assert result.exit_code == kind.exit_code
    assert result.stderr == "cedos: file:1: wrong\ncedos: file:2: wrong too\n"
    assert result.stdout == ""


def test_ctrl_c_is_no_traceback(cedos: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cedos.commands.status.ControlClient", interrupt)
    result = cedos("status")
    assert result.exit_code == 130
    assert "Traceback" not in result.output


def test_as_a_program(folders: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cedos.commands.cedos", "status"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 6
    assert done.stderr.startswith(f"cedos: no daemon answers on {folders}/run/control.sock")
    assert done.stderr.count("\n") == 1
