"""`cedos up` in a namespace, as a user would start it; state, runtime files and log in one folder."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from cedos.api.client import ControlClient
from cedos.errors import CedosError, EmulationError
from emu.testbed.netns import Namespace

_STOP_TIMEOUT_S = 20.0
_LOG_LINES = 15


class Daemon:
    """A daemon, which can be started again after its end.

    `prefix` is a command to put before the daemon's own. With `own_session` it has a session of its own,
    and so a share of the processors of its own.
    """

    def __init__(
        self,
        namespace: Namespace,
        directory: Path,
        config: str,
        *,
        prefix: Sequence[str] = (),
        own_session: bool = False,
    ) -> None:
        self._namespace = namespace
        self._prefix = prefix
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
                *self._prefix,
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
