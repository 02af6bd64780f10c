"""`cedos-pod` against a real nginx: kills, changed files, deadlines, metered networks."""

import asyncio
import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cedos.files.podcasts import fetching, leading_networks, retries
from cedos.files.podcasts.episode_book import EpisodeBook, EpisodeRecord, EpisodeState
from cedos.files.podcasts.subscriptions import Subscription
from cedos.model import NetworkKind
from cedos.selector.deadlines.transfer_table import TransferTable
from cedos.session.io.links import Egress
from cedos.session.sockets.own_table import OWN_TABLE

POD = str(Path(sys.executable).with_name("cedos-pod"))
AUDIO = random.Random(6).randbytes(4_000_000)
CONFIG = """
daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 64; }}
http {{
  log_format lines '$status $body_bytes_sent $request_uri';
  access_log {folder}/access.log lines;
  client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2; fastcgi_temp_path {folder}/t3;
  uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
  server {{ listen 127.0.0.1:{port}; root {folder}/www; limit_rate {rate}; }}
}}
"""


class Publisher:
    """A feed with one episode, served by nginx, and a listener's home."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder, folder / "home"
        (folder / "www").mkdir()
        self.home.mkdir()
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        (folder / "www" / "one.mp3").write_bytes(AUDIO)
        (folder / "www" / "feed.xml").write_text(
            "<rss><channel><title>News</title><item><title>../One: the ü</title><guid>1</guid>"
            f'<enclosure url="{self.url}/one.mp3" length="{len(AUDIO)}"/></item></channel></rss>'
        )
        os.utime(folder / "www" / "one.mp3", (1_700_000_000, 1_700_000_000))
        self.environment = os.environ | {
            "XDG_CONFIG_HOME": str(self.home / "config"),
            "XDG_STATE_HOME": str(self.home / "state"),
            "HOME": str(self.home),
        }
        self.nginx: subprocess.Popen[bytes] | None = None

    def serve(self, rate: str) -> None:
        self.stop()
        config = self.folder / "nginx.conf"
        config.write_text(CONFIG.format(folder=self.folder, port=self.port, rate=rate))
        program = shutil.which("nginx") or "/usr/sbin/nginx"
        self.nginx = subprocess.Popen([program, "-c", str(config)], stderr=subprocess.DEVNULL)
        ends_s = time.monotonic() + 20
        while time.monotonic() < ends_s:
            with socket.socket() as one:
                if not one.connect_ex(("127.0.0.1", self.port)):
                    return
            assert self.nginx.poll() is None, (self.folder / "error.log").read_text()
            time.sleep(0.02)

    def stop(self) -> None:
        if self.nginx is not None:
            self.nginx.terminate()
            self.nginx.wait(20)

    def pod(self, *arguments: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [POD, *arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str) -> str:
        process = self.pod(*arguments)
        out, said = process.communicate(timeout=60)
        assert process.returncode == 0, said
        return out

    def requests(self) -> list[list[str]]:
        deadline_s = time.monotonic() + 5  # they are written after the answer
        while True:
            lines = (self.folder / "access.log").read_text().splitlines()
            found = [line.split() for line in lines if line.endswith("one.mp3")]
            if found or time.monotonic() > deadline_s:
                return found
            time.sleep(0.01)


@pytest.fixture
def publisher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Publisher]:
    monkeypatch.setattr(OWN_TABLE, "table", TransferTable())  # rates of other tests are none here
    made = Publisher(tmp_path)
    yield made
    made.stop()


def test_subscribed_killed_and_gone_on_with(publisher: Publisher) -> None:
    publisher.serve("1m")
    said = publisher.run("--add", f"{publisher.url}/feed.xml", "--name", "news", "--by", "06:30")
    assert "news: new episodes shall be here by 06:30; `cedos-pod` brings" in said
    first = publisher.pod()
    ends_s = time.monotonic() + 40
    folder = publisher.home / "Podcasts" / "news"
    while not any(each.stat().st_size > 500_000 for each in folder.glob("*.part")):
        assert time.monotonic() < ends_s, first.communicate()
        assert first.poll() is None, first.communicate()
        time.sleep(0.02)
    first.kill()
    first.communicate()
    assert re.search(r"[0-9.]+ [kM]B of 4.0 MB here, wanted by", publisher.run("--list"))
    (killed,) = json.loads(publisher.run("--list", "--json"))["episodes"]
    assert killed["unmetered_bytes"] + killed["earlier_bytes"] == killed["here_bytes"] > 500_000
    assert killed["earlier_bytes"] <= 1 << 16  # what was written but not yet counted
    publisher.serve("0")
    out = publisher.run()
    assert "is here" in out
    (file,) = folder.iterdir()
    assert file.read_bytes() == AUDIO
    assert file.name.startswith("One the ü ")
    assert file.suffix == ".mp3"
    status, n_bytes, _ = publisher.requests()[-1]
    assert status == "206"
    assert int(n_bytes) < len(AUDIO) - 400_000
    (episode,) = json.loads(publisher.run("--list", "--json"))["episodes"]
    assert (episode["state"], episode["in_time"]) == ("here", True)
    assert episode["metered_bytes"] == 0
    assert episode["unmetered_bytes"] + episode["earlier_bytes"] == len(AUDIO)
    assert "0 new episodes" in publisher.run()
    assert len(publisher.requests()) == 2
    publisher.run("--remove", "news")
    assert file.exists()
    assert "no podcasts yet; cedos-pod --add" in publisher.run("--list")
    process = publisher.pod()
    _, said = process.communicate(timeout=30)
    assert (process.returncode, "no subscription yet" in said) == (2, True)


def test_a_file_that_changed_comes_anew_and_a_missing_one_is_told(publisher: Publisher) -> None:
    publisher.serve("0")
    book = EpisodeBook(publisher.folder / "book.json")
    target = publisher.folder / "got" / "one.mp3"
    wanted = [
        EpisodeRecord("news", name, name, f"{publisher.url}/{name}", 0, time.time() + 60, str(at))
        for name, at in (("one.mp3", target), ("none.mp3", publisher.folder / "got" / "none"))
    ]
    for each in wanted:
        book.add(each)
    target.parent.mkdir()
    (target.parent / "one.mp3.part").write_bytes(b"old" * 1000)
    note = {"source": f"{publisher.url}/one.mp3", "version": '"other"', "size": 9000}
    (target.parent / "one.mp3.part.json").write_text(json.dumps(note))
    said: list[str] = []
    one = fetching.EpisodeFetching(book, publisher.folder, said.append)
    asyncio.run(one.run())
    assert target.read_bytes() == AUDIO
    assert {status for status, *_ in publisher.requests()} == {"200", "404"}  # in any order
    assert wanted[1].state is EpisodeState.REFUSED
    assert "404" in wanted[1].why
    assert one.missing == 1
    one.close()
    again = EpisodeBook(publisher.folder / "book.json")
    assert again.episodes == book.episodes


@pytest.mark.parametrize(("by_s", "metered"), [(3600.0, False), (20.0, True)])
def test_a_metered_network_is_for_what_would_be_late(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch, by_s: float, metered: bool
) -> None:
    """Only the phone is there; after two seconds Wi-Fi comes."""
    publisher.serve("500k")
    asked_s: list[float] = []

    def egresses(_self: Any, _destination: Any) -> tuple[Egress, ...]:
        phone = Egress("lo", 1, frozenset(), NetworkKind.CELLULAR, metered=True)
        wifi = Egress("lo", 1, frozenset(), NetworkKind.WIFI, metered=False)
        asked_s.append(time.monotonic())
        # Both are the loopback here, so only one of them is there at a time.
        return (wifi,) if asked_s[-1] > asked_s[0] + 2.0 else (phone,)

    monkeypatch.setattr(leading_networks.EgressReader, "egresses", egresses)
    book = EpisodeBook(publisher.folder / "book.json")
    episode = EpisodeRecord(
        *("news", "1", "one", f"{publisher.url}/one.mp3", len(AUDIO), time.time() + by_s),
        str(publisher.folder / "one.mp3"),
    )
    book.add(episode)
    said: list[str] = []

    async def go() -> None:
        one = fetching.EpisodeFetching(book, publisher.folder, said.append)
        running = asyncio.create_task(one.run())
        await asyncio.sleep(3.5)
        publisher.serve("0")  # quick now; what is under way breaks off
        await running
        one.close()

    monkeypatch.setattr(retries, "_PAUSE_S", 0.1)
    asyncio.run(go())
    assert (publisher.folder / "one.mp3").read_bytes() == AUDIO
    assert (episode.metered_bytes > 0) is metered
    assert sum(episode.by_network.values()) - episode.metered_bytes > 0
    assert sum(episode.by_network.values()) == len(AUDIO)
    assert any("1 episode: waiting for Wi-Fi" in each for each in said) is not metered
    assert any("over lo, which is metered: waiting longer" in each for each in said) is metered


def test_who_stays_sees_new_episodes_while_others_wait(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The phone is there alone, and there is time: the first waits, the second comes into the table."""
    publisher.serve("0")

    def egresses(_self: Any, _destination: Any) -> tuple[Egress, ...]:
        return (Egress("lo", 1, frozenset(), NetworkKind.CELLULAR, metered=True),)

    monkeypatch.setattr(leading_networks.EgressReader, "egresses", egresses)
    book = EpisodeBook(publisher.folder / "book.json")
    said: list[str] = []

    async def go() -> None:
        one = fetching.EpisodeFetching(book, publisher.folder, said.append)
        running = asyncio.create_task(one.run(stay=True))
        wanted = Subscription(
            f"{publisher.url}/feed.xml", f"{datetime.now() - timedelta(hours=1):%H:%M}"
        )
        for name, count in (("news", 1), ("more", 2)):
            assert await one.update(name, wanted) == 1
            async with asyncio.timeout(20):
                while not any(each.startswith(f"{count} episode") for each in said):
                    await asyncio.sleep(0.05)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        one.close()

    asyncio.run(go())
    assert all("waiting for Wi-Fi" in each for each in said)
    assert [each.state for each in book.episodes] == [EpisodeState.WANTED] * 2
