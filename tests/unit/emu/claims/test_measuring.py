"""A source is measured again by its command, and the list notes commit and day."""

import json
import subprocess
from pathlib import Path

import pytest

from cedos.errors import HostError
from emu.claims import claim_list, expressions, measuring, pages

LIST = """[sources.s]
file = "s.json"
command = "echo '{\\"v\\": 3, \\"from\\": \\"{places}\\"}' > s.json"
commit = "unknown"
date = 2026-11-01
kind = "simulated"
places = "none"
configuration = "none"

[sources.noted]
command = ""
commit = "unknown"
date = 2026-11-01
kind = "live"
places = "none"
configuration = "none"

[[claim]]
name = "c"
paper = "dtp"
item = "Table 1"
verdict = "reproduced"
source = "s"
ours = "{1}"
from = ["/v"]

[[claim]]
name = "d"
paper = "dtp"
item = "Table 2"
verdict = "reproduced"
source = "noted"
ours = "1"
"""


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A clone with a list and one commit, in place of this one."""
    (tmp_path / "claims.toml").write_text(LIST)
    (tmp_path / "s.json").write_text('{"v": 1}')
    for command in (
        ["git", "init", "-q"],
        ["git", "add", "."],
        ["git", "-c", "user.name=x", "-c", "user.email=x@x", "commit", "-q", "-m", "first"],
    ):
        subprocess.run(command, cwd=tmp_path, check=True)
    for module in (measuring, claim_list):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(expressions, "RESULTS", tmp_path)
    monkeypatch.setattr(claim_list, "FILE", tmp_path / "claims.toml")
    return tmp_path


def test_a_measurement_writes_its_file_and_the_list_notes_its_commit(clone):
    commit = measuring.head()
    measuring.measure("s", claim_list.read(clone / "claims.toml"), Path("/places"), commit)
    assert json.loads((clone / "s.json").read_text()) == {"v": 3, "from": "/places"}
    assert "\n\n\n" not in (clone / "claims.toml").read_text()
    noted = claim_list.read(clone / "claims.toml").sources["s"]
    assert noted.commit == commit
    assert noted.date.year > 2000
    assert claim_list.read(clone / "claims.toml").sources["noted"].commit == "unknown"


def test_a_modified_tree_is_refused(clone):
    (clone / "code.py").write_text("changed")
    with pytest.raises(HostError, match=r"modified \(\?\? code.py\)"):
        measuring.head()


@pytest.mark.parametrize("command", ["false", "true"])
def test_a_command_that_fails_or_writes_nothing_is_told(clone, command):
    text = LIST.replace(LIST.splitlines()[2], f'command = "{command}"')
    (clone / "claims.toml").write_text(text)
    with pytest.raises(HostError):
        measuring.measure("s", claim_list.read(clone / "claims.toml"), Path("/places"), "abc")
    assert (clone / "claims.toml").read_text() == text


def test_a_number_on_a_page_is_replaced_also_where_its_words_stand_on_two_lines():
    page = "Its time is 0.94 of it\n(0.84 to\n1.05); 0.94 stays."
    assert pages.with_text(page, "0.94 of it (0.84 to 1.05)", "0.90 of it (0.80 to 1.01)") == (
        "Its time is 0.90 of it\n(0.80 to\n1.01); 0.94 stays."
    )
    assert pages.with_text("so 5 MB", "5 MB", "none") == "so none"


def test_an_update_tells_each_number_that_changed_with_the_one_before(clone):
    (clone / "docs").mkdir()
    (clone / "docs" / "state.md").write_text(f"{pages.BEGIN}\n{pages.END}")
    (clone / "README.md").write_text("1")
    assert [*measuring.update()] == ["written: docs/state.md"]
    (clone / "s.json").write_text('{"v": 3}')
    assert [*measuring.update()] == ["written: docs/claims.toml", "c: 3 (before: 1)"]
    assert [*measuring.update()] == []
