"""Programs that serve inside a namespace: begun, waited for, and ended with all that they began."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from cedos.errors import EmulationError
from emu.testbed.netns import Namespace

_STOP_TIMEOUT_S = 3.0
_POLL_S = 0.01
_SHOWN_CHARACTERS = 500


class Service:
    """A running program; it leads a session of its own.

    What it prints goes to `output`; `logs` are other files in which it may say why it failed.
    """

    def __init__(
        self, namespace: Namespace, *command: str, output: Path, logs: tuple[Path, ...] = ()
    ) -> None:
        self._logs = (output, *logs)
        self._name = output.stem
        with output.open("wb") as file:
            self._process = namespace.popen(
                *command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def text(self) -> str:
        found = ""
        for log in self._logs:
            with suppress(OSError):
                found += log.read_text(errors="replace")
        return found.strip()

    def wait_for(self, answers: Callable[[], bool], within_s: float = 10.0) -> None:
        """Returns when it answers.

        EmulationError, with the end of what it printed, if it ends or is too late.
        """
        deadline_at_s = time.monotonic() + within_s
        while not answers():
            if self._ended or time.monotonic() > deadline_at_s:
                text = self.text[-_SHOWN_CHARACTERS:] or "it says nothing"
                raise EmulationError(f"{self._name} does not answer: {text}")
            time.sleep(_POLL_S)

    @property
    def _ended(self) -> bool:
        """Whether the program has ended. Its number stays taken, and so its group's, until `close`."""
        if self._process.returncode is not None:
            return True
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self._process.pid, options) is not None

    def close(self) -> None:
        """Asks it to end, and ends what is left of its session; again does nothing.

        One that has ended by itself may have left others behind.
        """
        if self._process.returncode is not None:
            return
        if not self._ended:
            self._process.terminate()
            until_s = time.monotonic() + _STOP_TIMEOUT_S
            while not self._ended and time.monotonic() < until_s:
                time.sleep(_POLL_S)
        # Those who serve a client may go on without their master.
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def accepts(namespace: Namespace, address: str, port: int, greeting: bytes = b"") -> bool:
    """Whether somebody in the namespace accepts connections there, and says so much at first."""
    with namespace.entered():
        trying = socket.socket()
    with trying, suppress(OSError):
        trying.settimeout(1.0)
        trying.connect((address, port))
        return not greeting or trying.recv(len(greeting)) == greeting
    return False
