"""The gateway beside the server, and its proxy in the client, for programs whose environment names it."""

import itertools
import json
import math
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cedos.errors import EmulationError
from cedos.storage.sharing_status import STATUS_FILES, read_status
from emu.testbed.neighbours import Neighbourhood
from emu.testbed.netns import Namespace
from emu.testbed.phones import Laptop
from emu.testbed.services import Service, Started, accepts
from emu.testbed.wiring import SERVER, SERVER_ADDRESSES

PORT: Final = 7009
# Another address than those of origins, since packets to the gateway's own address go past it.
GATEWAY: Final = SERVER_ADDRESSES[-1]
PROXY_PORT: Final = 1080
_PROXY: Final = "127.0.0.1"
_START_TIMEOUT_S: Final = 15.0
_WITH_RESOLVER: Final = 'mount --bind "$0" "$(readlink -f /etc/resolv.conf)" && exec "$@"'
_CEDOS: Final = (sys.executable, "-m", "cedos")
_START_S: Final = 20.0


class Gatewayed(Started):
    """`cedos gateway` in the laptop's server and `cedos forward` in its client, which joined it."""

    environment: Final = {"ALL_PROXY": f"socks5h://{_PROXY}:{PROXY_PORT}"}
    """The environment of programs that are to use the proxy."""

    def __init__(
        self,
        laptop: Laptop,
        directory: Path,  # the folder for the logs
        # Environment variables of the client's proxy, as those that lead to the daemon.
        variables: dict[str, str],
        options: tuple[str, ...] = (),  # options of the proxy beside its port
        where: Namespace | None = None,  # the namespace in which the proxy runs; None: the client's
        resolver: Path | None = None,  # the gateway's resolv.conf; None: the host's
    ) -> None:
        self._options = options
        self._near = where or laptop.client
        self._resolver = resolver
        self._laptop = laptop
        self._directory = directory
        self._variables = variables
        self._services: list[Service] = []

    @property
    def pids(self) -> tuple[int, int]:
        """The pids of the gateway and the proxy."""
        gateway, forward = self._services
        return gateway.pid, forward.pid

    def _start(self) -> None:
        # Gateway and client have folders of their own for their keys, as two hosts have.
        keys = self._laptop.directory
        there = ("env", f"XDG_CONFIG_HOME={keys / 'gateway-server'}")
        here = ("env", f"XDG_CONFIG_HOME={keys / 'gateway-client'}")
        cedos = (sys.executable, "-m", "cedos")
        invited = self._laptop.server.run(
            *(*there, *cedos, "gateway", "--name", GATEWAY, "--invite", "laptop")
        )
        # The gateway's unit sets this as well.
        self._laptop.server.sysctl("net.ipv4.tcp_slow_start_after_idle", 0)
        # The gateway may connect to its own host, since the origins are there.
        self._services.append(
            Service(
                self._laptop.server,
                *(*resolving(self._resolver), *there, *cedos, "gateway", "--allow-local"),
                "--log-level", "debug", "--log-format", "json", output=self._directory / "gateway.log",
            )
        )  # fmt: skip
        self._services[-1].wait_for(
            lambda: accepts(self._laptop.server, GATEWAY, PORT), _START_TIMEOUT_S
        )
        # Join by the printed line. The gateway listens already, so the connection need not be tested.
        self._near.run(*here, *cedos, "join", "--no-check", invited.stdout.strip())
        settings = [f"{name}={value}" for name, value in self._variables.items()]
        self._services.append(
            Service(
                self._near, *here, *settings, *cedos, "forward", "--fail", "closed",
                "--proxy", str(PROXY_PORT), *self._options,
                "--log-level", "debug", "--log-format", "json",
                output=self._directory / "forward.log",
            )
        )  # fmt: skip
        self._services[-1].wait_for(
            lambda: accepts(self._near, _PROXY, PROXY_PORT), _START_TIMEOUT_S
        )

    def close(self) -> None:
        for service in reversed(self._services):
            service.close()


def resolving(resolver: Path | None) -> tuple[str, ...]:
    """Return the beginning of a command line whose program has this resolv.conf; None: the host's."""
    if resolver is None:
        return ()
    return ("unshare", "--mount", "sh", "-c", _WITH_RESOLVER, str(resolver))


@dataclass
class Download:
    """A program's download through the proxy, as it came."""

    process: "subprocess.Popen[bytes]"
    times_s: list[float] = field(default_factory=list)
    received_bytes: int = 0
    wrong_bytes: int = 0

    def read_until(self, count: int) -> None:
        """Read until so many bytes have come in all, or it ends."""
        assert self.process.stdout is not None
        while self.received_bytes < count:
            data = os.read(self.process.stdout.fileno(), 1 << 16)
            if not data:
                break
            self.received_bytes += len(data)
            self.wrong_bytes += len(data) - data.count(0)  # the server's files are holes
            self.times_s.append(time.monotonic())

    def end(self) -> int:
        """Read the rest; return the program's exit code."""
        self.read_until(1 << 60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return self.process.wait()

    def longest_pause_s(self, after_s: float, until_s: float = math.inf) -> float:
        """Return the longest time without data that begins after an instant, and before another one."""
        times = [each for each in self.times_s if each >= after_s]
        found = (after - each for each, after in itertools.pairwise(times) if each < until_s)
        return max(found)


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

    def begin(
        self, host: str, *arguments: str, name: str = "", resolver: Path | None = None
    ) -> Service:
        """Begin a command of cedos that goes on; `resolver`: its resolv.conf, None: the host's."""
        log = self._there.directory / f"{host}-{name or arguments[-1]}.log"
        line = (*resolving(resolver), *self._line(host, *arguments))
        service = Service(self.namespace(host), *line, output=log)
        self._services.append(service)
        return service

    def serve(self) -> Service:
        """Begin the gateway, again if it has ended; return once it listens.

        It looks names up at the emulated server.
        """
        resolver = self._there.directory / "gateway-resolv.conf"
        resolver.write_text(f"nameserver {SERVER}\n")
        options = ("--name", GATEWAY, "--allow-local", "--no-cache")
        self.gateway = self.begin("gateway", "gateway", *options, name="gateway", resolver=resolver)
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

    def download(self, count: int, server: str = SERVER) -> Download:
        """Begin a download of a program on the requestor, through its proxy."""
        proxy = f"socks5h://{_PROXY}:{PROXY_PORT}"
        url = f"http://{server}/bytes/{count}"
        command = ("curl", "-sS", "-g", "-x", proxy, url)
        return Download(self._there.requestor.popen(*command, stdout=subprocess.PIPE))

    def status(self) -> dict[str, Any]:
        """Return what the requestor's side says of itself; nothing while it requests nothing."""
        return self._status("requestor", "request") or {}

    def active(self) -> int:
        """Return how many helpers the requestor has."""
        helpers = self.status().get("helpers", [])
        return sum(each["state"] in ("active", "silent") for each in helpers)

    def wait_for_helpers(self, count: int) -> None:
        """Wait until the requestor has so many. EmulationError: not in time."""
        until_s = time.monotonic() + 30.0
        while self.active() != count:
            if time.monotonic() > until_s:
                raise EmulationError(f"there are not {count} helpers: {self.status()}")
            time.sleep(0.1)

    def receipts(self, host: str) -> dict[str, list[dict[str, Any]]]:
        """Return the receipts that a host has: each, and what is owed by pairs."""
        return dict(json.loads(self.cedos(host, "share", "receipts", "--json")))

    def stop_sharing(self) -> None:
        """End all programs but the gateway."""
        for service in reversed(self._services):
            if service is not self.gateway:
                service.close()
        self._services = [self.gateway]

    def _start(self) -> None:
        self.serve()
        helpers = [f"helper-{number}" for number, _ in enumerate(self._there.helpers)]
        lines = [self._invite(host) for host in helpers]
        with ThreadPoolExecutor() as pool:
            list(pool.map(self._register, helpers, lines))
        with self._there.at_home():
            self._register("requestor", self._invite("requestor"))

    def _share(self, host: str, side: str, *options: str) -> Service:
        """Begin a side; return once it has written its status: a killed one leaves its own behind."""
        service = self.begin(host, "share", side, *options, name=side)

        def writes() -> bool:
            found = self._status(host, side)
            return found is not None and found["pid"] == service.pid

        service.wait_for(writes, _START_S)
        return service

    def _status(self, host: str, side: str) -> dict[str, Any] | None:
        return read_status(Path(self.variables(host)["CEDOS_RUNTIME_DIR"]) / STATUS_FILES[side])

    def _invite(self, host: str) -> str:
        line = self.cedos("gateway", "gateway", "--name", GATEWAY, "--invite", host)
        return line.strip().removeprefix("cedos join ")

    def _register(self, host: str, invited: str) -> None:
        self.cedos(host, "join", invited)
        self.cedos(host, "share", "register", "--name", host)

    def _line(self, host: str, *arguments: str) -> tuple[str, ...]:
        settings = [f"{name}={value}" for name, value in self.variables(host).items()]
        return ("env", *settings, *_CEDOS, *arguments)

    def close(self) -> None:
        for service in reversed(self._services):
            service.close()
        self._services.clear()
