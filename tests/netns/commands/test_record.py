"""Logs from the start and the middle of a daemon's life replay to the same commands, byte for byte."""

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from cedos.api.client import ControlClient
from cedos.api.messages import RecordingRequest
from cedos.budget_kinds import Resource
from cedos.controller.rule import RuleRequest
from cedos.errors import DaemonUnreachableError
from cedos.model import Budget
from emu.replay import controller_of, open_log, replay

PLAN = Budget("my.plan", Resource.DATA, 1e9, "2099-12-01T00:00:00", networks=("lte0",))
FIRST, SECOND = "middle.log", "later.log"


@pytest.mark.timeout(300)
def test_a_log_of_a_living_daemon_gives_the_same_commands(world):
    state, runtime = (Path(world.environment[f"CEDOS_{name}_DIR"]) for name in ("STATE", "RUNTIME"))
    client = ControlClient(runtime / "control.sock", timeout_s=60.0)

    def default(network):
        return client.status().default.network == network

    def answers():
        with suppress(DaemonUnreachableError):
            return any(each.kind == "udp-train" for each in client.status().probes)
        return False

    from_start = world.folder / "start.log"
    options = ("--config", str(world.config), "--record", str(from_start))
    with world.probe_server(), world.running(world.near, "up", *options):
        world.until(answers)
        client.set_budget(PLAN)
        world.upload()
        assert client.record(RecordingRequest(on=False)).files == (str(from_start),)
        client.add_rule(RuleRequest(host="secret.example", never=("lte0",)))
        client.record(RecordingRequest(on=True, file=FIRST))
        world.upload()
        # Either network may be the default: a train measures what a busy machine lets through.
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
