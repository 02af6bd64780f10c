"""Programs of neighbours who share: the gateway, helpers, and a requestor with its proxy."""

import sys
from pathlib import Path
from typing import Final

from cedos.storage.sharing_status import STATUS_FILES, read_status
from emu.testbed.neighbours import Neighbourhood
from emu.testbed.netns import Namespace
from emu.testbed.programs.gateway import GATEWAY, PORT, PROXY_PORT
from emu.testbed.services import Service, Started, accepts

_CEDOS: Final = (sys.executable, "-m", "cedos")
_START_S: Final = 20.0
_PROXY: Final = "127.0.0.1"


class SharingHosts(Started):
    """The gateway in the server; helpers and requestor have joined it, and are registered.

    Nothing is shared until `help`, `request` and `forward` are called. `gateway` is the gateway that
    `serve` began last.
    """

    def __init__(self, there: Neighbourhood) -> None:
        self._there = there
        self._services: list[Service] = []
        self.gateway: Service

    def variables(self, host: str) -> dict[str, str]:
        """Return the environment of a host's programs: `requestor`, `helper-0`, ..."""
        folder = self._there.directory / f"cedos-{host}"
        return {
            "CEDOS_USER_DIR": str(folder / "user"),
            "CEDOS_STATE_DIR": str(folder / "state"),
            "CEDOS_RUNTIME_DIR": str(folder / "run"),
        }

    def namespace(self, host: str) -> Namespace:
        """Return the namespace of a host: `gateway`, `requestor`, `helper-0`, ..."""
        if host == "gateway":
            return self._there.server
        if host == "requestor":
            return self._there.requestor
        return self._there.helpers[int(host.removeprefix("helper-"))].namespace

    def cedos(self, host: str, *arguments: str) -> str:
        """Run a command of cedos on a host to its end; return what it printed."""
        return self.namespace(host).run(*self._line(host, *arguments)).stdout

    def begin(self, host: str, *arguments: str, name: str = "") -> Service:
        """Begin a command of cedos that goes on."""
        log = self._there.directory / f"{host}-{name or arguments[-1]}.log"
        service = Service(self.namespace(host), *self._line(host, *arguments), output=log)
        self._services.append(service)
        return service

    def serve(self) -> Service:
        """Begin the gateway, again if it has ended; return once it listens."""
        self.gateway = self.begin(
            "gateway", "gateway", "--name", GATEWAY, "--allow-local", "--no-cache", name="gateway"
        )
        self.gateway.wait_for(lambda: accepts(self._there.server, GATEWAY, PORT), _START_S)
        return self.gateway

    def help(self, number: int, *options: str, rate: str = "4Mbit") -> Service:
        """Begin `cedos share help` on a helper; return once it listens."""
        given = options or ("--price", "0.50EUR/GB", "--limit", "500MB")
        return self._share(f"helper-{number}", "help", "--rate", rate, *given)

    def request(self, *options: str) -> Service:
        """Begin `cedos share request` on the requestor; return once it looks for helpers."""
        return self._share(
            "requestor", "request", *(options or ("--rate", "12Mbit", "--budget", "2EUR"))
        )

    def forward(self) -> Service:
        """Begin `cedos forward` on the requestor; return once it accepts programs."""
        service = self.begin(
            "requestor", "forward", "--fail", "closed", "--proxy", str(PROXY_PORT), name="forward"
        )
        service.wait_for(lambda: accepts(self._there.requestor, _PROXY, PROXY_PORT), _START_S)
        return service

    def stop_sharing(self) -> None:
        """End all programs but the gateway."""
        for service in reversed(self._services):
            if service is not self.gateway:
                service.close()
        self._services = [self.gateway]

    def _start(self) -> None:
        there = self._there
        self.serve()
        for number, _ in enumerate(there.helpers):
            self._register(f"helper-{number}")
        with there.at_home():
            self._register("requestor")

    def _share(self, host: str, side: str, *options: str) -> Service:
        """Begin a side; return once it has written its status: a killed one leaves its own behind."""
        service = self.begin(host, "share", side, *options, name=side)
        status = Path(self.variables(host)["CEDOS_RUNTIME_DIR"]) / STATUS_FILES[side]

        def writes() -> bool:
            found = read_status(status)
            return found is not None and found["pid"] == service.pid

        service.wait_for(writes, _START_S)
        return service

    def _register(self, host: str) -> None:
        line = self.cedos("gateway", "gateway", "--name", GATEWAY, "--invite", host)
        self.cedos(host, "join", line.strip().removeprefix("cedos join "))
        self.cedos(host, "share", "register", "--name", host)

    def _line(self, host: str, *arguments: str) -> tuple[str, ...]:
        settings = [f"{name}={value}" for name, value in self.variables(host).items()]
        return ("env", *settings, *_CEDOS, *arguments)

    def close(self) -> None:
        for service in reversed(self._services):
            service.close()
        self._services.clear()
