"""The relay at the providers' side of both phones: MPTCP as far as there, whatever the server speaks."""

import shutil
import sys
from typing import Final, Literal

from cedos.commands.example import PLAIN
from cedos.errors import EmulationError
from emu.testbed.phones import Laptop
from emu.testbed.programs.servers import HTTP_PORT, HTTPS_PORT
from emu.testbed.services import Service, Started, accepts
from emu.testbed.wiring import RELAY

Mode = Literal["proxy", "transparent"]

PORT: Final = 3128
_START_TIMEOUT_S: Final = 15.0
# The addresses that the providers' NATs give to clients.
_CLIENTS: Final = "198.51.100.0/22"


class Relaying(Started):
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
        self._service: Service | None = None

    @property
    def environment(self) -> dict[str, str]:
        if self._mode == "transparent":
            return {}
        address = f"http://{RELAY}:{PORT}"
        return {"http_proxy": address, "https_proxy": address, "no_proxy": ""}

    @property
    def log_text(self) -> str:
        return self._log.read_text(errors="replace")

    def _start(self) -> None:
        ports = [str(port) for port in (HTTP_PORT, HTTPS_PORT)]
        options = ["--listen", str(PORT)]
        if self._mode == "transparent":
            options = [word for port in ports for word in ("--transparent", f"0.0.0.0:{port}")]
            rules = self._laptop.directory / "relay-rules"
            shutil.copyfile(PLAIN["relay-rules"], rules)
            for interface in ("isp-wifi", "isp-cellular"):
                self._core.run("sh", str(rules), "up", interface, *ports)
        command = (sys.executable, "-m", "cedos", "relay", "--allow", _CLIENTS, *options)
        self._service = Service(
            self._core, *command, "--log-format", "json", "--drain", "500ms", output=self._log
        )
        port = PORT if self._mode == "proxy" else HTTP_PORT
        self._service.wait_for(lambda: accepts(self._core, RELAY, port), _START_TIMEOUT_S)

    def close(self) -> None:
        if self._service is not None:
            self._service.close()
