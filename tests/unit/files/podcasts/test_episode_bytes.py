"""Bytes by network, and how many of them were metered, also after a kill."""

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from kit.odd_web_server import AUDIO, OddWebServer

from cedos.commands.sessions import pod
from cedos.files.part_note import NotedBytes
from cedos.files.partial import Partial
from cedos.files.podcasts import leading_networks
from cedos.files.podcasts.episode_book import EpisodeBook, EpisodeRecord, EpisodeState
from cedos.files.podcasts.episode_transfer import carried
from cedos.files.podcasts.fetching import EpisodeFetching
from cedos.files.podcasts.subscriptions import Subscription, Subscriptions
from cedos.model import NetworkKind
from cedos.session.io.links import Egress


def episode(folder: Path) -> EpisodeRecord:
    return EpisodeRecord("news", "1", "One", "http://a.test/1", 6_000_000, 0.0, str(folder / "one"))


def test_what_the_book_has_not_is_in_the_note(tmp_path: Path) -> None:
    partial = Partial(tmp_path / "one", "http://a.test/1")
    partial.begin(0, "v1", 6_000_000)
    partial.write(bytes(3_000_000))
    for count in range(1, 4):
        partial.note_networks({"wlan0": count * 1_000_000})
    partial.note_networks({"wlan0": 3_000_000, "usb0": 7}, 7)
    as_the_book_had_it = episode(tmp_path)
    as_the_book_had_it.by_network = {"wlan0": 2_000_000, "eth0": 5}
    noted = carried(as_the_book_had_it)  # while it is under way
    assert noted == NotedBytes({"wlan0": 3_000_000, "eth0": 5, "usb0": 7}, 7)
    partial.close()
    assert carried(as_the_book_had_it) == noted
    partial = Partial(tmp_path / "one", "http://a.test/1")
    partial.begin(3_000_000, "v1", 6_000_000)  # who goes on loses none of it
    assert carried(as_the_book_had_it) == noted
    partial.write(bytes(3_000_000))
    partial.finish(0.0)
    partial.close()
    assert carried(as_the_book_had_it) == NotedBytes({"wlan0": 2_000_000, "eth0": 5})
    assert [each.name for each in tmp_path.iterdir()] == ["one"]


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["good", "early"])
async def test_the_book_has_all_before_the_note_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Killed in any instant, it is known over which networks it came: here, at the worst ones."""
    phone = Egress("lo", 1, frozenset(), NetworkKind.CELLULAR, metered=True)
    monkeypatch.setattr(
        leading_networks.EgressReader, "egresses", lambda _self, _destination: (phone,)
    )
    known: list[NotedBytes] = []
    finish, close = Partial.finish, Partial.close
    at = tmp_path / "book.json"

    def look() -> None:
        (kept,) = EpisodeBook(at).episodes  # what the next program reads
        known.append(carried(kept))

    def finish_and_look(partial: Partial, modified_unix_s: float) -> None:
        finish(partial, modified_unix_s)
        look()

    def close_and_look(partial: Partial) -> None:
        close(partial)
        look()

    monkeypatch.setattr(Partial, "finish", finish_and_look)
    monkeypatch.setattr(Partial, "close", close_and_look)
    monkeypatch.setattr("cedos.files.podcasts.retries._ENOUGH", 1)
    async with OddWebServer().running() as server:
        book = EpisodeBook(at)
        book.add(
            EpisodeRecord(
                *("news", "1", "One", server.url(name), 0, time.time() - 1.0),
                str(tmp_path / "got" / "one"),
            )
        )
        book.save()
        one = EpisodeFetching(book, tmp_path, lambda _: None)
        await one.run()
        one.close()
    (last,) = book.episodes
    came = last.by_network["lo"]
    assert came == len(AUDIO) if name == "good" else 0 < came < len(AUDIO)
    assert set(map(str, known)) == {str(NotedBytes({"lo": came}, came))}
    assert last.state is (EpisodeState.HERE if name == "good" else EpisodeState.WANTED)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CEDOS_USER_DIR", str(tmp_path))
    (tmp_path / "one.part").write_bytes(bytes(3_700_000))
    one = episode(tmp_path)
    one.by_network, one.metered_bytes = {"wlan0": 200_000, "usb0": 500_000}, 500_000
    Subscriptions().add("news", Subscription("http://a.test/feed"))
    book = EpisodeBook(tmp_path / "state" / "podcasts.json")
    book.add(one)
    book.save()
    return tmp_path


def listed(*options: str) -> str:
    done = CliRunner().invoke(pod.command, ["--list", *options])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.usefixtures("home")
def test_what_nobody_knows_is_earlier() -> None:
    assert listed().rstrip().endswith("; 200.0 kB free, 500.0 kB metered, 3.0 MB earlier")


def test_what_a_kill_left_in_the_note_is_listed(home: Path) -> None:
    (home / "one.part.json").write_text(
        '{"source": "http://a.test/1", "version": "v", "size": 6000000}\n'
        '{"by_network": {"wlan0": 3000000, "usb0": 600000}, "metered_bytes": 500000}   '
    )
    assert listed().rstrip().endswith("; 3.1 MB free, 500.0 kB metered, 100.0 kB earlier")
    (one,) = json.loads(listed("--json"))["episodes"]
    assert one["bytes_by_network"] == {"wlan0": 3_000_000, "usb0": 600_000}
    assert (one["unmetered_bytes"], one["metered_bytes"]) == (3_100_000, 500_000)
    assert one["earlier_bytes"] == 100_000
