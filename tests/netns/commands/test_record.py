"""Logs from the start and the middle of a daemon's life replay to the same commands, byte for byte."""

import json
import os
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from kit.waiting import wait_until

from cedos.api.client import ControlClient
from cedos.api.messages import RecordingRequest
from cedos.budget_kinds import Resource
from cedos.controller.rule import RuleRequest
from cedos.errors import DaemonUnreachableError
from cedos.model import Budget
from emu.replay import controller_of, open_log, replay

PLAN = Budget("my.plan", Resource.DATA, 1e9, "2099-12-01T00:00:00", networks=("lte0",))
FIRST, SECOND = "middle.log", "later.log"
SERVER, WEB = "198.51.100.1", 8080
UPLOAD = 40_000


class World:
    """A laptop with two networks, and a server behind both that takes uploads."""

    def __init__(self, near, folder):
        self.near, self.folder = near, folder
        self.environment = os.environ | {
            "CEDOS_STATE_DIR": str(folder / "state"),
            "CEDOS_RUNTIME_DIR": str(folder / "run"),
        }

    @contextmanager
    def daemon(self, *options):
        config = self.folder / "cedos.toml"
        config.write_text(
            f'[probes]\ntarget = "{SERVER}"\ndns = false\nportal_url = ""\n[providers]\nhost = false\n'
        )
        command = (sys.executable, "-m", "cedos", "up", "--config", str(config), *options)
        with (self.folder / "up.out").open("wb") as output:
            process = self.near.popen(*command, env=self.environment, stdout=output, stderr=output)
        try:
            yield
        finally:
            process.terminate()
            process.wait(20)

    def until(self, condition):
        told = self.folder / "up.out"
        wait_until(condition, 60.0, every_s=0.2, describe=lambda: told.read_text()[-2000:])

    def upload(self):
        with self.near.entered():
            client = socket.create_connection((SERVER, WEB), timeout=20)
        with client:
            client.sendall(
                f"POST /up HTTP/1.1\r\nHost: {SERVER}\r\nContent-Length: {UPLOAD}\r\n\r\n".encode()
                + bytes(UPLOAD)
            )
            assert client.recv(100).startswith(b"HTTP/1.1 200")


def take_uploads(listening):
    """Reads what comes, and answers; until the socket is closed."""
    while True:
        try:
            client, _ = listening.accept()
        except OSError:
            return
        with client:
            data = b""
            while len(data.partition(b"\r\n\r\n")[2]) < UPLOAD:
                data += client.recv(65536)
            client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")


@pytest.fixture
def world(make_namespace, tmp_path):
    near, far = make_namespace("near"), make_namespace("far")
    for net, name in enumerate(("wlan0", "lte0"), 1):
        near.ip("link", "add", name, "type", "veth", "peer", name, "netns", far.name)
        for side, host in ((near, 2), (far, 1)):
            side.ip("address", "add", f"10.9.{net}.{host}/24", "dev", name)
            side.ip("link", "set", name, "up")
        near.ip("route", "add", "default", "via", f"10.9.{net}.1", "metric", str(600 + net))
    far.ip("address", "add", f"{SERVER}/32", "dev", "lo")
    with far.entered():
        listening = socket.create_server((SERVER, WEB))
    serving = threading.Thread(target=take_uploads, args=(listening,))
    serving.start()
    with ExitStack() as stack:
        stack.callback(serving.join)
        stack.callback(listening.close)
        stack.callback(listening.shutdown, socket.SHUT_RDWR)
        yield World(near, tmp_path)


@pytest.mark.timeout(300)
def test_a_log_of_a_living_daemon_gives_the_same_commands(world):
    state, runtime = (Path(world.environment[f"CEDOS_{name}_DIR"]) for name in ("STATE", "RUNTIME"))
    client = ControlClient(runtime / "control.sock", timeout_s=60.0)

    def default(network):
        return client.status().default.network == network

    def answers():
        with suppress(DaemonUnreachableError):
            return any("rtt_s" in each.indicators for each in client.status().networks)
        return False

    from_start = world.folder / "start.log"
    with world.daemon("--record", str(from_start)):
        world.until(answers)
        client.set_budget(PLAN)
        world.upload()
        assert client.record(RecordingRequest(on=False)).files == (str(from_start),)
        client.add_rule(RuleRequest(host="secret.example", never=("lte0",)))
        client.record(RecordingRequest(on=True, file=FIRST))
        world.upload()
        used = client.status().default.network
        net, other = {"wlan0": (1, "lte0"), "lte0": (2, "wlan0")}[used]
        world.near.ip("link", "set", used, "down")
        world.until(lambda: default(other))
        world.upload()
        ended = client.record(RecordingRequest(on=False))
        client.record(RecordingRequest(on=True, file=SECOND))
        world.near.ip("link", "set", used, "up")
        route = ("default", "via", f"10.9.{net}.1", "metric", str(600 + net))
        world.near.ip("route", "add", *route)
        world.near.ip("link", "set", other, "down")
        world.until(lambda: default(used))
        world.upload()
        command = world.near.command(sys.executable, "-m", "cedos", "record", "start", FIRST)
        refused = subprocess.run(
            command, env=world.environment, capture_output=True, text=True, check=False
        )
        assert (refused.returncode, "already" in refused.stderr) == (1, True)
    folder = state / "records"
    assert ended.files == (str(folder / FIRST),)
    for path in (from_start, folder / FIRST, folder / SECOND):
        header, events = open_log(path)
        controller = controller_of(header, None)
        found = replay(controller, events)
        assert found.different == []
        assert controller.decider.objective.name == "budgets"
        assert PLAN.name in controller.budgets.keepers
        assert found.commands["SetDefault"] >= 1
        assert found.flows >= 1
        assert b"secret" not in json.dumps(header, default=str).encode()
        assert path.stat().st_mode & 0o777 == 0o600
        if path.name == FIRST:
            assert found.events == ended.events
