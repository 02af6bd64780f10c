"""Two processes at the ends of a measurement, and what each of them holds."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from cedos import session
from cedos.errors import EmulationError
from cedos.session.protocol.crypto import KeyPair
from emu.testbed import stale
from emu.testbed.hosts import End, Hosts, add_address, connect, limit_rate
from emu.testbed.netns import Namespace
from emu.testbed.services import LineProcess

_END_S = 3.0


class Remote:
    """A process of `emu.workloads.sessions` that carries out commands."""

    def __init__(self, where: Namespace) -> None:
        process: subprocess.Popen[str] = where.popen(
            sys.executable, "-m", "emu.workloads.sessions",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._process = LineProcess(process, "a peer of the bench")

    def start(self, do: str, **options: Any) -> None:
        self._process.tell({"do": do, **options})

    def answer(self, limit_s: float | None = None) -> dict[str, Any]:
        """Return the answer to the last command; EmulationError: it failed, or came too late."""
        answer = self._process.answer(limit_s)
        if answer is None:
            raise EmulationError(f"a peer of the bench did not answer within {limit_s:g} s")
        return answer

    def do(self, do: str, **options: Any) -> dict[str, Any]:
        self.start(do, **options)
        return self.answer()

    def close(self) -> None:
        self._process.close(_END_S)


class Pair:
    """A client and a server that listens on `address`."""

    def __init__(self, near: Remote, far: Remote, address: str) -> None:
        self.near, self.far = near, far
        self._ports = far.do("listen", address=address)
        self._to = address

    def there(self, mode: str) -> dict[str, Any]:
        port = self._ports["raw" if mode == "raw" else "session"]
        return {"mode": mode, "to": self._to, "port": port, "key": self._ports["key"]}

    def both(
        self,
        near: str,
        far: str,
        mode: str,
        far_options: dict[str, Any],
        *,
        limit_s: float | None = None,
        **options: Any,
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return a command for each end at the same time; both answers, the client's first."""
        self.far.start(far, **far_options)
        self.near.start(near, **self.there(mode) | options)
        return self.near.answer(limit_s), self.far.answer(limit_s)


@contextmanager
def pair(near: Namespace, far: Namespace, address: str) -> Iterator[Pair]:
    with ExitStack() as stack:
        one = Remote(near)
        stack.callback(one.close)
        other = Remote(far)
        stack.callback(other.close)
        yield Pair(one, other, address)


class Peer:
    """The state that commands share. A server's peer listens once it was told to, a client's never."""

    def __init__(self) -> None:
        self.key = KeyPair(os.urandom(32))
        self._listener: session.Listener | None = None
        self._plain: socket.socket | None = None

    async def listen(self, address: str) -> dict[str, Any]:
        self._listener = await session.listen((address, 0), key=self.key, clear=True)
        self._plain = socket.create_server((address, 0), backlog=4096)
        self._plain.setblocking(False)
        return {
            "session": self._listener.address[1],
            "raw": self._plain.getsockname()[1],
            "key": self.key.public.hex(),
        }

    @property
    def plain(self) -> socket.socket:
        assert self._plain is not None
        return self._plain

    async def accept(self) -> session.Connection:
        assert self._listener is not None
        return await self._listener.accept()

    async def connect(
        self, mode: str, to: str, port: int, key: str, **options: Any
    ) -> session.Connection:
        """Return a session with the peer of this public key; mode `clear` or `aead`."""
        return await session.connect(
            (to, port),
            server_key=bytes.fromhex(key),
            key=self.key,
            clear=mode == "clear",
            **options,
        )


CLIENT, OTHER_CLIENT, SERVER, GATEWAY = "10.99.1.1", "10.99.1.9", "10.99.9.1", "10.99.1.2"
INTERFACE = "wlan0"


@contextmanager
def loopback() -> Iterator[Namespace]:
    with stale.registered() as instance:
        yield instance.namespace("host")


@contextmanager
def cable(rate: str | None) -> Iterator[tuple[Namespace, Namespace]]:
    """Connect a client's `wlan0` to a server; with a rate (of `tc`), no faster than that."""
    with Hosts() as hosts:
        near = End(hosts.client, INTERFACE, f"{CLIENT}/24")
        far = End(hosts.server, "eth0", f"{GATEWAY}/24")
        connect(near, far, offloads=True)
        for end in (near, far):
            end.host.sysctl("net.ipv4.tcp_no_metrics_save", 1)
            end.host.sysctl("net.ipv4.tcp_congestion_control", "reno")
            if rate is not None:
                limit_rate(end, rate)
        add_address(hosts.server, SERVER)
        hosts.client.ip("route", "add", "default", "via", GATEWAY, "dev", INTERFACE)
        yield hosts.client, hosts.server
