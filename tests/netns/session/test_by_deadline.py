"""`cedos-get --by` without a daemon: Wi-Fi as far as possible, the metered network as needed."""

import hashlib
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from cedos.session import keys
from tests.netns.session.test_files_on_the_move import PORT, SERVER, SIZE, Walk

_ASKED_BYTES = 200_000
"""Handshakes and the question for the size go over any network."""


@pytest.fixture
def walk(world: Any, tmp_path: Path) -> Any:
    walk = Walk(world, tmp_path)
    world.shape("20mbit")
    yield walk
    for process in walk.started:
        process.kill()
        process.communicate()


def by(walk: Walk, when: str, *more: str) -> "subprocess.Popen[str]":
    process: subprocess.Popen[str] = walk.start(
        walk.world.near, "get", "--json", "--by", when, "--key", walk.key, "-o", "got", *more,
        f"{SERVER}:{PORT}/file",
    )  # fmt: skip
    return process


def fact(process: "subprocess.Popen[str]") -> dict[str, Any]:
    out, said = process.communicate(timeout=90)
    assert process.returncode == 0, said
    (found,) = json.loads(out)["files"]
    assert found["bytes"] == SIZE
    assert found["in_time"]
    return dict(found)


@pytest.mark.long
def test_wifi_carries_all_of_it_where_that_is_in_time(walk: Walk) -> None:
    walk.serve()
    found = fact(by(walk, "5min"))
    assert found["received_bytes"]["wlan0"] >= SIZE
    assert found["received_bytes"].get("lte0", 0) < _ASKED_BYTES


@pytest.mark.long
def test_without_wifi_the_metered_network_begins_in_time(walk: Walk) -> None:
    walk.world.near.ip("link", "set", "wlan0", "down")
    walk.serve()
    found = fact(by(walk, "15s"))
    assert found["received_bytes"]["lte0"] >= SIZE


def test_it_waits_for_wifi_and_begins_when_it_is_there(walk: Walk) -> None:
    walk.world.near.ip("link", "set", "wlan0", "down")
    walk.serve()
    process = by(walk, "1h")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(3.0)
    assert walk.have() == 0
    walk.world.near.ip("link", "set", "wlan0", "up")
    walk.world.route("wlan0")
    found = fact(process)
    assert found["received_bytes"].get("lte0", 0) < _ASKED_BYTES


def test_an_upload_waits_for_wifi_though_its_program_is_killed(walk: Walk) -> None:
    """One piece over each of two runs, one file at the server."""
    walk.world.near.ip("link", "set", "wlan0", "down")
    inbox, photo = walk.folder / "inbox", walk.folder / "photo"
    inbox.mkdir()
    photo.write_bytes((walk.folder / "served" / "file").read_bytes())
    me = keys.to_text(keys.own(walk.folder / "client.key").public)
    (walk.folder / "friends.toml").write_text(f'[hosts]\nme = "{me}"\n')
    server = walk.start(
        walk.world.far, "serve", "-l", f"{SERVER}:{PORT}", "--own-key", "server.key",
        "--writable", "--clients", "friends.toml", "inbox",
    )  # fmt: skip
    assert "ready" in server.stderr.readline()

    def put() -> Any:
        return walk.start(
            walk.world.near, "put", "--json", "--by", "1h", "--key", walk.key,
            "--own-key", "client.key", "photo", f"{SERVER}:{PORT}/in/",
        )  # fmt: skip

    process = put()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(3.0)
    assert not list(inbox.rglob("photo*"))
    walk.world.near.ip("link", "set", "wlan0", "up")
    walk.world.route("wlan0")
    part, ends_s = inbox / "in" / "photo.part", time.monotonic() + 60
    while not (part.exists() and part.stat().st_size > SIZE // 4):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < ends_s
        time.sleep(0.005)
    process.kill()
    process.wait()
    out, said = put().communicate(timeout=90)
    (found,) = json.loads(out)["files"]
    assert found["in_time"], said
    assert found["here_before_bytes"] > SIZE // 5
    assert SIZE - found["here_before_bytes"] <= found["sent_bytes"]["wlan0"] < SIZE
    assert found["sent_bytes"].get("lte0", 0) < _ASKED_BYTES
    assert hashlib.sha256((inbox / "in" / "photo").read_bytes()).digest() == walk.digest


@pytest.mark.parametrize(
    ("when", "said"), [("yesterday", "is no time"), ("2020-01-01", "has passed")]
)
def test_a_wrong_time_is_refused(walk: Walk, when: str, said: str) -> None:
    process = by(walk, when)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 2
    assert said in error
