"""What `cedos-pod` is told, and what it says of that."""

import asyncio
import json
import re
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from kit.odd_web_server import OddWebServer, feed_of

from cedos.commands.sessions import pod
from cedos.files.podcasts import retries
from cedos.files.podcasts.episode_book import EpisodeBook, EpisodeRecord
from cedos.files.podcasts.subscriptions import Subscription, Subscriptions
from cedos.selector.deadlines.transfer_table import TransferTable
from cedos.session.sockets.own_table import OWN_TABLE

URL = "http://127.0.0.1:9/feed.xml"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(OWN_TABLE, "table", TransferTable())  # no other test hears of these rates
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


@pytest.fixture
def server() -> Iterator[OddWebServer]:
    """In a thread of its own, as the program has a loop of its own."""
    one, ready = OddWebServer(), threading.Event()
    loop = asyncio.new_event_loop()
    ends = asyncio.Event()

    async def serve() -> None:
        async with one.running():
            ready.set()
            await ends.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    ready.wait(10)
    yield one
    loop.call_soon_threadsafe(ends.set)
    thread.join(10)
    loop.close()


FEEDS = {
    "page": b"<!DOCTYPE html><html><body>News</body></html>",
    "broken": b"<rss><channel>",
    "atom": b'<feed xmlns="http://www.w3.org/2005/Atom"/>',
}


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("page", "what came is a web page, no RSS feed"),
        ("broken", "what came is no feed: no element found"),
        ("atom", "what came is an Atom feed; only RSS can be read"),
        ("gone", "the server says 404 Not Found"),
        ("status/410", "the server says 410 Reason"),
        ("circle", "the server redirects in circles"),
    ],
)
def test_what_is_no_feed_is_not_added(server: OddWebServer, path: str, why: str) -> None:
    server.files |= FEEDS
    done = run("--add", server.url(path), "--name", "s")
    assert done.exit_code == 1
    assert f"cedos-pod: {why}" in done.stderr
    assert Subscriptions().all() == {}


def test_a_feed_whose_server_is_away_is_kept_and_that_is_listed(
    server: OddWebServer, home: Path
) -> None:
    done = run("--add", server.url("status/503"), "--name", "s", "--keep", "2")
    assert done.exit_code == 0
    assert "s: it could not be read now: the server says 503 Reason; it is kept" in done.stderr
    assert "the feed could not be read: the server says 503 Reason" in run("--list").stdout
    (listed,) = json.loads(run("--list", "--json").stdout)["subscriptions"]
    assert listed == {
        "name": "s", "url": server.url("status/503"), "by": "07:00", "keep": 2,
        "error": "the server says 503 Reason",
    }  # fmt: skip
    server.files["status/503"] = feed_of()
    assert run().exit_code == 0
    assert json.loads(run("--list", "--json").stdout)["subscriptions"][0]["error"] is None
    server.files["status/503"] = FEEDS["page"]
    done = run()
    assert done.exit_code == 1
    assert "s: what came is a web page" in done.stderr
    assert "the feed could not be read: what came is a web page" in run("--list").stdout
    assert run("--remove", "s").exit_code == 0
    left = json.loads(run("--list", "--json").stdout)
    assert left == {"subscriptions": [], "episodes": []}
    assert "web page" not in (home / "state" / "cedos" / "podcasts.json").read_text()


def test_a_feed_is_read_once_when_it_is_added(server: OddWebServer, home: Path) -> None:
    server.files["feed"] = feed_of(("One", server.url("good")))
    done = run("--add", server.url("feed"), "--name", "s")
    assert (done.exit_code, done.stderr) == (0, "")
    assert server.came == ["feed"]
    run("--add", server.url("feed"), "--name", "s", "--by", "09:00")
    assert server.came == ["feed"]
    assert run("-o", str(home / "pods")).exit_code == 0
    assert [each.name.split()[0] for each in (home / "pods" / "s").iterdir()] == ["One"]


def test_a_title_is_shown_in_one_way(server: OddWebServer, home: Path) -> None:
    server.files["feed"] = feed_of(
        ("It's \x9b31m \u202e", server.url("good")), ("No \x9b", server.url("none"))
    )
    run("--add", server.url("feed"), "--name", "s")
    done = run("-o", str(home / "pods"))
    listed = run("--list").stdout
    for text in (done.stdout, listed):
        assert "It's \N{REPLACEMENT CHARACTER}31m \N{REPLACEMENT CHARACTER}" in text
    for text in (done.stderr, listed):
        assert "No \N{REPLACEMENT CHARACTER}: the server says 404 Not Found" in text


def test_a_run_ends_with_what_could_not_be_had(
    server: OddWebServer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "_PAUSE_S", 0.05)
    # Wanted at once: with time it would be tried on.
    monkeypatch.setattr(Subscription, "next_unix_s", lambda _self: time.time())
    server.files["feed"] = feed_of(
        ("Away", server.url("shut")), ("Circle", server.url("circle")), ("One", server.url("good"))
    )
    run("--add", server.url("feed"), "--name", "s")
    done = run("-q", "-o", str(home / "pods"))
    assert (done.exit_code, done.stdout) == (1, "")
    away = "the server closed the connection without an answer"
    assert sorted(done.stderr.splitlines()) == [
        f"cedos-pod: s: Away: {away}; tried 4 times in vain, left to the next run",
        "cedos-pod: s: Circle: the server redirects in circles",
    ]
    listed = run("--list").stdout
    assert re.search(rf"Away: wanted by .*\(last tried in vain: {away}\)", listed)
    assert "Circle: the server redirects in circles" in listed
    assert "One: here" in listed
    server.files["shut"] = b"now"
    assert run("-o", str(home / "pods")).exit_code == 0
    assert "Away: here" in run("--list").stdout
