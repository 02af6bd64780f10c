"""A client with scripted networks, and a server behind all of them; each in a namespace of its own."""

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Final

from cedos.errors import EmulationError
from emu.experiments.sessions.air.networks import Scripted
from emu.experiments.sessions.air.process import as_on_a_wire
from emu.testbed import kernel
from emu.testbed.bare import SERVER, Bare
from emu.testbed.netns import Namespace

_MAC: Final = "02:ce:d0:00:00:01"
_END_S: Final = 5.0
_making: Final = threading.Lock()


class World(Bare):
    """As `Bare`, with these networks instead of a cable; their clock begins with `begin`.

    Args:
        networks: the client gets an interface of each one's name, with a default route.
    """

    def __init__(self, networks: Sequence[Scripted]) -> None:
        super().__init__()
        self._networks = networks
        self._inner = ExitStack()
        self.began_s = 0.0
        self._visits = dict.fromkeys((each.name for each in networks), 0)

    def __enter__(self) -> "World":
        """Builds everything; EmulationError (and nothing left) where that fails."""
        with _making:
            try:
                super().__enter__()
            except BaseException:
                self._inner.close()
                raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._inner.close()
        super().__exit__(kind, error, trace)

    def begin(self) -> None:
        """The networks' clock begins; `began_s` is the monotonic instant."""
        self._tell("begin")
        self.began_s = self._said()["began_s"]

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
        self._tell("end")
        return self._said()

    def _join(self) -> None:
        air = Namespace.create(self._instance.namespace_name("air"))
        for host in (self.client, self.server):
            with host.entered():
                kernel.write_sysctls(kernel.HOST_SYSCTLS)
        kernel.use_cubic([self.client, self.server])
        self.server.ip("address", "add", f"{SERVER}/32", "dev", "lo")
        for number, network in enumerate(self._networks, 1):
            self._wire(air, number, network.name)
        self._process: subprocess.Popen[str] = air.popen(
            "nice", "-n", "-5", sys.executable, "-m", "emu.experiments.sessions.air.process",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self._inner.callback(self._end)
        self._instance.add_session(self._process.pid)
        self._tell(json.dumps([each.script() for each in self._networks]))

    def _wire(self, air: Namespace, number: int, name: str) -> None:
        for host, own, other in (
            (self.client, name, f"near-{name}"),
            (self.server, name, f"far-{name}"),
        ):
            host.ip("link", "add", own, "type", "veth", "peer", "name", other, "netns", air.name)
            # One address for both ends, and no ARP: only IP crosses the air.
            host.ip("link", "set", own, "address", _MAC, "arp", "off", "up")
            air.ip("link", "set", other, "up")
            with host.entered():
                as_on_a_wire(own)
            with air.entered():
                kernel.write_sysctls({"net.ipv6.conf.all.disable_ipv6": "1"})
                as_on_a_wire(other)
        self.server.ip("route", "add", f"10.{number}.0.0/16", "dev", name, "src", SERVER)
        self.move(name)

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise EmulationError("the scripted networks ended by themselves") from None

    def _said(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise EmulationError("the scripted networks ended by themselves")
        said: dict[str, Any] = json.loads(line)
        return said

    def _end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
