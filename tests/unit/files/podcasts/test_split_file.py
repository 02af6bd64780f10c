"""Bytes by kind of network, also after a kill."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from cedos.commands.sessions import pod
from cedos.files.podcasts.episode_book import EpisodeBook, EpisodeRecord
from cedos.files.podcasts.split_file import SplitFile
from cedos.files.podcasts.subscriptions import Subscription, Subscriptions


def episode(folder: Path) -> EpisodeRecord:
    return EpisodeRecord("news", "1", "One", "http://a.test/1", 6_000_000, 0.0, str(folder / "one"))


def test_what_the_book_has_not_is_in_the_file(tmp_path: Path) -> None:
    killed = episode(tmp_path)
    (tmp_path / "one.part").write_bytes(bytes(3_000_000))
    split = SplitFile(killed)
    for _ in range(3):
        killed.unmetered_bytes += 1_000_000
        split.write()
    killed.metered_bytes = 7
    split.write()
    split.close()
    again = episode(tmp_path)  # as the book had it
    assert SplitFile(again).counts() == (3_000_000, 7)
    SplitFile(again).remove_with_part()
    assert SplitFile(again).counts() == (3_000_000, 7)
    (tmp_path / "one.part").unlink()
    SplitFile(again).remove_with_part()
    assert SplitFile(again).counts() == (0, 0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"{}", b"[1", b'["a", 2]', bytes(5000)])
def test_a_file_of_something_else_counts_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "one.part.split.json").write_bytes(content)
    assert SplitFile(episode(tmp_path)).counts() == (0, 0)


def test_a_link_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("mine")
    (tmp_path / "one.part.split.json").symlink_to(tmp_path / "other")
    split = SplitFile(episode(tmp_path))
    split.write()
    split.close()
    assert (tmp_path / "other").read_text() == "mine"


def test_what_nobody_knows_is_earlier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CEDOS_USER_DIR", str(tmp_path))
    (tmp_path / "one.part").write_bytes(bytes(3_700_000))
    one = episode(tmp_path)
    one.metered_bytes = 700_000
    Subscriptions().add("news", Subscription("http://a.test/feed"))
    book = EpisodeBook(tmp_path / "state" / "podcasts.json")
    book.add(one)
    book.save()
    done = CliRunner().invoke(pod.command, ["--list"])
    assert done.stdout.rstrip().endswith("; 0 B free, 700.0 kB metered, 3.0 MB earlier")
