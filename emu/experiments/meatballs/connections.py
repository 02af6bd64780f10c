"""Connections to the live server of exchanges, watched by a selector; and the server itself."""

import errno
import selectors
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from cedos.errors import EmulationError
from emu.simulation.network import HEADER_BYTES, PAYLOAD_BYTES
from emu.testbed.netns import Namespace
from emu.testbed.phones import SERVER, Laptop
from emu.workloads.exchange_server import ASK, CANCEL, REQUEST, RESPONSE

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class ExchangeConnection:
    """A TCP connection bound to a network's address (`source`); requests wait until it is established."""

    def __init__(self, client: Namespace, source: str, server: tuple[str, int]) -> None:
        with client.entered():
            self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.bind((source, 0))
        code = self.socket.connect_ex(server)
        self.failed = code not in (0, errno.EINPROGRESS)
        self.connected = code == 0
        self._out = bytearray()
        self._in = bytearray()

    @property
    def wants_to_write(self) -> bool:
        """Report whether to watch for writability: it connects, or data wait to be sent."""
        return not self.failed and (not self.connected or bool(self._out))

    def ask(self, number: int, up_bytes: int, down_bytes: int) -> None:
        """Send a request of `up_bytes` in all, head included where that is longer."""
        body = max(0, up_bytes - REQUEST.size)
        self._out += REQUEST.pack(ASK, number, body, max(0, down_bytes - RESPONSE.size))
        self._out += bytes(body)
        self._flush()

    def cancel(self, number: int) -> None:
        self._out += REQUEST.pack(CANCEL, number, 0, 0)
        self._flush()

    def writable(self) -> bool:
        """Continue when the socket is writable; return True the one time that it has just connected."""
        if self.failed:
            return False
        if self.connected:
            self._flush()
            return False
        if self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0:
            self.failed = True
            return False
        self.connected = True
        self._flush()
        return True

    def readable(self) -> list[int]:
        """Read when the socket is readable; return the numbers of the complete responses."""
        try:
            data = self.socket.recv(1 << 18)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self.failed = True
            return []
        self._in += data
        done = []
        while len(self._in) >= RESPONSE.size:
            number, follows = RESPONSE.unpack_from(self._in)
            if len(self._in) < RESPONSE.size + follows:
                break
            del self._in[: RESPONSE.size + follows]
            done.append(number)
        return done

    def abort(self) -> None:
        """End it at once, as a host does whose network has gone."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.socket.close()
        self.failed = True

    def _flush(self) -> None:
        if not self.connected or self.failed:
            return
        try:
            while self._out:
                del self._out[: self.socket.send(self._out)]
        except BlockingIOError:
            pass
        except OSError:
            self.failed = True


PORT = 7400


@contextmanager
def serving(laptop: Laptop) -> Iterator[None]:
    """Run the server of exchanges in the laptop's server namespace."""
    with laptop.server.popen(
        *(sys.executable, "-m", "emu.workloads.exchange_server", str(PORT)),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            if process.stdout is None or process.stdout.readline().strip() != "ready":
                raise EmulationError("the server of exchanges did not start")
            yield
        finally:
            process.terminate()


def message_bytes(payload: int) -> int:
    return payload + HEADER_BYTES * -(-payload // PAYLOAD_BYTES)


def _nothing(*_: float) -> None:
    pass


class WatchedConnection:
    """An `ExchangeConnection` that a selector watches; it is closed when it has failed.

    Args:
        selector: calls the data of its keys with the events.
        answered: is told of the number of each response.
        connected: is told in how many seconds it was set up.
        failed: is called when it has failed by itself.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        namespace: Namespace,
        source: str,
        server: str,
        *,
        answered: Callable[[int], None],
        connected: Callable[[float], None] = _nothing,
        failed: Callable[[], None] = _nothing,
    ) -> None:
        self._selector = selector
        self._answered, self._connected, self._failed = answered, connected, failed
        self._since_s = time.monotonic()
        self._connection = ExchangeConnection(namespace, source, (server, PORT))
        self._watched = selectors.EVENT_READ | selectors.EVENT_WRITE
        # (One that failed at once is writable at once, too.)
        selector.register(self._connection.socket, self._watched, self._ready)

    @property
    def failed(self) -> bool:
        return self._connection.failed

    def ask(self, number: int, up_bytes: int, down_bytes: int) -> None:
        self._connection.ask(number, up_bytes, down_bytes)
        self._watch()

    def cancel(self, number: int) -> None:
        """Tell the server that a response is not needed any more."""
        self._connection.cancel(number)
        self._watch()

    def close(self) -> None:
        """End it at once; nothing happens where it has ended."""
        if self._watched:
            self._selector.unregister(self._connection.socket)
            self._watched = 0
            self._connection.abort()

    def _ready(self, events: int) -> None:
        if not self._watched:
            return  # closed by an earlier event of the same round
        if events & selectors.EVENT_WRITE and self._connection.writable():
            self._connected(time.monotonic() - self._since_s)
        if events & selectors.EVENT_READ and self._watched:
            for number in self._connection.readable():
                self._answered(number)
        if self._watched and self._connection.failed:
            self.close()
            self._failed()
        elif self._watched:
            self._watch()

    def _watch(self) -> None:
        events = selectors.EVENT_READ
        if self._connection.wants_to_write:
            events |= selectors.EVENT_WRITE
        if self._watched and events != self._watched:
            self._selector.modify(self._connection.socket, events, self._ready)
            self._watched = events


class Connections:
    """Connections to the server, one per way, opened when first needed.

    Args:
        addresses: by way: of the network to use.
        answered: is told of the number of each response, with its way.
        connected: is told in how many seconds a connection was set up.
        failed: is told when one has failed by itself.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        laptop: Laptop,
        addresses: Mapping[str, str],
        *,
        answered: Callable[[str, int], None],
        connected: Callable[[str, float], None],
        failed: Callable[[str], None],
    ) -> None:
        self._selector, self._laptop, self._addresses = selector, laptop, addresses
        self._answered, self._connected, self._failed = answered, connected, failed
        self._open: dict[str, WatchedConnection] = {}

    def of(self, way: str) -> WatchedConnection:
        """Return the way's connection; a new one where there is none."""
        if way not in self._open:
            self._open[way] = WatchedConnection(
                self._selector,
                self._laptop.client,
                self._addresses[way],
                SERVER,
                answered=lambda number: self._answered(way, number),
                connected=lambda took_s: self._connected(way, took_s),
                failed=lambda: self._failed(way),
            )
        return self._open[way]

    def drop(self, way: str) -> None:
        """Close a way's connection: its network has gone."""
        if way in self._open:
            self._open.pop(way).close()

    def close(self) -> None:
        for way in list(self._open):
            self.drop(way)
