"""A client with scripted networks, and a server behind all of them; each in a namespace of its own."""

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from cedos.errors import EmulationError
from emu.experiments.sessions.air.networks import Scripted
from emu.testbed import kernel, wires
from emu.testbed.hosts import SERVER, Hosts
from emu.testbed.netns import Namespace
from emu.testbed.started import Started, end_by_input
from emu.testbed.wires import End

_MAC: Final = "02:ce:d0:00:00:01"
_END_S: Final = 5.0
_making: Final = threading.Lock()


class World(Started):
    """`Hosts` with these networks between them; their clock begins with `begin`.

    Args:
        networks: the client gets an interface of each one's name, with a default route.
    """

    def __init__(self, networks: Sequence[Scripted]) -> None:
        self._networks = networks
        self._hosts = Hosts()
        self._stack = ExitStack()
        self.began_s = 0.0
        self._visits = dict.fromkeys((each.name for each in networks), 0)

    @property
    def client(self) -> Namespace:
        return self._hosts.client

    @property
    def server(self) -> Namespace:
        return self._hosts.server

    @property
    def directory(self) -> Path:
        return self._hosts.directory

    def serve(self, servers: str) -> None:
        self._hosts.serve(servers)

    def _start(self) -> None:
        with _making:
            self._stack.enter_context(self._hosts)
            self._connect()

    def close(self) -> None:
        self._stack.close()

    def begin(self) -> None:
        """The networks' clock begins; `began_s` is the monotonic instant."""
        self._send("begin")
        self.began_s = self._answer()["began_s"]

    def move(self, name: str) -> None:
        """Gives the client another address on a network, as another access point would."""
        number = 1 + [each.name for each in self._networks].index(name)
        visit = self._visits[name]
        self._visits[name] = visit + 1
        if visit:
            self.client.ip("address", "flush", "dev", name)
        self.client.ip("address", "add", f"10.{number}.{visit}.2/24", "dev", name)
        self.client.ip(
            *("route", "replace", "default", "dev", name, "metric", str(100 * number)),
            *("src", f"10.{number}.{visit}.2"),
        )

    def dropped(self) -> dict[str, int]:
        """Ends the networks; how many packets each has dropped in its queues."""
        self._send("end")
        return self._answer()

    def _connect(self) -> None:
        instance = self._hosts.instance
        air = instance.namespace("air")
        for host in (self.client, self.server):
            with host.entered():
                kernel.write_sysctls(kernel.HOST_SYSCTLS)
        kernel.use_cubic([self.client, self.server])
        wires.add_address(self.server, SERVER)
        for number, network in enumerate(self._networks, 1):
            self._wire(air, number, network.name)
        self._process: subprocess.Popen[str] = air.popen(
            "nice", "-n", "-5", sys.executable, "-m", "emu.experiments.sessions.air.process",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self._stack.callback(self._end)
        instance.add_session(self._process.pid)
        self._send(json.dumps([each.script() for each in self._networks]))

    def _wire(self, air: Namespace, number: int, name: str) -> None:
        for host, own, other in (
            (self.client, name, f"near-{name}"),
            (self.server, name, f"far-{name}"),
        ):
            wires.connect(End(host, own), End(air, other))
            # One address for both ends, and no ARP: only IP crosses the air.
            host.ip("link", "set", own, "address", _MAC, "arp", "off", "up")
            air.ip("link", "set", other, "up")
            with host.entered():
                kernel.without_checksum_offload(own)
            with air.entered():
                kernel.write_sysctls({"net.ipv6.conf.all.disable_ipv6": "1"})
                kernel.without_checksum_offload(other)
        self.server.ip("route", "add", f"10.{number}.0.0/16", "dev", name, "src", SERVER)
        self.move(name)

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise EmulationError("the scripted networks ended by themselves") from None

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise EmulationError("the scripted networks ended by themselves")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _end(self) -> None:
        end_by_input(self._process, _END_S)
