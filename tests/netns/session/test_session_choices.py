"""Sessions follow a real daemon's choice of networks, both ways, and go on when it is killed."""

import asyncio
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cedos import session
from cedos.api.asking import DaemonChooser
from cedos.model import Bulk, Label, Urgency

pytestmark = pytest.mark.netns

BULK = Label(Urgency.BACKGROUND, Bulk.LARGE)
WEIGHTED = """
[decision]
objective = "balanced"
seconds_per_metered_mb = 100.0
"""


def carried(connection: session.Connection) -> dict[str, int]:
    """Bytes that each path's connection has carried."""
    return {path.facts.network: path.sent_bytes for path in connection.flow.core.paths}


def labels(connection: session.Connection) -> dict[str, int]:
    """Which labels each path is let onto."""
    return {path.facts.network: path.allowed for path in connection.flow.core.paths}


async def send(connection: session.Connection, wanted: Callable[[], bool]) -> None:
    """Background data until something is so."""
    async with asyncio.timeout(60):
        while not wanted():
            await connection.send(bytes(50_000), BULK, after=())


async def discard(listener: session.Listener, found: list[session.Connection]) -> None:
    connection = await listener.accept()
    found.append(connection)
    while await connection.receive() is not None:
        pass


WIFI_ONLY = {"wlan0": 0b1111, "lte0": 0b0111}
BOTH = {"wlan0": 0b1111, "lte0": 0b1111}


def test_a_session_keeps_to_what_the_daemon_chooses(
    world: Any, install: Callable[..., Any]
) -> None:
    cedos = install(world.near, WEIGHTED)
    world.shape("20mbit")
    listener = world.listen()
    far: list[session.Connection] = []
    world.server.start(discard(listener, far))

    async def scenario(process: "subprocess.Popen[str]") -> None:
        near = await world.connect(chooser=DaemonChooser(cedos.socket))
        await send(near, lambda: labels(near) == WIFI_ONLY)
        await asyncio.sleep(1.0)
        before = carried(near)
        await send(near, lambda: carried(near)["wlan0"] > before["wlan0"] + 1_000_000)
        # (What is left there are acknowledgements and words about paths.)
        assert carried(near)["lte0"] < before["lte0"] + 20_000
        assert labels(far[0]) == {"10.9.1.2": 0b1111, "10.9.2.2": 0b0111}
        # The chosen network dies without a word: the flow goes on over the other one.
        silent = "tc qdisc replace dev wlan0 root tbf rate 8bit burst 1b limit 1b"
        world.near.run(*silent.split())
        before = carried(near)
        await send(near, lambda: carried(near).get("lte0", 0) > before["lte0"] + 500_000)
        world.shape("20mbit")
        await send(near, lambda: labels(near) == WIFI_ONLY)
        process.kill()
        await send(near, lambda: labels(near) == BOTH)
        near.abort()
        await near.drained()

    with cedos.up("--dry-run") as process:
        world.client.do(scenario(process), 250)
    world.server.do(listener.close())


def test_without_a_daemon_nothing_is_missed(world: Any, tmp_path: Path) -> None:
    listener = world.listen()
    world.server.start(discard(listener, []))

    async def scenario() -> None:
        near = await world.connect(chooser=DaemonChooser(tmp_path / "control.sock"))
        await send(near, lambda: len(carried(near)) == 2 and min(carried(near).values()) > 100_000)
        assert labels(near) == BOTH
        near.abort()
        await near.drained()

    world.client.do(scenario(), 90)
    world.server.do(listener.close())
