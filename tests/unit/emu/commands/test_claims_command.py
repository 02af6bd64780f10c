"""`cedos-emu claims` lists, shows, filters and checks."""

import json

from click.testing import CliRunner, Result

from emu.claims import claim_list
from emu.commands import cedos_emu


def claims(*arguments: str, columns: int = 80) -> Result:
    return CliRunner().invoke(
        cedos_emu.group, ["claims", *arguments], env={"COLUMNS": str(columns)}
    )


def test_the_check_passes() -> None:
    done = claims("--check")
    assert done.exit_code == 0, done.output
    assert "numbers are those of their files" in done.output


def test_a_name_that_is_not_listed_is_refused() -> None:
    done = claims("nothing")
    assert done.exit_code != 0


def test_json_has_every_claim() -> None:
    assert len(json.loads(claims("--json").output)) == len(claim_list.read().claim)
