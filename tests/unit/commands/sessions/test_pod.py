"""`cedos-pod` against a real nginx: kills, changed files, what it says."""

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from kit.nginx import nginx
from kit.waiting import until, wait_until

from cedos.api.messages import RuleMessage
from cedos.apps.files import web_getting
from cedos.apps.files.podcast_library import Episode, Library
from cedos.apps.files.web_getting import LeadingNetworks
from cedos.commands.console import user_rules
from cedos.commands.sessions import pod
from cedos.controller.rule import RuleRequest
from cedos.errors import WebError
from cedos.web import Distance

POD = str(Path(sys.executable).with_name("cedos-pod"))
AUDIO = random.Random(6).randbytes(4_000_000)


class Publisher:
    """A feed with one episode, served by nginx, and a listener's home."""

    def __init__(self, folder):
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
        self.nginx = None

    def subscribe(self, text=""):
        file = self.home / "config" / "cedos" / "podcasts.toml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f'[podcasts.news]\nurl = "{self.url}/feed.xml"\n{text}')

    def episodes(self):
        file = self.home / "state" / "cedos" / "podcasts.json"
        return json.loads(file.read_text())["episodes"]

    def serve(self, rate):
        self.stop()
        root = self.folder / "www"
        server = f"server {{ listen 127.0.0.1:{self.port}; root {root}; limit_rate {rate}; }}"
        log = "$status $body_bytes_sent $request_uri"
        self.nginx = nginx(self.folder, server, log=log)

    def stop(self):
        if self.nginx is not None:
            self.nginx.terminate()
            self.nginx.wait(20)

    def pod(self, *arguments):
        return subprocess.Popen(
            [POD, *arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments):
        process = self.pod(*arguments)
        out, said = process.communicate(timeout=60)
        assert process.returncode == 0, said
        return out

    def requests(self):
        deadline_s = time.monotonic() + 5  # they are written after the answer
        while True:
            lines = (self.folder / "access.log").read_text().splitlines()
            found = [line.split() for line in lines if line.endswith("one.mp3")]
            if found or time.monotonic() > deadline_s:
                return found
            time.sleep(0.01)


@pytest.fixture
def publisher(tmp_path):
    made = Publisher(tmp_path)
    yield made
    made.stop()


def wait_for(wanted, process):
    wait_until(lambda: process.poll() is not None or wanted(), 40)
    assert process.poll() is None, process.communicate()


def test_subscribed_killed_and_gone_on_with(publisher):
    publisher.serve("1m")
    publisher.subscribe('by = "06:30"\n')
    first = publisher.pod()
    folder = publisher.home / "Podcasts" / "news"
    wait_for(lambda: any(each.stat().st_size > 500_000 for each in folder.glob("*.part")), first)
    first.kill()
    first.communicate()
    (killed,) = publisher.episodes()
    assert (killed["state"], killed["size_bytes"]) == ("wanted", len(AUDIO))
    assert time.strftime("%H:%M", time.localtime(killed["by_unix_s"])) == "06:30"
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
    (episode,) = publisher.episodes()
    assert episode["state"] == "here"
    assert episode["came_unix_s"] < episode["by_unix_s"]
    assert "0 new episodes" in publisher.run()
    assert len(publisher.requests()) == 2


def test_a_changed_file_begins_anew_and_a_missing_one_is_reported(publisher):
    feed = publisher.folder / "www" / "feed.xml"
    url = f"{publisher.url}/none.mp3"
    feed.write_text(
        feed.read_text().replace(
            "</channel>", f'<item><title>None</title><enclosure url="{url}"/></item></channel>'
        )
    )
    publisher.serve("1m")
    publisher.subscribe()
    first = publisher.pod()
    folder = publisher.home / "Podcasts" / "news"
    wait_for(lambda: any(each.stat().st_size > 300_000 for each in folder.glob("*.part")), first)
    first.kill()
    first.communicate()
    changed = AUDIO[::-1]
    (publisher.folder / "www" / "one.mp3").write_bytes(changed)
    publisher.serve("0")
    publisher.pod().communicate(timeout=60)
    assert "the server says 404 Not Found" in [each["why"] for each in publisher.episodes()]
    (file,) = folder.iterdir()
    assert file.read_bytes() == changed
    assert {status for status, *_ in publisher.requests()} == {"200", "404"}  # none.mp3, too
    publisher.run()  # the server is not asked for it again


def test_a_program_that_stays_looks_again_and_is_interrupted(publisher):
    publisher.serve("0")
    publisher.subscribe("keep = 1\n")
    staying = publisher.pod("--stay", "-q")
    folder = publisher.home / "Podcasts" / "news"
    wait_for(lambda: bool(list(folder.glob("*.mp3"))), staying)
    second = publisher.pod("-q")  # each would lose what the other one notes
    _, said = second.communicate(timeout=30)
    assert second.returncode == 2
    assert "another program changes it" in said
    staying.send_signal(signal.SIGINT)
    out, said = staying.communicate(timeout=30)
    assert (staying.returncode, out, said) == (130, "", "")


async def test_a_feed_that_fails_has_all_read_less_and_less_often(tmp_path, monkeypatch):
    """Read feeds less often after failures: they were read each minute, over metered networks, too."""
    monkeypatch.setenv("CEDOS_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(pod, "_FAILED_S", 0.1)
    read_at_s = []

    async def read_feed(url, networks):
        if url.endswith("gone"):
            raise WebError("the server says 404 Not Found")
        read_at_s.append(time.monotonic())
        return []

    monkeypatch.setattr(pod, "read_feed", read_feed)
    text = "".join(
        f'[podcasts.{each}]\nurl = "http://192.0.2.1/{each}"\n' for each in ("gone", "good")
    )
    (tmp_path / "podcasts.toml").write_text(text)
    library = Library(tmp_path / "podcasts.toml", tmp_path / "book.json")
    running = asyncio.create_task(pod._bring(library, tmp_path, [], stay=True, quiet=True))
    await until(lambda: len(read_at_s) == 5)
    running.cancel()
    await asyncio.wait({running})
    gaps_s = [later - at for at, later in pairwise(read_at_s)]
    assert all(
        gap_s > least_s for gap_s, least_s in zip(gaps_s, (0.09, 0.19, 0.39, 0.79), strict=True)
    )


async def test_feeds_whose_names_are_not_found_keep_no_other_waiting(tmp_path, monkeypatch):
    """Subscribe to 60 feeds whose names no server answers for: another feed was read after 95 s."""
    monkeypatch.setenv("CEDOS_RUNTIME_DIR", str(tmp_path))
    find, running, go_on = socket.getaddrinfo, Counter(), threading.Event()

    def getaddrinfo(host, *arguments, **options):
        if not host.endswith(".dead"):
            return find(host, *arguments, **options)
        running[host] += 1
        go_on.wait(10)
        running[host] -= 1
        raise socket.gaierror(socket.EAI_AGAIN, "no server answers")

    async def fetched(url, _most_bytes, _way):
        with suppress(OSError):
            await asyncio.get_running_loop().getaddrinfo(urlsplit(url).hostname, 80)
        read_after_s.append(time.monotonic() - began_s)
        raise WebError("the server says 404 Not Found")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(web_getting, "read", fetched)
    hosts = [*(f"n{number}.dead" for number in range(60)), "127.0.0.1"]
    text = "".join(
        f'[podcasts.n{number}]\nurl = "http://{host}/"\n' for number, host in enumerate(hosts)
    )
    (tmp_path / "podcasts.toml").write_text(text)
    library = Library(tmp_path / "podcasts.toml", tmp_path / "book.json")
    read_after_s, began_s = [], time.monotonic()
    bringing = asyncio.create_task(pod._bring(library, tmp_path, [], stay=False, quiet=True))
    await until(lambda: read_after_s, 60)
    bringing.cancel()
    await asyncio.wait({bringing})
    assert read_after_s[0] < 2.0
    monkeypatch.setattr(web_getting, "_LOOK_UP_S", 0.2)
    networks = LeadingNetworks()
    for _ in range(3):
        await networks.to("http://again.dead/")
        networks._addresses.clear()
    networks.close()
    assert running["again.dead"] == 1
    go_on.set()


class Forbidding:
    """A daemon with a rule for the publisher, which no network is allowed to."""

    def __init__(self, _socket):
        pass

    def rules(self):
        rule = RuleRequest(host="127.0.0.0/8", only=("wlan0",))
        return [RuleMessage(number=1, rule=rule, network=None, why="")]

    def changes(self):
        return 1

    def networks(self):
        return []


async def test_podcasts_follow_the_users_rules(tmp_path, monkeypatch, capsys):
    """They came over forbidden networks: sockets bound to an interface pass the daemon's rules."""
    came = []
    server = await asyncio.start_server(lambda *each: came.append(each), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/feed"
    (tmp_path / "podcasts.toml").write_text(f'[podcasts.news]\nurl = "{url}"\n')
    library = Library(tmp_path / "podcasts.toml", tmp_path / "book.json")
    episode = Episode("news", "1", "E1", url, 0, time.time(), str(tmp_path / "got" / "e1"))
    episode.least = Distance.HOST
    library.episodes.append(episode)
    monkeypatch.setenv("CEDOS_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(user_rules, "ControlClient", Forbidding)
    missing = []
    bringing = asyncio.create_task(pod._bring(library, tmp_path, missing, stay=False, quiet=False))
    await until(lambda: episode.why)
    bringing.cancel()
    await asyncio.wait({bringing})
    server.close()
    rule = "your rule 1 for 127.0.0.0/8: only wlan0"
    why = f"no network leads to the server but those that are forbidden ({rule})"
    assert (missing, episode.why, came) == ([True], why, [])
    said = capsys.readouterr()
    assert f"news: {why}" in said.err.replace("\n", " ")
    assert f"waits: {why}" in said.out


def test_what_is_no_feed_is_reported_and_no_podcast_too(publisher):
    publisher.serve("0")
    (publisher.folder / "www" / "feed.xml").write_text("<!DOCTYPE html><html>News</html>")
    for subscribed, status, why in ((False, 2, "names no podcast"), (True, 1, "is no feed")):
        if subscribed:
            publisher.subscribe()
        process = publisher.pod()
        _, said = process.communicate(timeout=30)
        assert (process.returncode, why in said) == (status, True)
