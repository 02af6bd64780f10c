"""A laptop with Wi-Fi and a metered network in namespaces, and cedos installed on it."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kit.waiting import wait_until

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

    def __init__(
        self, where: Namespace, folder: Path, config: str = "", base: str = CONFIG
    ) -> None:
        self._where, self.folder = where, folder
        self.config = folder / "cedos.toml"
        self.config.write_text(base + config)

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
        command = self._command("up", *options, "--config", str(self.config))
        with self._where.popen(*command, stderr=subprocess.PIPE, text=True) as process:
            try:
                wait_until(lambda: self._answers() or process.poll() is not None, _READY_S)
                assert process.poll() is None, process.communicate()
                yield process
            finally:
                process.kill()

    def ends(self, process: "subprocess.Popen[str]") -> str:
        """End the daemon as systemd does; return what it wrote, which tells of no fault."""
        process.send_signal(signal.SIGTERM)
        _, output = process.communicate(timeout=30)
        assert process.returncode == 0, output
        assert "Traceback" not in output
        return output

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
