"""The daemon on an emulated laptop whose networks die."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cedos.api.client import ControlClient
from cedos.errors import CedosError, EmulationError
from cedos.model import NetworkKind
from emu.testbed.access import INTERFACES
from emu.testbed.phones import SERVER, Laptop
from emu.testbed.programs.daemon import Daemon
from emu.testbed.programs.gateway import Gatewayed

_TIMEOUT_S = 30.0
_FRESH_S = 1.0
_TIMES_LIVE = 5
_PRIORITY = -12


def put_on_time(laptop: Laptop) -> None:
    """Give the emulation priority over other programs of the host.

    Its links and servers run in sessions of their own, and the kernel shares processors among sessions
    (autogroup): a process's niceness counts only within its session.
    """
    for role in ("wifi-isp", "cellular-isp", "server"):
        name = laptop.instance.namespace_name(role)
        done = subprocess.run(
            ["ip", "netns", "pids", name], capture_output=True, text=True, timeout=10, check=False
        )
        for pid in done.stdout.split():
            # A process may be gone by now, or the kernel may have no autogroups.
            with suppress(OSError):
                Path(f"/proc/{pid}/autogroup").write_text(f"{_PRIORITY}\n")


class RescueDaemon(Daemon):
    """A daemon with the questions that a bench asks it, and a reader of its log."""

    def __init__(self, laptop: Laptop, *, unmetered: bool = False, steering: str = "") -> None:
        config = (
            f'[probes]\ntarget = "{SERVER}"\ninterval_s = 0.5\nidle_interval_s = 0.5\n'
            "asleep_interval_s = 0.5\n"
            f"dns = false\n[steering]\n{steering}"
            '[providers]\nhost = false\n[log]\nformat = "json"\n'
        )
        if unmetered:
            config += f"[networks.{INTERFACES[NetworkKind.CELLULAR]}]\nmetered = false\n"
        super().__init__(laptop.client, laptop.directory / "cedos", config)

    def cedos(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            self._namespace.command(sys.executable, "-m", "cedos", *arguments),
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )

    def default(self) -> str:
        network = self.client.status().default.network
        if network is None:
            raise EmulationError("the daemon has no default")
        return network

    def rescues(self) -> int:
        return len(self.logged("rescued"))

    def logged(self, event: str) -> list[dict[str, Any]]:
        lines = self.log.read_text(errors="replace").splitlines()
        entries = [json.loads(line) for line in lines if line.startswith("{")]
        return [entry for entry in entries if entry.get("event") == event]

    def until_both_live(self) -> None:
        """Wait until the daemon has seen both networks live several times in a row."""
        good = 0

        def lived(client: ControlClient) -> bool:
            nonlocal good
            good = good + 1 if self._both_live() else 0
            return good == _TIMES_LIVE

        self.wait_for(lived, _TIMEOUT_S, every_s=0.2)

    def _both_live(self) -> bool:
        try:
            status = self.client.status()
        except CedosError:
            return False
        living = 0
        for network in status.networks:
            rtt = network.indicators.get("rtt_s")
            loss = network.indicators.get("ping_loss")
            alive = loss is not None and loss.value is not None and loss.value < 1.0
            living += alive and rtt is not None and rtt.age_s < _FRESH_S
        return living == 2 and status.default.network is not None


@contextmanager
def through_gateway(
    laptop: Laptop, user: str, *more: str, unmetered: bool = False
) -> Iterator[RescueDaemon]:
    """Lead a user's connections through a gateway at the server, beside a daemon.

    `more`: options of `cedos forward`.
    """
    daemon = RescueDaemon(laptop, unmetered=unmetered)
    daemon.start()
    resolver = laptop.directory / "gateway-resolv.conf"
    resolver.write_text(f"nameserver {SERVER}\n")
    variables = {"CEDOS_RUNTIME_DIR": daemon.environment["CEDOS_RUNTIME_DIR"]}
    options = ("--redirect", user, *more)
    try:
        with Gatewayed(laptop, laptop.directory, variables, options, resolver=resolver):
            yield daemon
    finally:
        daemon.stop()
