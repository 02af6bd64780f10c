"""Names from elsewhere cannot move the cursor: every print goes through one function (`test_house`)."""

import io
import json
import logging

import click
import pytest
import structlog
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from cedos import logs
from cedos.apps.files.server_link import Progress
from cedos.commands.console import render
from cedos.commands.console.manual import Program, say
from cedos.commands.console.progress import ProgressLine
from cedos.commands.console.transfers import summary
from cedos.commands.doctor import _line
from cedos.doctor import Finding, FindingState
from cedos.errors import CedosError
from cedos.plain_text import plain, plain_json
from emu import terminal

HOSTILE = "a\x1b[2J\x9b31m\u202eb\nc\r\x07\t\udcff\u2028"


def is_plain(text, lines):
    found = text.rstrip("\n").split("\n")
    return len(found) == lines and all(each.isprintable() for each in found)


@given(st.text(max_size=40))
def test_plain_text_prints_in_one_line(text):
    assert plain(text).isprintable()
    assert len(plain(text)) == len(text)


@given(st.recursive(st.text(max_size=20) | st.none() | st.integers(), st.lists, max_leaves=8))
@pytest.mark.parametrize("indent", [0, 2])
def test_plain_json_means_the_same(indent, value):
    text = plain_json(value, indent=indent)
    assert json.loads(text) == value
    assert text.replace("\n", "").isprintable()


def test_commands_print_plainly(capsys):
    def said():
        out, err = capsys.readouterr()
        return out + err

    render.echo(HOSTILE)
    assert is_plain(said(), 1)
    render.show([HOSTILE, HOSTILE], err=True)
    assert is_plain(said(), 2)
    render.print_json({"name": HOSTILE})
    text = said()
    assert is_plain(text, 3)
    assert json.loads(text) == {"name": HOSTILE}
    say("cedos-get", CedosError(HOSTILE.replace("\n", "").replace("\r", "")))
    assert "\x1b" not in said()
    fact = {"bytes": 1, "here_before_bytes": 0, "sessions": 1, "seconds": 1.0}
    render.echo(summary(fact, HOSTILE))
    assert is_plain(said(), 1)
    found = Finding("wifi", FindingState.LIMITED, HOSTILE, lost=HOSTILE, remedy=HOSTILE)
    assert all(each.isprintable() for each in _line(found, 4, coloured=False).split("\n"))
    terminal._lines(HOSTILE)(1.0, HOSTILE)
    assert is_plain(said(), 1)


def test_a_line_of_progress_is_plain():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    screen = Terminal()
    progress = Progress(have_bytes=1, size_bytes=2, state=HOSTILE)
    for doing in (None, HOSTILE):
        ProgressLine(HOSTILE, progress, quiet=False, out=screen).draw(doing)
    drawn = screen.getvalue().split("\r\033[K")[1:]
    assert len(drawn) == 2
    assert all(each.isprintable() and each.startswith("a") for each in drawn)


def test_errors_of_the_command_line_are_plain():
    @click.command("x", cls=Program)
    @click.argument("files", nargs=-1)
    @click.option("--number", type=int)
    def command(files, number):
        raise click.UsageError(f"{files[0]} is a folder")

    name = HOSTILE.replace("\udcff", "").replace("\n", "")
    for arguments in ([name], ["--number", name], ["--none" + name]):
        result = CliRunner().invoke(command, arguments)
        assert result.exit_code == 2
        assert all(each.isprintable() for each in result.output.splitlines())


@pytest.mark.parametrize("form", ["console", "json"])
def test_logs_are_plain(form):
    root, stream = logging.getLogger(), io.StringIO()
    before, level = root.handlers[:], root.level
    try:
        logs.configure("info", form, stream)
        log = structlog.get_logger("x")
        log.info("kept", path=HOSTILE, list=[HOSTILE], **{HOSTILE: 1})
        try:
            raise CedosError(HOSTILE)
        except CedosError:
            log.error("failed", exc_info=True)
        logging.getLogger("other").warning("odd %s", HOSTILE)
    finally:
        root.handlers[:] = before
        root.setLevel(level)
        structlog.reset_defaults()
    lines = stream.getvalue().splitlines()
    assert len(lines) >= 3
    assert all(each.isprintable() for each in lines)
