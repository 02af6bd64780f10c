"""A file while everything happens at once: addresses change, networks go, both programs are killed."""

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cedos.session import keys

SIZE = 16_000_000
PORT = 7008
SERVER = "10.99.0.1"


class Walk:
    def __init__(self, world: Any, folder: Path) -> None:
        self.world, self.folder = world, folder
        (folder / "served").mkdir()
        text = random.Random(3).randbytes(SIZE)
        (folder / "served" / "file").write_bytes(text)
        self.digest = hashlib.sha256(text).digest()
        self.environment = dict(
            os.environ,
            XDG_CONFIG_HOME=str(folder / "config"),
            XDG_STATE_HOME=str(folder / "state"),
        )
        self.key = keys.to_text(keys.own(folder / "server.key").public)
        self.started: list[Any] = []

    def start(self, where: Any, program: str, *arguments: str) -> Any:
        code = f"from cedos.commands.sessions.{program} import main; main()"
        process = where.popen(
            sys.executable, "-c", code, *arguments,
            env=self.environment, cwd=self.folder, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.started.append(process)
        return process

    def serve(self) -> Any:
        process = self.start(
            self.world.far, "serve", "-l", f"{SERVER}:{PORT}", "--own-key", "server.key", "served"
        )
        line = process.stderr.readline()
        assert "ready" in line, line + process.stderr.read()
        return process

    def get(self) -> Any:
        return self.start(
            self.world.near,
            "get",
            "--json",
            "--key",
            self.key,
            "-o",
            "got",
            f"{SERVER}:{PORT}/file",
        )

    def have(self) -> int:
        try:
            return (self.folder / "got.part").stat().st_size
        except FileNotFoundError:
            return 0

    def more(self, n_bytes: int, client: Any) -> None:
        """Waits until so many more bytes have come."""
        wanted, ends_s = self.have() + n_bytes, time.monotonic() + 60
        while self.have() < wanted:
            assert client.poll() is None, client.communicate()
            assert time.monotonic() < ends_s, f"stuck at {self.have()} bytes"
            time.sleep(0.005)


@pytest.fixture
def walk(world: Any, tmp_path: Path) -> Any:
    walk = Walk(world, tmp_path)
    yield walk
    for process in walk.started:
        process.kill()
        process.communicate()


def test_a_walk_with_crashes(walk: Any) -> None:
    world, step = walk.world, SIZE // 12
    world.shape("20mbit")
    server, client = walk.serve(), walk.get()
    walk.more(step, client)
    # The Wi-Fi gives another address.
    world.near.ip("address", "add", "10.9.1.77/24", "dev", "wlan0")
    world.near.ip("address", "del", "10.9.1.2/24", "dev", "wlan0")
    world.near.ip("address", "replace", "10.9.1.77/24", "dev", "wlan0")
    world.route("wlan0")
    walk.more(step, client)
    world.near.ip("link", "set", "lte0", "down")
    walk.more(step, client)
    client.send_signal(signal.SIGKILL)
    client.wait()
    # While nobody fetches, the Wi-Fi is lost and the phone comes back.
    world.near.ip("link", "set", "wlan0", "down")
    world.near.ip("link", "set", "lte0", "up")
    world.route("lte0")
    client = walk.get()
    walk.more(step, client)
    server.kill()
    server.wait()
    time.sleep(0.5)
    server = walk.serve()
    walk.more(step, client)
    world.near.ip("link", "set", "wlan0", "up")
    world.route("wlan0")
    out, errors = client.communicate(timeout=60)
    assert client.returncode == 0, errors
    assert hashlib.sha256((walk.folder / "got").read_bytes()).digest() == walk.digest
    assert '"sessions": 2' in out  # one ended with the server, none with a network
    server.terminate()
    assert server.wait(20) == 0


def test_both_networks_are_gone_for_a_while(walk: Any) -> None:
    world = walk.world
    world.shape("20mbit")
    walk.serve()
    client = walk.get()
    walk.more(SIZE // 8, client)
    for name in ("wlan0", "lte0"):
        world.near.ip("link", "set", name, "down")
    time.sleep(1.5)
    before = walk.have()
    time.sleep(0.5)
    assert walk.have() == before < SIZE
    assert client.poll() is None
    world.near.ip("link", "set", "lte0", "up")
    world.route("lte0")
    out, errors = client.communicate(timeout=60)
    assert client.returncode == 0, errors
    assert '"sessions": 1' in out
    assert hashlib.sha256((walk.folder / "got").read_bytes()).digest() == walk.digest
