"""The relay on the providers' side of both phones: clients speak MPTCP to it, servers only TCP."""

import hashlib
import re
import shlex
from pathlib import Path
from typing import Final

from cedos.commands.example import PLAIN
from cedos.errors import EmulationError
from emu.testbed.phones import Laptop
from emu.testbed.services import Service, Started, accepts
from emu.testbed.wiring import RELAY

PORT: Final = 3128
_START_TIMEOUT_S: Final = 15.0
# The addresses that the providers' NATs give to clients.
_CLIENTS: Final = "198.51.100.0/22"


def command(folder: Path, *lines: str) -> list[str]:
    """Write the shipped configuration to `folder`, with `lines` added; return the unit's command.

    The name of squid's shared memory is unique, because network namespaces share /dev/shm.
    """
    config = folder / "relay.conf"
    config.write_text("\n".join([PLAIN["relay-config"].read_text(), *lines, ""]))
    unit = PLAIN["relay-unit"].read_text()
    started = re.search(r"^ExecStart=(.+)$", unit, re.M)
    assert started is not None
    name = f"cedos{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}"
    own = started[1].replace("/etc/cedos/relay.conf", str(config)).replace("cedosrelay", name)
    return shlex.split(own)


class Relaying(Started):
    """The shipped relay in the laptop's core, as a `with` block inside the laptop's.

    The laptop needs a core. `environment` has the variables that tell programs of the relay.
    """

    environment: Final = {
        "http_proxy": f"http://{RELAY}:{PORT}",
        "https_proxy": f"http://{RELAY}:{PORT}",
        "no_proxy": "",
    }

    def __init__(self, laptop: Laptop) -> None:
        if laptop.core is None:
            raise EmulationError("a relay needs a laptop with a core")
        self._core = laptop.core
        self._folder = laptop.directory
        self._service: Service | None = None

    def _start(self) -> None:
        words = command(self._folder, f"acl clients src {_CLIENTS}", "shutdown_lifetime 1 second")
        self._service = Service(self._core, *words, output=self._folder / "relay.log")
        self._service.wait_for(lambda: accepts(self._core, RELAY, PORT), _START_TIMEOUT_S)

    def close(self) -> None:
        if self._service is not None:
            self._service.close()
