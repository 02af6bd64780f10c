"""Bulk traffic for the benches: a greedy server, a greedy client, and a sniffer of packets.

    python -m emu.testbed.programs.bulk          serves both directions on port 8080, MPTCP and plain TCP

The first byte of a connection tells its direction: `D`, the server sends data without end; `U`, the
client does. The server prints one JSON line for each pause between two reads of an upload.
"""

import json
import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO, Any

from cedos.errors import EmulationError
from cedos.model import Direction
from emu.testbed.phones import SERVER, Laptop

PORT = 8080
IPPROTO_MPTCP = 262
_CHUNK = 1 << 16
_PAUSE_S = 0.02
_ETHERNET, _IPV4, _TCP = 14, b"\x08\x00", 6
_PACKET_OUTGOING = 4
_EVERYTHING = 3  # another protocol's sockets do not see what leaves
_SO_TIMESTAMPNS = 35
_RST_ON_CLOSE = struct.pack("ii", 1, 0)


def serve() -> None:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("0.0.0.0", PORT))  # noqa: S104
    listening.listen(64)
    print("ready", flush=True)
    while True:
        connection, _ = listening.accept()
        threading.Thread(target=_serve_one, args=(connection,), daemon=True).start()


def _serve_one(connection: socket.socket) -> None:
    with connection, suppress(OSError):
        if connection.recv(1) == b"D":
            data = bytes(_CHUNK)
            while True:
                connection.sendall(data)
        last_s = time.time()
        while connection.recv(_CHUNK):
            now_s = time.time()
            # Note each longer gap between two reads.
            if now_s - last_s > _PAUSE_S:
                print(json.dumps({"until_unix_s": now_s, "pause_s": now_s - last_s}), flush=True)
            last_s = now_s


@dataclass(slots=True)
class Pauses:
    """Pauses of an application: (end in seconds since the epoch, length in s)."""

    seen: list[tuple[float, float]] = field(default_factory=list)

    def longest_s(self, from_unix_s: float, until_unix_s: float) -> float:
        return max(
            (
                pause
                for end, pause in list(self.seen)
                if end > from_unix_s and end - pause < until_unix_s
            ),
            default=0.0,
        )


@contextmanager
def server(laptop: Laptop) -> Iterator[Pauses]:
    """Run the greedy server in the laptop's server; its pauses are those of uploads."""
    process = laptop.server.popen(
        *(sys.executable, "-m", "emu.testbed.programs.bulk"), stdout=-1, text=True, bufsize=1
    )
    pauses = Pauses()
    assert process.stdout is not None
    reading: threading.Thread | None = None
    try:
        if process.stdout.readline().strip() != "ready":
            raise EmulationError("the bench's server did not start")
        reading = threading.Thread(target=_read, args=(process.stdout, pauses), daemon=True)
        reading.start()
        yield pauses
    finally:
        process.kill()
        process.wait()
        if reading is not None:
            reading.join(5)
        process.stdout.close()


def _read(output: IO[str], pauses: Pauses) -> None:
    for line in output:
        with suppress(ValueError, KeyError):
            pause = json.loads(line)
            pauses.seen.append((pause["until_unix_s"], pause["pause_s"]))


class Transfer:
    """A transfer without an end, in a thread of its own; make it inside the client's namespace.

    `pauses` are those of a download, `bytes` were received or sent so far, `broken` tells why it ended
    by itself.
    """

    def __init__(self, direction: Direction, *, mptcp: bool = True) -> None:
        self.direction = direction
        self.pauses = Pauses()
        self.bytes = 0
        self.broken: str | None = None
        self._stop = False
        protocol = IPPROTO_MPTCP if mptcp else 0
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, protocol)
        try:
            self.socket.settimeout(10)
            self.socket.connect((SERVER, PORT))
            self.socket.settimeout(None)
        except OSError:
            self.socket.close()
            raise
        self.port: int = self.socket.getsockname()[1]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            if self.direction is Direction.DOWN:
                # The first byte tells the server the direction.
                self.socket.sendall(b"D")
                self._receive()
            else:
                self.socket.sendall(b"U")
                data = bytes(_CHUNK // 2)
                while not self._stop:
                    self.bytes += self.socket.send(data)
        except OSError as error:
            if not self._stop:
                self.broken = str(error)

    def _receive(self) -> None:
        buffer = bytearray(_CHUNK * 4)
        last_s = time.time()
        while not self._stop:
            got = self.socket.recv_into(buffer)
            now_s = time.time()
            if not got:
                raise OSError("the server closed it")
            if now_s - last_s > _PAUSE_S:
                self.pauses.seen.append((now_s, now_s - last_s))
            last_s = now_s
            self.bytes += got

    def close(self) -> None:
        self._stop = True
        with suppress(OSError):
            # Close by a reset, so that nothing of this transfer is left for the next one.
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST_ON_CLOSE)
            self.socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(5)
        self.socket.close()


@dataclass(slots=True)
class Seen:
    """A TCP packet with data: the kernel's time, interface, direction, the client's port, its data."""

    at_unix_s: float
    interface: str
    direction: Direction
    port: int
    data_bytes: int


class Sniffer:
    """A sniffer of TCP packets with data on interfaces of the namespace that it is made in."""

    def __init__(self, *interfaces: str) -> None:
        self.seen: list[Seen] = []
        self._sockets: dict[int, tuple[socket.socket, str]] = {}
        self._wake, self._woken = socket.socketpair()
        for interface in interfaces:
            one = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_EVERYTHING))
            one.bind((interface, _EVERYTHING))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 23)
            one.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            one.setblocking(False)
            self._sockets[one.fileno()] = (one, interface)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def first(self, interface: str, direction: Direction, ports: set[int], after: float) -> float:
        """Return when the first such packet with data after an instant passed; infinite: none yet."""
        return min(
            (
                packet.at_unix_s
                for packet in list(self.seen)
                if packet.at_unix_s > after
                and packet.interface == interface
                and packet.direction is direction
                and packet.port in ports
            ),
            default=float("inf"),
        )

    def _run(self) -> None:
        watched = [*self._sockets, self._woken.fileno()]
        while True:
            ready, _, _ = select.select(watched, [], [])
            if self._woken.fileno() in ready:
                return
            # Read what waits on each interface, in batches.
            for descriptor in ready:
                one, interface = self._sockets[descriptor]
                with suppress(OSError):  # nothing more, or the interface went down
                    for _ in range(64):
                        self._note(interface, *one.recvmsg(96, 64))

    def _note(
        self,
        interface: str,
        data: bytes,
        extra: list[tuple[int, int, bytes]],
        _: int,
        whence: tuple[Any, ...],
    ) -> None:
        # Only IPv4 with TCP; offsets follow from both headers' lengths.
        if len(data) < 54 or data[12:14] != _IPV4 or data[23] != _TCP:
            return
        header = _ETHERNET + (data[_ETHERNET] & 15) * 4
        total = struct.unpack_from("!H", data, _ETHERNET + 2)[0]
        data_bytes = total - (header - _ETHERNET) - (data[header + 12] >> 4) * 4
        if data_bytes <= 0:
            return
        out = whence[2] == _PACKET_OUTGOING
        port = struct.unpack_from("!HH", data, header)[0 if out else 1]
        seconds, nanoseconds = struct.unpack_from("=qq", extra[0][2])
        self.seen.append(
            Seen(
                seconds + nanoseconds / 1e9,
                interface,
                Direction.UP if out else Direction.DOWN,
                port,
                data_bytes,
            )
        )

    def close(self) -> None:
        self._wake.send(b"x")
        self._thread.join(5)
        for one, _ in self._sockets.values():
            one.close()
        self._wake.close()
        self._woken.close()


if __name__ == "__main__":
    serve()
