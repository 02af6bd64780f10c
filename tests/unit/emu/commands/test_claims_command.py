"""`cedos-emu claims` lists, shows, filters and checks."""

import pytest
from click.testing import CliRunner

from emu.commands import cedos_emu


def claims(*arguments, columns=80):
    return CliRunner().invoke(
        cedos_emu.group, ["claims", *arguments], env={"COLUMNS": str(columns)}
    )


def test_the_check_passes():
    done = claims("--check")
    assert done.exit_code == 0, done.output
    assert "numbers are those of their files" in done.output


@pytest.mark.parametrize("columns", [80, 120])
def test_the_table_fits_the_terminal(columns):
    done = claims("--paper", "delphi", columns=columns)
    assert done.exit_code == 0
    assert max(map(len, done.output.splitlines())) <= columns
    assert done.output.index("reversed") < done.output.index("reproduced")


def test_one_claim_is_shown_with_everything_that_is_known_of_it():
    done = claims("dtp-ranges")
    for said in ("curl", "reversed", "sessions_dtp.json", "cedos-emu run", "/sizes/"):
        assert said in done.output
    assert max(map(len, done.output.splitlines())) <= 200
