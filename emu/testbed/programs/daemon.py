"""`cedos up` in a namespace, as a user would start it; state, runtime files and log in one folder."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cedos.api.client import ControlClient
from cedos.errors import CedosError, EmulationError
from cedos.model import NetworkKind
from emu.testbed.access import INTERFACES
from emu.testbed.netns import Namespace
from emu.testbed.phones import SERVER, Laptop
from emu.testbed.programs.gateway import Gatewayed

_STOP_TIMEOUT_S = 20.0
_LOG_LINES = 15
_TIMEOUT_S = 30.0
_FRESH_S = 1.0
_TIMES_LIVE = 5
_PRIORITY = -12


class Daemon:
    """A daemon, which can be started again after its end.

    With `own_session` it has a session of its own, and so a share of the processors of its own.
    """

    def __init__(
        self,
        namespace: Namespace,
        directory: Path,
        config: str,
        *,
        own_session: bool = False,
    ) -> None:
        self._namespace = namespace
        self._own_session = own_session
        self.log = directory / "cedos.log"
        runtime = directory / "run"
        runtime.mkdir(parents=True, exist_ok=True)
        self._config = directory / "cedos.toml"
        self._config.write_text(config)
        self.client = ControlClient(runtime / "control.sock")
        self.environment = os.environ | {
            "CEDOS_STATE_DIR": str(directory),
            "CEDOS_RUNTIME_DIR": str(runtime),
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        """The process that runs, or has ended by itself."""
        assert self._process is not None
        return self._process

    def start(self) -> None:
        """Start the daemon without waiting for it; `wait_for` waits."""
        command = (sys.executable, "-m", "cedos", "up", "--config", str(self._config))
        with self.log.open("ab") as log:
            self._process = self._namespace.popen(
                *command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
                start_new_session=self._own_session,
            )

    def wait_for(
        self, ready: Callable[[ControlClient], bool], within_s: float, every_s: float = 0.05
    ) -> None:
        """Wait until the daemon is ready.

        EmulationError, with the log's end: the daemon has ended, or is not ready in time.
        """
        deadline_at_s = time.monotonic() + within_s
        while time.monotonic() < deadline_at_s:
            # It may have ended with a message instead of answering.
            if self.process.poll() is not None:
                raise EmulationError(f"the daemon ended at its start: {self.log_end()}")
            try:
                if ready(self.client):
                    return
            except CedosError:
                pass
            time.sleep(every_s)
        raise EmulationError(f"the daemon was not ready in time: {self.log_end()}")

    def stop(self) -> None:
        """End the daemon as systemd would. EmulationError: it does not end, or has failed."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill()
                raise EmulationError(f"the daemon did not end: {self.log_end()}") from None
        if self._process.returncode != 0:
            raise EmulationError(f"the daemon failed: {self.log_end()}")

    def kill(self) -> None:
        process, self._process = self.process, None
        process.kill()
        process.wait()

    def log_end(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return "\n".join(lines[-_LOG_LINES:]) or "it said nothing"


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
