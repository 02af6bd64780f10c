"""What others gave is printed without moving the cursor of who reads."""

import click
import pytest
from click.testing import CliRunner

from cedos.commands.console import render
from cedos.commands.console.program import Program
from cedos.errors import SessionError

HOSTILE = "gone\x1b[2J\x1b]0;owned\x07\rcedos: all is well\u202e"


def test_lines_stay_lines(capsys: pytest.CaptureFixture[str]) -> None:
    render.show([HOSTILE, "second"])
    first, second = capsys.readouterr().out.splitlines()
    assert first.isprintable()
    assert first.startswith("gone")
    assert second == "second"


def test_refusals_are_plain() -> None:
    @click.command(cls=Program)
    def program() -> None:
        raise SessionError(HOSTILE)

    result = CliRunner().invoke(program, prog_name="program")
    assert result.exit_code != 0
    assert all(line.isprintable() for line in result.stderr.split("\n"))
    assert "\x1b" not in result.output


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0000134, "0.0000134"), (3.14159, "3.14"), (46111.2, "46111"), (0.0, "0")],
)
def test_a_cost_is_no_power_of_ten(value: float, shown: str) -> None:
    assert render.cost(value) == shown
