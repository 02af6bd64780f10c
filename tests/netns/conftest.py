"""What tests of real daemons share: cedos in a namespace, a laptop with Wi-Fi and a metered network."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cedos.api.client import ControlClient
from cedos.errors import DaemonUnreachableError
from emu.testbed.netns import Namespace

# What is learnt and asked of networks would be traffic of its own.
CONFIG = """
[networks.wlan0]
kind = "wifi"
metered = false
[networks.lte0]
kind = "cellular"
metered = true
[probes]
enabled = false
[profiler]
enabled = false
[providers]
host = false
"""
_READY_S = 60.0


class Installed:
    """cedos in a namespace; its configuration, its state and its socket are in `folder`."""

    def __init__(self, where: Namespace, folder: Path, config: str = "") -> None:
        self._where, self.folder = where, folder
        (folder / "cedos.toml").write_text(CONFIG + config)

    @property
    def socket(self) -> Path:
        return self.folder / "runtime" / "control.sock"

    @property
    def client(self) -> ControlClient:
        return ControlClient(self.socket)

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return self._where.run(*self._command(*arguments), check=False)

    @contextmanager
    def up(self, *options: str) -> Iterator["subprocess.Popen[str]"]:
        """The daemon, once it answers, until the block ends: then it is killed."""
        command = self._command("up", *options, "--config", str(self.folder / "cedos.toml"))
        with self._where.popen(*command, stderr=subprocess.PIPE, text=True) as process:
            try:
                deadline_s = time.monotonic() + _READY_S
                while not self._answers():
                    assert time.monotonic() < deadline_s
                    assert process.poll() is None, process.communicate()
                    time.sleep(0.05)
                yield process
            finally:
                process.kill()

    def _answers(self) -> bool:
        try:
            return bool(self.client.status().networks)
        except DaemonUnreachableError:  # its socket may be there a moment before it listens
            return False

    def _command(self, *arguments: str) -> tuple[str, ...]:
        variables = [
            f"CEDOS_{what}_DIR={self.folder}/{what.lower()}" for what in ("STATE", "RUNTIME")
        ]
        return ("env", *variables, sys.executable, "-m", "cedos", *arguments)


class Tethered:
    """A laptop with Wi-Fi (`wlan0`) and a metered network (`lte0`), whose other ends are the phones."""

    metered = "192.168.44.1"

    def __init__(self, make: Callable[[str], Namespace]) -> None:
        self.laptop, self.phones = make("laptop"), make("phones")
        self.plug("wlan0", 43)
        self.plug("lte0", 44)

    def plug(self, name: str, number: int) -> None:
        """A network comes, or comes again."""
        self.laptop.ip("link", "add", name, "type", "veth", "peer", name, "netns", self.phones.name)
        # No neighbour discovery: what a test sends is all there is.
        for namespace, last in ((self.laptop, 2), (self.phones, 1)):
            namespace.ip("link", "set", name, "addrgenmode", "none")
            namespace.ip("address", "add", f"192.168.{number}.{last}/24", "dev", name)
            namespace.ip("link", "set", name, "up")
        self.laptop.ip(
            "route", "add", "default", "via", f"192.168.{number}.1", "metric", str(number)
        )


@pytest.fixture
def install(tmp_path: Path) -> Callable[..., Installed]:
    """`install(namespace)`: cedos there; a second argument is more of the configuration."""

    def make(where: Namespace, config: str = "") -> Installed:
        return Installed(where, tmp_path, config)

    return make


@pytest.fixture
def tethered(make_namespace: Callable[[str], Namespace]) -> Tethered:
    return Tethered(make_namespace)
