"""The note beside a part: written whole, its counts in place."""

from pathlib import Path

import pytest

from cedos.files.part_note import NotedBytes, PartNote, PartOf

FILE = PartOf("http://a.test/1", '"v1"', 6_000_000)


def test_counts_are_written_over_in_place(tmp_path: Path) -> None:
    note = PartNote(tmp_path / "one")
    assert note.read() is None
    note.write(FILE, NotedBytes())
    path = tmp_path / "one.part.json"
    inode = path.stat().st_ino
    many = NotedBytes({f"wlan{each}": 10**9 + each for each in range(40)}, 10**9)
    for noted in (NotedBytes({"wlan0": 1}), many, NotedBytes({"wlan0": 2}, 2), NotedBytes()):
        note.write_bytes(noted)  # a shorter one leaves nothing of a longer one
        assert PartNote(tmp_path / "one").read() == (FILE, noted)
    assert path.stat().st_ino == inode
    note.write(FILE, many)
    assert note.read() == (FILE, many)
    assert path.stat().st_mode & 0o777 == 0o600
    note.remove()
    note.remove()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "counts",
    [b"", b"{", b"[1, 2]", b'{"by_network": [1]}', b'{"by_network": {"wlan0": -1}}', bytes(5000)],
)
def test_where_counts_are_something_else_the_part_is_gone_on_with(
    tmp_path: Path, counts: bytes
) -> None:
    note = PartNote(tmp_path / "one")
    note.write(FILE, NotedBytes({"wlan0": 7}))
    path = tmp_path / "one.part.json"
    first = path.read_bytes().split(b"\n")[0]
    path.write_bytes(first + b"\n" + counts)
    assert note.read() == (FILE, NotedBytes())
    path.write_bytes(first)
    assert note.read() == (FILE, NotedBytes())


@pytest.mark.parametrize("content", [b"", b"{}", b"{\n", b"[1", bytes(5000), b"1" * (2 << 20)])
def test_a_file_of_something_else_is_no_note(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "one.part.json").write_bytes(content)
    assert PartNote(tmp_path / "one").read() is None


def test_a_link_is_neither_read_nor_written_through(tmp_path: Path) -> None:
    other = tmp_path / "other"
    PartNote(other).write(FILE, NotedBytes({"wlan0": 7}))
    theirs = tmp_path / "other.part.json"
    before = theirs.read_bytes()
    (tmp_path / "one.part.json").symlink_to(theirs)
    note = PartNote(tmp_path / "one")
    assert note.read() is None
    with pytest.raises(OSError, match="symbolic links"):
        note.write_bytes(NotedBytes({"wlan0": 8}))
    assert theirs.read_bytes() == before


def test_a_note_that_is_gone_is_not_made_anew_by_counts(tmp_path: Path) -> None:
    note = PartNote(tmp_path / "one")
    with pytest.raises(FileNotFoundError):
        note.write_bytes(NotedBytes({"wlan0": 8}))
    assert list(tmp_path.iterdir()) == []
