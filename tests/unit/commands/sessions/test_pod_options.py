"""What `cedos-pod` is told, and what it says of that."""

import time
from datetime import datetime
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cedos.commands.sessions import pod
from cedos.files.podcasts.episode_book import EpisodeBook, EpisodeRecord
from cedos.files.podcasts.subscriptions import Subscription, Subscriptions

URL = "http://127.0.0.1:9/feed.xml"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("CEDOS_USER_DIR", raising=False)
    for name in ("CONFIG", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(pod.command, arguments, prog_name="cedos-pod")


@pytest.mark.parametrize(
    "option", [("--by", "08:00"), ("--by", "07:00"), ("--keep", "3"), ("--name", "s")]
)
def test_what_goes_with_add_is_not_taken_without_it(option: tuple[str, str]) -> None:
    done = run(*option)
    assert done.exit_code == 2
    assert f"{option[0]} goes with --add" in done.stderr


def test_messages_name_the_option() -> None:
    done = run("--add", "example.org", "--name", "s")
    assert (done.exit_code, "--add must be one such as" in done.stderr) == (2, True)
    done = run("--add", URL, "--by", "25:00")
    assert (done.exit_code, "--by must be a time of day" in done.stderr) == (2, True)
    done = run("--add", URL, "--name", "../x")
    assert done.exit_code == 2
    assert done.stderr.startswith('cedos-pod: --name: "../x" cannot be the name of a podcast')
    subscriptions = Subscriptions()
    subscriptions.path.parent.mkdir(parents=True, exist_ok=True)
    subscriptions.path.write_text(f'[podcasts.s]\nurl = "{URL}"\nby = "7"\n')
    assert "by must be a time of day" in run("--list").stderr


def test_the_same_name_again_changes_its_time(home: Path) -> None:
    subscriptions = Subscriptions()
    subscriptions.add("s", Subscription(URL, "07:00", 5))
    book = EpisodeBook(home / "state" / "cedos" / "podcasts.json")
    for podcast in ("s", "other"):
        book.add(EpisodeRecord(podcast, "1", "One", URL, 0, time.time() + 60.0, "/x"))
    before = book.episodes[1].by_unix_s
    book.save()
    done = run("--add", URL, "--name", "s", "--by", "08:00")
    assert done.exit_code == 0
    assert "s: changed; new episodes shall be here by 08:00" in done.stdout
    assert Subscriptions().all() == {"s": Subscription(URL, "08:00", 5)}
    wanted, other = EpisodeBook(home / "state" / "cedos" / "podcasts.json").episodes
    assert f"{datetime.fromtimestamp(wanted.by_unix_s):%H:%M}" == "08:00"
    assert other.by_unix_s == before
    run("--add", URL, "--name", "s", "--keep", "1")
    assert Subscriptions().all() == {"s": Subscription(URL, "08:00", 1)}
    done = run("--add", f"{URL}2", "--name", "s")
    assert done.exit_code == 2
    assert "another --name would be right" in done.stderr
