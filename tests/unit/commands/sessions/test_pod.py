"""`cedos-pod` against a real nginx: kills, changed files, what it says."""

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from kit.nginx import nginx
from kit.waiting import wait_until

from cedos.commands.sessions import pod

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
        """Return what a run within this process prints, as a start takes longer than most of them."""
        done = run(*arguments, env=self.environment)
        assert done.exit_code == 0, done.stderr
        return done.stdout

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
    said = publisher.run("--add", f"{publisher.url}/feed.xml", "--name", "news", "--by", "06:30")
    assert "news: new episodes shall be here by 06:30; `cedos-pod` brings" in said
    first = publisher.pod()
    folder = publisher.home / "Podcasts" / "news"
    wait_for(lambda: any(each.stat().st_size > 500_000 for each in folder.glob("*.part")), first)
    first.kill()
    first.communicate()
    assert re.search(r"[0-9.]+ [kM]B of 4.0 MB here, wanted by", publisher.run("--list"))
    (killed,) = json.loads(publisher.run("--list", "--json"))["episodes"]
    assert killed["here_bytes"] > 500_000
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
    assert episode["here_bytes"] == len(AUDIO)
    assert "0 new episodes" in publisher.run()
    assert len(publisher.requests()) == 2
    publisher.run("--remove", "news")
    assert file.exists()
    assert "no podcasts yet; cedos-pod --add" in publisher.run("--list")
    done = run(env=publisher.environment)
    assert (done.exit_code, "no subscription yet" in done.stderr) == (2, True)


def test_a_changed_file_begins_anew_and_a_missing_one_is_reported(publisher):
    feed = publisher.folder / "www" / "feed.xml"
    url = f"{publisher.url}/none.mp3"
    feed.write_text(
        feed.read_text().replace(
            "</channel>", f'<item><title>None</title><enclosure url="{url}"/></item></channel>'
        )
    )
    publisher.serve("1m")
    publisher.run("--add", f"{publisher.url}/feed.xml", "--name", "news")
    first = publisher.pod()
    folder = publisher.home / "Podcasts" / "news"
    wait_for(lambda: any(each.stat().st_size > 300_000 for each in folder.glob("*.part")), first)
    first.kill()
    first.communicate()
    changed = AUDIO[::-1]
    (publisher.folder / "www" / "one.mp3").write_bytes(changed)
    publisher.serve("0")
    run(env=publisher.environment)
    assert "None: the server says 404 Not Found" in publisher.run("--list")
    (file,) = folder.iterdir()
    assert file.read_bytes() == changed
    assert {status for status, *_ in publisher.requests()} == {"200", "404"}  # none.mp3, too
    publisher.run()  # the server is not asked for it again


def test_a_program_that_stays_looks_again_and_is_interrupted(publisher):
    publisher.serve("0")
    publisher.run("--add", f"{publisher.url}/feed.xml", "--name", "news", "--keep", "1")
    staying = publisher.pod("--stay", "-q")
    folder = publisher.home / "Podcasts" / "news"
    wait_for(lambda: bool(list(folder.glob("*.mp3"))), staying)
    staying.send_signal(signal.SIGINT)
    out, said = staying.communicate(timeout=30)
    assert (staying.returncode, out, said) == (130, "", "")


def run(*arguments, env=None):
    return CliRunner(env=env).invoke(pod.command, arguments, prog_name="cedos-pod")


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.delenv("CEDOS_USER_DIR", raising=False)
    for name in ("CONFIG", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("--add", "example.org"), 2, "--add: url must be one such as"),
        (("--add", "http://127.0.0.1:9/", "--by", "25:00"), 2, "by must be a time of day"),
        (("--add", "http://127.0.0.1:9/", "--name", "../x"), 2, "cannot be the name of a podcast"),
        (("--by", "08:00"), 2, "--name, --by and --keep go with --add"),
        (("--list", "--remove", "s"), 2, "--add, --remove and --list exclude each other"),
        (("--remove", "s"), 2, "there is no podcast s"),
        ((), 2, "there is no subscription yet"),
        (("--list",), 0, ""),
    ],
)
def test_messages(home, arguments, status, said):
    done = run(*arguments)
    assert (done.exit_code, said in done.stderr) == (status, True)
    assert not list(home.iterdir())


def test_what_is_no_feed_is_refused_and_one_that_is_away_is_kept(publisher):
    publisher.serve("0")
    (publisher.folder / "www" / "page.html").write_text("<!DOCTYPE html><html>News</html>")
    for path, why in (("page.html", "the answer is no feed"), ("gone", "404 Not Found")):
        done = run("--add", f"{publisher.url}/{path}", "--name", "s", env=publisher.environment)
        assert (done.exit_code, why in done.stderr) == (1, True)
    publisher.stop()
    done = run("--add", f"{publisher.url}/feed.xml", "--name", "s", env=publisher.environment)
    assert (done.exit_code, "refused the connection; the next run" in done.stderr) == (0, True)
    (listed,) = json.loads(publisher.run("--list", "--json"))["subscriptions"]
    assert (listed["name"], listed["keep"]) == ("s", 3)
