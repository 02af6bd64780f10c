"""The daemon on an emulated laptop, for the bench of rescues: as root, or without the right to BPF."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from cedos.api.client import ControlClient
from cedos.errors import CedosError, EmulationError
from emu.testbed.phones import SERVER, Laptop

_TIMEOUT_S = 30.0
_FRESH_S = 1.0
_PRIORITY = -12
# All of root's rights but the one to load programs into the kernel.
_WITHOUT_BPF = ("setpriv", "--bounding-set=-bpf,-sys_admin")


def put_on_time(laptop: Laptop) -> None:
    """Lets the emulation itself go before what else keeps the host busy.

    Its links and servers run in sessions of their own, which the kernel weighs one against the other
    (autogroup); a process's niceness counts only within its session.
    """
    for role in ("wifi-isp", "cellular-isp", "server"):
        name = laptop.instance.namespace_name(role)
        done = subprocess.run(
            ["ip", "netns", "pids", name], capture_output=True, text=True, timeout=10, check=False
        )
        for pid in done.stdout.split():
            # A process may be gone by now, and a kernel have no such groups.
            with suppress(OSError):
                Path(f"/proc/{pid}/autogroup").write_text(f"{_PRIORITY}\n")


class Daemon:
    def __init__(self, laptop: Laptop, *, bpf: bool, rescue: bool) -> None:
        self._laptop = laptop
        self._bpf = bpf
        self._rescue = rescue
        directory = laptop.directory / "cedos"
        directory.mkdir()
        self._log = directory / "cedos.log"
        self._config = directory / "cedos.toml"
        self._client = ControlClient(directory / "control.sock")
        self._environment = os.environ | {
            "CEDOS_STATE_DIR": str(directory),
            "CEDOS_RUNTIME_DIR": str(directory),
        }

    def __enter__(self) -> "Daemon":
        self._config.write_text(
            f'[probes]\ntarget = "{SERVER}"\ninterval_s = 0.5\nidle_interval_s = 0.5\n'
            f"dns = false\n[steering]\nrescue = {str(self._rescue).lower()}\n"
            '[providers]\nhost = false\n[log]\nformat = "json"\n'
        )
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        if self._process.returncode not in (0, -signal.SIGKILL) and error is None:
            raise EmulationError(f"the daemon failed: {self._log_end()}")

    def start(self) -> None:
        """Starts it, as a user would; `until_both_live` waits until it is ready."""
        command = (sys.executable, "-m", "cedos", "up", "--config", str(self._config))
        with self._log.open("ab") as log:
            self._process = self._laptop.client.popen(
                *(() if self._bpf else _WITHOUT_BPF),
                *command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
            )

    def stop(self) -> None:
        """Ends it as systemd would; again does nothing."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Kills it in the middle of its work."""
        self._process.kill()
        self._process.wait()

    def cedos(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            self._laptop.client.command(sys.executable, "-m", "cedos", *arguments),
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )

    def default(self) -> str:
        """The interface that new connections take."""
        network = self._client.status().default.network
        if network is None:
            raise EmulationError("the daemon has no default")
        return network

    def rescues(self) -> int:
        return len(self.logged("rescued"))

    def logged(self, event: str) -> list[dict[str, Any]]:
        lines = self._log.read_text(errors="replace").splitlines()
        entries = [json.loads(line) for line in lines if line.startswith("{")]
        return [entry for entry in entries if entry.get("event") == event]

    def until_both_live(self) -> None:
        """Waits until it has heard both networks lately, and has seen them live for a while."""
        end_s = time.monotonic() + _TIMEOUT_S
        good = 0
        while good < 5:
            if self._process.poll() is not None:
                raise EmulationError(f"the daemon ended: {self._log_end()}")
            if time.monotonic() > end_s:
                raise EmulationError(f"the networks do not come back: {self._log_end()}")
            good = good + 1 if self._both_live() else 0
            time.sleep(0.2)

    def _both_live(self) -> bool:
        try:
            status = self._client.status()
        except CedosError:
            return False
        living = 0
        for network in status.networks:
            rtt = network.indicators.get("rtt_s")
            loss = network.indicators.get("ping_loss")
            alive = loss is not None and loss.value is not None and loss.value < 1.0
            living += alive and rtt is not None and rtt.age_s < _FRESH_S
        return living == 2 and status.default.network is not None

    def _log_end(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])
