"""The relay at the providers' side of both phones: MPTCP as far as there, whatever the server speaks."""

import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from types import TracebackType
from typing import Final, Literal

from cedos.commands.example import PLAIN
from cedos.errors import EmulationError
from emu.testbed.phones import Laptop
from emu.testbed.servers import HTTP_PORT, HTTPS_PORT
from emu.testbed.wiring import RELAY

Mode = Literal["proxy", "transparent"]

PORT: Final = 3128
_START_TIMEOUT_S: Final = 15.0
_STOP_TIMEOUT_S: Final = 3.0
# The addresses that the providers' NATs give to clients.
_CLIENTS: Final = "198.51.100.0/22"


class Relaying:
    """`cedos relay` in the laptop's core, as a `with` block inside the laptop's.

    Args:
        laptop: one with a core.
        mode: `proxy`: programs are told of it (`environment`); `transparent`: the core diverts HTTP
            and HTTPS to it, by the rules that `cedos example relay-rules` prints.
    """

    def __init__(self, laptop: Laptop, mode: Mode) -> None:
        if laptop.core is None:
            raise EmulationError("a relay needs a laptop with a core")
        self._core = laptop.core
        self._laptop = laptop
        self._mode = mode
        self._log = laptop.directory / "relay.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """What programs need to find it."""
        if self._mode == "transparent":
            return {}
        address = f"http://{RELAY}:{PORT}"
        return {"http_proxy": address, "https_proxy": address, "no_proxy": ""}

    @property
    def said(self) -> str:
        """Its log so far."""
        return self._log.read_text(errors="replace")

    def __enter__(self) -> "Relaying":
        """Returns when it accepts connections. Errors: EmulationError."""
        ports = [str(port) for port in (HTTP_PORT, HTTPS_PORT)]
        options = ["--listen", str(PORT)]
        if self._mode == "transparent":
            options = [word for port in ports for word in ("--transparent", f"0.0.0.0:{port}")]
            rules = self._laptop.directory / "relay-rules"
            shutil.copyfile(PLAIN["relay-rules"], rules)
            for interface in ("isp-wifi", "isp-cellular"):
                self._core.run("sh", str(rules), "up", interface, *ports)
        command = (sys.executable, "-m", "cedos", "relay", "--allow", _CLIENTS, *options)
        with self._log.open("wb") as said:
            self._process = self._core.popen(
                *(*command, "--log-format", "json", "--drain", "500ms"),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        try:
            self._await()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends it; again does nothing."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _await(self) -> None:
        assert self._process is not None
        port = PORT if self._mode == "proxy" else HTTP_PORT
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline_s and self._process.poll() is None:
            with self._core.entered():
                trying = socket.socket()
            with trying, suppress(OSError):
                trying.settimeout(1)
                trying.connect((RELAY, port))
                return
            time.sleep(0.05)
        raise EmulationError(f"the relay does not answer: {self.said.strip()[-500:]}")
