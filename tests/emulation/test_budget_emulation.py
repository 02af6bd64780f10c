"""Budgets on an emulated laptop: an unmodified program's connections go where the prices say."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cedos.model import NetworkKind
from emu.places.traces import Trace
from emu.testbed.access import INTERFACES, Access
from emu.testbed.phones import SERVER, Laptop
from emu.testbed.programs.servers import Servers

MONTHLY = ("--until", "2099-12-01", "--every", "month")


class Host:
    """A laptop whose phone is the faster network by far, with cedos on it."""

    def __init__(self, laptop: Laptop, folder: Path) -> None:
        self.laptop = laptop
        self.environment = os.environ | {
            "CEDOS_STATE_DIR": str(folder / "state"),
            "CEDOS_RUNTIME_DIR": str(folder / "run"),
        }
        self.config = folder / "cedos.toml"
        lte = INTERFACES[NetworkKind.CELLULAR]
        self.config.write_text(
            f'[probes]\ntarget = "{SERVER}"\ninterval_s = 0.5\nidle_interval_s = 0.5\n'
            "asleep_interval_s = 0.5\ndns = false\n"
            f'portal_url = ""\n[providers]\nhost = false\n[networks.{lte}]\nmetered = true\n'
        )

    def cedos(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            self.laptop.client.command(sys.executable, "-m", "cedos", *arguments),
            env=self.environment, capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip

    def default(self) -> str | None:
        done = self.cedos("status", "--json")
        network: str | None = None
        if done.returncode == 0:
            network = json.loads(done.stdout)["default"]["network"]
        return network

    def until(self, condition: Callable[[], bool], limit_s: float = 30.0) -> None:
        deadline_s = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < deadline_s
            time.sleep(0.2)

    def download(self, size: int) -> None:
        done = self.laptop.client.run(
            "curl", "-sS", "-o", "/dev/null", "--max-time", "60", f"http://{SERVER}/bytes/{size}"
        )
        assert done.returncode == 0


@pytest.fixture
def host(tmp_path: Path, registry: Path) -> Iterator[Host]:
    slow, fast = Trace.constant(1e6), Trace.constant(20e6)
    with Laptop(
        # (So slow that a small transfer, too, is worth the phone's price and its radio's joules.)
        Access(NetworkKind.WIFI, slow, slow, 0.500),
        Access(NetworkKind.CELLULAR, fast, fast, 0.020),
    ) as laptop, Servers(laptop):  # fmt: skip
        yield Host(laptop, tmp_path)


READER = f"""
import asyncio
from cedos.apps.prefetch import DaemonSurroundings, HttpFetcher, Prefetcher

async def read():
    async with Prefetcher(DaemonSurroundings(program="reader")) as prefetcher:
        pages = [
            prefetcher.prefetch(HttpFetcher("http://{SERVER}/bytes/" + str(size)), size=size)
            for size in (400_000, 900_000_000)
        ]
        for _ in range(300):
            if pages[0].ready:
                break
            await asyncio.sleep(0.1)
        print(int(pages[0].ready), len((await pages[0].get()).content), flush=True)
        await asyncio.sleep(60)

asyncio.run(read())
"""


def test_a_program_prefetches_within_the_budget_and_explain_says_why(host: Host) -> None:
    command = (sys.executable, "-m", "cedos", "up", "--config", str(host.config))
    daemon = host.laptop.client.popen(*command, env=host.environment, stderr=subprocess.PIPE)
    reader = None
    try:
        host.until(lambda: host.default() is not None)
        assert host.cedos("budget", "set", "data", "200MB", *MONTHLY).returncode == 0
        wifi = INTERFACES[NetworkKind.WIFI]
        host.laptop.client.run("ip", "link", "set", wifi, "down")
        reader = host.laptop.client.popen(
            sys.executable, "-c", READER, env=host.environment, stdout=subprocess.PIPE
        )
        assert reader.stdout is not None
        assert reader.stdout.readline().split() == [b"1", b"400000"]

        def told() -> str:
            return host.cedos("explain", "--prefetch").stdout

        host.until(lambda: "1 used" in told())
        printed = told()
        assert f"reader (process {reader.pid})" in printed
        assert "/bytes/900000000" in printed
        assert "it is more than the budget has left" in printed
        (budget,) = json.loads(host.cedos("budget", "--json").stdout)
        assert 400_000 < budget["spent"] < 2_000_000
        assert budget["bought_s"] > 0.0
        reader.kill()
        host.until(lambda: "no program prefetches now" in told())
    finally:
        if reader is not None:
            reader.kill()
            reader.communicate(timeout=20)
        daemon.send_signal(signal.SIGTERM)
        _, log = daemon.communicate(timeout=20)
    assert daemon.returncode == 0, log.decode()
    assert "Traceback" not in log.decode()


def test_connections_leave_a_network_whose_budget_is_spent(host: Host) -> None:
    wifi, lte = INTERFACES[NetworkKind.WIFI], INTERFACES[NetworkKind.CELLULAR]
    command = (sys.executable, "-m", "cedos", "up", "--config", str(host.config))
    daemon = host.laptop.client.popen(*command, env=host.environment, stderr=subprocess.PIPE)
    try:
        host.until(lambda: host.default() == lte)
        set_one = host.cedos("budget", "set", "data", "1GB", *MONTHLY)
        assert set_one.returncode == 0, set_one.stderr
        host.download(3_100_000)
        time.sleep(3.0)
        assert host.default() == lte  # there is plenty
        changed = host.cedos("budget", "set", "data", "2MB", *MONTHLY)
        assert changed.returncode == 0, changed.stderr
        host.until(lambda: host.default() == wifi)
        (budget,) = json.loads(host.cedos("budget", "--json").stdout)
        assert budget["spent"] >= 3.1e6
        assert budget["spent_up"]
        reason = json.loads(host.cedos("explain", "--json").stdout)["reason"]
        assert f"{lte} is used only where nothing else works" in reason
        assert host.cedos("budget", "remove", "data").returncode == 0
        host.until(lambda: host.default() == lte)
    finally:
        daemon.send_signal(signal.SIGTERM)
        _, log = daemon.communicate(timeout=20)
    assert daemon.returncode == 0, log.decode()
    assert "Traceback" not in log.decode()
