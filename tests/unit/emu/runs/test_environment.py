"""The environment that a run notes."""

import subprocess

from emu.runs import runs


def test_a_tree_is_modified_by_its_code_and_not_by_results(tmp_path, monkeypatch):
    result = tmp_path / "notebooks" / "results" / "a.json"
    result.parent.mkdir(parents=True)
    for file in (result, tmp_path / "code.py"):
        file.write_text("1")
    for command in (
        ["git", "init", "-q"],
        ["git", "add", "."],
        ["git", "-c", "user.name=x", "-c", "user.email=x@x", "commit", "-q", "-m", "first"],
    ):
        subprocess.run(command, cwd=tmp_path, check=True)
    monkeypatch.setattr(runs, "ROOT", tmp_path)
    result.write_text("2")
    assert runs.describe()["git"]["modified"] is False
    (tmp_path / "code.py").write_text("2")
    assert runs.describe()["git"]["modified"] is True


def test_arguments_name_no_place_of_this_machine(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["cedos-emu", "run", "--out", str(tmp_path / "a"), "p02"])
    assert runs.describe()["arguments"] == ["run", "--out", "a", "p02"]
