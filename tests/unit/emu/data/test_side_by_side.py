"""What is done of a collection is kept beside its output, in a folder that others may write in."""

import pytest

from emu.data import side_by_side


class Task:
    def __init__(self, key):
        self.key = key


def test_a_line_that_a_kill_tore_is_measured_again(tmp_path, monkeypatch):
    partial = tmp_path / "out.partial"
    partial.write_text('{"key": "a", "s": 1}\n{"key": "b", "s')
    asked = []

    def measured(todo, *_):
        asked.extend(task.key for task in todo)
        return (("b", {"s": 2}) for _ in todo)

    monkeypatch.setattr(side_by_side, "_measured", measured)
    tasks = [Task("a"), Task("b")]
    for _ in range(2):
        assert side_by_side.run(tasks, None, partial, jobs=1) == [{"s": 1}, {"s": 2}]
    assert asked == ["b"]
    assert partial.read_text() == '{"key": "a", "s": 1}\n{"key": "b", "s": 2}\n'


def test_no_link_to_another_file_is_followed(tmp_path):
    """The rows of a collection, and a cut at the last line, went into any file of the user."""
    (tmp_path / "own").write_text("no line")
    (tmp_path / "out.partial").symlink_to(tmp_path / "own")
    with pytest.raises(OSError, match="symbolic links"):
        side_by_side.run([], None, tmp_path / "out.partial", jobs=1)
    assert (tmp_path / "own").read_text() == "no line"
