"""The command line itself: help, errors, exit status, and how quick it is."""

import errno
import importlib
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from cedos import errors
from cedos.commands.cedos import COMMANDS, ROOMS, main
from cedos.commands.console.manual import BIT_RATE, DURATION, SIZE, Manual, Program
from cedos.errors import CedosError, SessionError


def files_in(room):
    folder = Path(importlib.import_module(room).__path__[0])
    return {path.stem.replace("_", "-") for path in folder.glob("[a-z]*.py")}


def test_every_file_is_a_command():
    programs = {
        script.name.removeprefix("cedos-")
        for script in entry_points(group="console_scripts")
        if script.value.startswith("cedos.commands.") and script.name != "cedos"
    }
    assert programs == files_in("cedos.commands.sessions") == {"get", "pod", "put", "serve"}
    assert files_in("cedos.commands.gateway") == set(ROOMS)
    assert files_in("cedos.commands") - {"cedos"} == set(COMMANDS) - set(ROOMS)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_a_manual_page(cedos, name):
    result = cedos(name, "--help")
    assert result.exit_code == 0
    for section in (f"Usage: cedos {name}", "Options:", "Examples:", "Exit status:"):
        assert section in result.stdout
    command = main.get_command(click.Context(main), name)
    assert isinstance(command, Manual)
    assert any(f"cedos {name}" in line for line, _ in command.examples)
    assert len(command.help or "") > 100


def every_command():
    """Yield all commands, subcommands and programs with their names as they are typed."""
    context = click.Context(main)
    for name in COMMANDS:
        command = main.get_command(context, name)
        assert command is not None
        yield f"cedos {name}", command
        if isinstance(command, click.Group):
            for sub in command.list_commands(context):
                found = command.get_command(context, sub)
                assert found is not None
                yield f"cedos {name} {sub}", found
    for name in sorted(files_in("cedos.commands.sessions")):
        module = importlib.import_module(f"cedos.commands.sessions.{name}")
        program = module.main if name == "cat" else module.command
        yield f"cedos-{name}", program


@pytest.mark.parametrize(("typed", "command"), list(every_command()))
def test_every_help_begins_with_a_verb_and_has_an_example(typed, command):
    assert isinstance(command, Manual)
    assert any(typed in line for line, _ in command.examples), "an example of this command itself"
    help_text = command.help or ""
    assert not re.match(r"\w+s\b", help_text), f"not in the imperative: {help_text[:40]}"
    options = [each.help or "" for each in command.params if isinstance(each, click.Option)]
    for text in (help_text, *options, *(what for _, what in command.examples)):
        vague = re.search(r"\b(whoever|nobody|somebody|anybody|whosever)\b", text, re.IGNORECASE)
        assert vague is None, text


def test_help_lists_every_command(cedos):
    result = cedos("--help")
    for name, purpose in COMMANDS.items():
        assert f"  {name} " in result.stdout
        assert purpose in " ".join(result.stdout.split())


def test_a_misspelt_command_is_told_which_there_is(cedos):
    refused = cedos("stauts")
    assert refused.exit_code == 2
    assert "No such command 'stauts'. Did you mean 'status'?" in refused.stderr


HELP = "from cedos.commands.cedos import main\ntry: main(['--help'])\nexcept SystemExit: pass"


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        (HELP, {"asyncio", "aiohttp", "msgspec", "structlog", "pyroute2", "http.client"}),
        (
            "import cedos.commands.status",
            {"asyncio", "aiohttp", "structlog", "pyroute2", "dbus_fast"},
        ),
    ],
    ids=["help", "status"],
)
def test_help_imports_no_command_and_asking_no_server(code, heavy):
    code += f"\nimport sys; sys.exit(' '.join({heavy} & set(sys.modules)) or None)"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_version(cedos):
    assert cedos("--version").stdout.startswith("cedos, version ")


ALL_ERRORS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, CedosError)
]


@pytest.mark.parametrize("kind", ALL_ERRORS)
def test_an_error_is_its_message_and_its_exit_status(cedos, monkeypatch, kind):
    def fail(*_):
        raise kind("file:1: wrong\nfile:2: wrong too")

    monkeypatch.setattr("cedos.commands.status.ControlClient", fail)
    result = cedos("status")
    assert result.exit_code == kind.exit_code
    assert result.stderr == "cedos: file:1: wrong\ncedos: file:2: wrong too\n"
    assert result.stdout == ""


def test_ctrl_c_is_no_traceback(cedos, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("cedos.commands.status.ControlClient", interrupt)
    result = cedos("status")
    assert result.exit_code == 130
    assert "Traceback" not in result.output


def test_as_a_program(folders):
    done = subprocess.run(
        [sys.executable, "-m", "cedos.commands.cedos", "status"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 6
    assert done.stderr.startswith(f"cedos: no daemon answers on {folders}/run/control.sock")
    assert done.stderr.count("\n") == 1


def failing(error):
    @click.command(cls=Program)
    def program():
        raise error

    return program


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOSPC, errno.EROFS])
def test_a_line_and_a_status(number):
    error = OSError(number, "too bad", "/a/file")
    result = CliRunner().invoke(failing(error), prog_name="program")
    assert (result.exit_code, result.stderr) == (1, "program: /a/file: too bad\n")


def test_a_full_disk_behind_a_command():
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "cedos", "example", "config"],
            check=False,
            stdout=full,
            stderr=subprocess.PIPE,
        )
    assert done.returncode == 1
    assert done.stderr.decode() == "cedos: No space left on device\n"


HOSTILE = "gone\x1b[2J\x1b]0;owned\x07\rcedos: all is well\u202e"


def test_refusals_are_plain():
    @click.command(cls=Program)
    def program():
        raise SessionError(HOSTILE)

    result = CliRunner().invoke(program, prog_name="program")
    assert result.exit_code != 0
    assert all(line.isprintable() for line in result.stderr.split("\n"))
    assert "\x1b" not in result.output


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        *((SIZE, "3000", 3000), (SIZE, "20kB", 20_000), (SIZE, "1.5GB", 1_500_000_000)),
        *((SIZE, "2M", 2_000_000), (SIZE, "7 B", 7), (DURATION, "500ms", 0.5)),
        *((BIT_RATE, "640k", 640e3), (BIT_RATE, "2.5M", 2.5e6), (BIT_RATE, "640kbit/s", 640e3)),
        (BIT_RATE, "1 Gbps", 1e9),
    ],
)
def test_amounts(kind, text, value):
    assert kind.convert(text, None, None) == value


@pytest.mark.parametrize(
    ("kind", "texts", "said"),
    [
        (SIZE, "|0|-1|big|1e3|1 PB|9999999TB|3kb", "is not a size such as"),
        (DURATION, "|0|-1s|soon|1y", "is no duration such as"),
        (BIT_RATE, "|0|999|fast|640 kB|11G", "is not a bit rate such as"),
    ],
)
def test_what_is_no_amount(kind, texts, said):
    for text in texts.split("|"):
        with pytest.raises(click.BadParameter, match=said):
            kind.convert(text, None, None)


def test_others_are_faults_of_ours():
    result = CliRunner().invoke(failing(OSError(errno.EBADF, "bad")), prog_name="program")
    assert isinstance(result.exception, OSError)
