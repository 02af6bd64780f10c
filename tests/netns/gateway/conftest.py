"""A laptop with two networks that has joined a gateway, and an origin that the gateway reaches."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from kit.waiting import wait_until

from tests.netns.session.conftest import World

CEDOS = str(Path(sys.executable).with_name("cedos"))
GATEWAY = "10.99.0.1"
ORIGIN = "203.0.113.2"
"""An address of the gateway's host, which the laptop takes for one of the world."""


class Laptop:
    """`near` and `far` of a `world`, with the gateway in the one and the proxy in the other."""

    def __init__(self, world, folder):
        self.world, self.folder = world, folder
        self.near, self.far = world.near, world.far
        self.far.ip("address", "add", f"{ORIGIN}/32", "dev", "lo")
        self._started = []
        self.gateway = self._start_gateway()
        with (folder / "line").open() as line:
            joining = self.near.popen(
                *(CEDOS, "join", "-"),
                stdin=line,
                stdout=subprocess.DEVNULL,
                env=self.environment("laptop"),
            )
        self._started.append(joining)
        assert joining.wait(20) == 0

    def environment(self, whose):
        folder = self.folder / whose
        return os.environ | {
            "XDG_CONFIG_HOME": str(folder),
            "XDG_CACHE_HOME": str(folder / "cache"),
        }

    def _start_gateway(self, *before):
        line = self.folder / "line"
        with line.open("wb") as out, (self.folder / "gateway.log").open("ab") as log:
            process = self.far.popen(
                *(
                    *before, CEDOS, "gateway", "--name", GATEWAY, "--allow-local", "--log-level",
                    "debug",
                ),
                stdout=out,
                stderr=log,
                env=self.environment("server"),
            )  # fmt: skip
        self._started.append(process)
        wait_until(lambda: "ready" in (self.folder / "gateway.log").read_text())
        return process

    def start_gateway_again(self, *before):
        """`before`: what it is started by, `prlimit` say."""
        (self.folder / "gateway.log").write_text("")
        kept = (self.folder / "line").read_text()
        self.gateway = self._start_gateway(*before)
        assert (self.folder / "line").read_text() == "", "it invited somebody again"
        (self.folder / "line").write_text(kept)

    def forward(self, *options):
        log = self.folder / "forward.log"
        with log.open("wb") as out:
            process = self.near.popen(
                *(CEDOS, "forward", *options), stderr=out, env=self.environment("laptop")
            )
        self._started.append(process)
        wait_until(lambda: "listens" in log.read_text() or "carries" in log.read_text())
        return process

    def keep(self, process):
        """It is ended with the laptop."""
        self._started.append(process)

    def serve_file(self, data):
        """As /file of the origin's port 8080."""
        folder = self.folder / "served"
        folder.mkdir()
        (folder / "file").write_bytes(data)
        self.serve(folder)

    def serve(self, folder, port=8080):
        with (self.folder / "served.log").open("wb") as log:
            process = self.far.popen(
                *(sys.executable, "-u", "-m", "http.server", str(port), "--bind", ORIGIN),
                *("--directory", str(folder)),
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        self._started.append(process)
        wait_until(lambda: self.far.run("ss", "-Hltn", "sport", "=", f":{port}").stdout != "")

    def curl(self, *words):
        process = self.near.popen(
            "curl", "-sS", *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self._started.append(process)
        return process

    def close(self):
        for process in reversed(self._started):
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


@pytest.fixture
def laptop(make_namespace, tmp_path):
    world = World(make_namespace)
    made = None
    try:
        made = Laptop(world, tmp_path)
        yield made
    finally:
        if made is not None:
            made.close()
        world.close()
