"""`python -m emu.experiments.budgets`: what its users see."""

import json

from click.testing import CliRunner

from emu.experiments.budgets.__main__ import main
from emu.experiments.budgets.odd_months import ODD_MONTHS


def test_odd_months_are_listed_and_given_as_json() -> None:
    told = CliRunner().invoke(main, ["odd", "--people", "1", "--seed", "3", "--json"])
    assert told.exit_code == 0, told.output
    found = json.loads(told.stdout)
    assert list(found["months"]) == list(ODD_MONTHS)
    listed = CliRunner().invoke(main, ["odd", "--people", "1", "--seed", "3"])
    rows = [line.split() for line in listed.stdout.splitlines()]
    assert [row[0] for row in rows[1:]] == list(ODD_MONTHS)
    for name, *_, bought in rows[1:]:
        assert float(bought) == round(found["months"][name]["bought_of_best_share"], 2)
