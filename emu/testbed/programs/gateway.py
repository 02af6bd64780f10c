"""The gateway beside the server, and its proxy in the client, for programs whose environment names it."""

import sys
from pathlib import Path
from typing import Final

from emu.testbed.netns import Namespace
from emu.testbed.phones import Laptop
from emu.testbed.services import Service, Started, accepts
from emu.testbed.wiring import SERVER_ADDRESSES

PORT: Final = 7009
# Another address than those of origins, since packets to the gateway's own address go past it.
GATEWAY: Final = SERVER_ADDRESSES[-1]

PROXY_PORT: Final = 1080
_PROXY: Final = "127.0.0.1"
_START_TIMEOUT_S: Final = 15.0
_WITH_RESOLVER: Final = 'mount --bind "$0" "$(readlink -f /etc/resolv.conf)" && exec "$@"'


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
