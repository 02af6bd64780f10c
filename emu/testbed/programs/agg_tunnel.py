"""agg-tunnel of aggligator-util (a Rust crate): one TCP connection over all links, as a peer of ours.

cargo install aggligator-util --version 0.18.12 --no-default-features --locked
"""

import shutil
from typing import Final

from emu.testbed.phones import SERVER, Laptop
from emu.testbed.programs.service import Service, accepts
from emu.testbed.started import Started
from emu.testbed.wiring import SERVER_ADDRESSES

_PROGRAM: Final = ("env", "RUST_BACKTRACE=0", "agg-tunnel")
_PORT: Final = 5800
_FORWARDED: Final = 8081
URL: Final = f"http://127.0.0.1:{_FORWARDED}"


def installed() -> bool:
    return shutil.which("agg-tunnel") is not None


class AggTunnel(Started):
    """Its server beside the laptop's server, its client on the laptop: `URL` is the server's port 80."""

    def __init__(self, laptop: Laptop) -> None:
        self._laptop = laptop
        self._services: list[Service] = []

    def _start(self) -> None:
        folder, there = self._laptop.directory, SERVER_ADDRESSES[-1]
        # A target keeps its own port, and after it comes the one that clients ask for.
        self._services.append(
            Service(
                self._laptop.server, *_PROGRAM, "server", "-n", "--tcp", str(_PORT),
                "-p", f"{SERVER}:80:80", output=folder / "agg-server.log",
            )
        )  # fmt: skip
        self._services[-1].wait_for(lambda: accepts(self._laptop.server, there, _PORT))
        # It listens at ::1, too, or not at all; the testbed has no IPv6.
        self._laptop.client.run("sysctl", "-qw", "net.ipv6.conf.lo.disable_ipv6=0")
        self._services.append(
            Service(
                self._laptop.client, *_PROGRAM, "client", "-n", "-4",
                "--tcp", f"{there}:{_PORT}", "-p", f"80:{_FORWARDED}",
                output=folder / "agg-client.log",
            )
        )  # fmt: skip
        self._services[-1].wait_for(lambda: accepts(self._laptop.client, "127.0.0.1", _FORWARDED))

    def close(self) -> None:
        for service in reversed(self._services):
            service.close()
