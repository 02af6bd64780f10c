"""Where run folders can be made, and what is said where they cannot."""

from pathlib import Path

import pytest

from cedos.errors import DataSetError
from emu.runs import runs, scenario

WANTED = scenario.Scenario(page=(scenario.PageLoad("pages", sites=2),), name="here")


def test_what_is_no_run_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("dear")
    with pytest.raises(DataSetError, match="is no run folder: choose another --out"):
        runs.RunFolder.create(tmp_path, WANTED, {})
    assert (tmp_path / "letter").read_text() == "dear"


def test_a_place_where_none_can_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("dear")
    with pytest.raises(DataSetError, match=r"letter/x: Not a directory: choose another --out"):
        runs.RunFolder.create(tmp_path / "letter" / "x", WANTED, {})
