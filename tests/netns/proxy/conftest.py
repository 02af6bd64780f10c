"""A client with two networks, a relay's host, and a server without MPTCP behind it; IPv4 and IPv6."""

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from emu.testbed.kernel import forget_black_holes
from emu.testbed.netns import Namespace

MPTCP = 262
RELAY_PORT = 3128
SERVER = {4: "203.0.113.2", 6: "2001:db8:9::2"}
# The relay's host as each network of the client reaches it, and towards the server.
RELAY = {4: "10.0.1.1", 6: "fd00:1::1"}
OUTSIDE = {4: "203.0.113.1", 6: "2001:db8:9::1"}


class World:
    """Three namespaces; `client` has `net1` and `net2` to `relay`, which routes to `server`."""

    def __init__(self, make: Callable[[str], Namespace], directory: Path) -> None:
        self.client, self.relay, self.server = (make(n) for n in ("client", "relay", "server"))
        self.directory = directory
        for each in (self.client, self.relay, self.server):
            each.sysctl("net.ipv4.conf.all.rp_filter", 0)
            each.sysctl("net.ipv4.conf.default.rp_filter", 0)
        self.relay.sysctl("net.ipv4.ip_forward", 1)
        self.relay.sysctl("net.ipv6.conf.all.forwarding", 1)
        forget_black_holes(self.client)
        for n in (1, 2):
            self._wire(self.client, self.relay, f"net{n}", (f"10.0.{n}", f"fd00:{n}"), (2, 1))
            self.client.ip("rule", "add", "from", f"10.0.{n}.2", "table", str(n))
            self.client.ip("route", "add", "default", "via", f"10.0.{n}.1", "table", str(n))
            self.client.ip("route", "add", "default", "via", f"10.0.{n}.1", "metric", str(n))
            self.client.ip("-6", "route", "add", "default", "via", f"fd00:{n}::1", "metric", str(n))
            self.client.ip("mptcp", "endpoint", "add", f"10.0.{n}.2", "dev", f"net{n}", "subflow")
        self._wire(self.relay, self.server, "out", ("203.0.113", "2001:db8:9"), (1, 2))
        self.server.ip("route", "add", "default", "via", OUTSIDE[4])
        self.server.ip("-6", "route", "add", "default", "via", OUTSIDE[6])
        for each in (self.client, self.relay):
            each.ip("mptcp", "limits", "set", "subflows", "4", "add_addr_accepted", "4")

    @staticmethod
    def _wire(
        one: Namespace,
        other: Namespace,
        name: str,
        prefixes: tuple[str, str],
        ends: tuple[int, int],
    ) -> None:
        one.ip("link", "add", name, "type", "veth", "peer", name, "netns", other.name)
        for where, end in zip((one, other), ends, strict=True):
            where.ip("address", "add", f"{prefixes[0]}.{end}/24", "dev", name)
            where.ip("address", "add", f"{prefixes[1]}::{end}/64", "dev", name, "nodad")
            where.ip("link", "set", name, "up")

    @contextmanager
    def relaying(self, *options: str) -> Iterator["Running"]:
        """`cedos relay` on its host; its log is in `lines`."""
        command = (sys.executable, "-m", "cedos", "relay", *options, "--log-format", "json")
        with self.relay.popen(*command, stderr=subprocess.PIPE, text=True) as process:
            running = Running(process)
            try:
                running.event("ready")
                yield running
            finally:
                if process.poll() is None:
                    process.send_signal(signal.SIGINT)
                    try:
                        process.wait(10)
                    except subprocess.TimeoutExpired:
                        process.kill()

    @contextmanager
    def serving(self, handle: Callable[[socket.socket], None]) -> Iterator[int]:
        """A server of our own on both addresses' port 8000, a thread for each connection."""
        with self.server.entered():
            listening = socket.create_server(
                ("::", 8000), family=socket.AF_INET6, dualstack_ipv6=True, backlog=512
            )

        def one(connection: socket.socket) -> None:
            with connection, suppress(OSError):
                connection.settimeout(20)
                handle(connection)

        def accept() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    threading.Thread(target=one, args=(connection,), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield 8000
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            listening.close()
            thread.join(5)

    def connect(self, wanted: str | None, *, mptcp: bool = False) -> socket.socket:
        """A connection of the client to the relay; with `wanted`, through it."""
        with self.client.entered():
            connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, MPTCP if mptcp else 0)
        connection.settimeout(20)
        try:
            connection.connect((RELAY[4], RELAY_PORT))
        except OSError:
            connection.close()
            raise
        if wanted is not None:
            connection.sendall(f"CONNECT {wanted} HTTP/1.1\r\n\r\n".encode())
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                byte = connection.recv(1)
                assert byte, head
                head += byte
            assert head.startswith(b"HTTP/1.1 200 "), head
        return connection

    def curl(self, *arguments: str, prefix: tuple[str, ...] = ()) -> dict[str, Any]:
        """Runs curl in the client; what it says of itself, with `body` and `exit`."""
        body = self.directory / "body"
        body.unlink(missing_ok=True)
        done = self.client.run(
            *(*prefix, "curl", "--silent", "--max-time", "20", "--output", str(body)),
            *("--write-out", "%{json}", *arguments),
            check=False,
        )
        result: dict[str, Any] = json.loads(done.stdout)
        result["body"] = body.read_bytes() if body.exists() else b""
        return result


class Running:
    """A relay that runs: its log as it comes."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.lines: list[dict[str, Any]] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with suppress(ValueError):
                self.lines.append(json.loads(line))

    def event(self, name: str, number: int = 1, timeout_s: float = 15.0) -> dict[str, Any]:
        """The nth line of that name, waited for."""
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            found = [line for line in self.lines if line["event"] == name]
            if len(found) >= number:
                return found[number - 1]
            assert self.process.poll() is None or name == "ended", self.lines
            time.sleep(0.02)
        raise AssertionError(f"no {name!r} in {self.lines}")


@pytest.fixture
def world(make_namespace: Callable[[str], Namespace], tmp_path: Path) -> World:
    return World(make_namespace, tmp_path)
