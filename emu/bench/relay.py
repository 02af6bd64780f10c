"""The cost of the shipped relay: throughput and time to connect, against raw TCP in the same run.

Loopback: the server, the relay and the client run in one namespace, each as a process of its own.
The client downloads in turn directly, through the relay over MPTCP, and through it over TCP.
Shaped: both sides of the relay have 95 Mbit/s, where the relay should cost nothing.
"""

import os
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from cedos.errors import EmulationError
from emu.testbed import hosts, stale
from emu.testbed.netns import Namespace
from emu.testbed.programs import relay
from emu.testbed.programs.relay import PORT
from emu.testbed.services import Service, accepts

NAME = "relay"

_MPTCP: Final = 262
_PORT = 7000
_BYTES = 1_000_000_000
_SHAPED_BYTES = 40_000_000
_ROUNDS = 7
_CONNECTS = 300
_RATE = "95mbit"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# The relay refuses private destinations, so servers have public addresses.
_ADDRESSES = {
    "client": "10.99.1.1",
    "relay": "10.99.1.2",
    "near": "198.51.100.1",
    "server": "198.51.100.2",
}
_LOOPBACK_SERVER = "192.0.2.1"


def run(progress: Callable[[str], None]) -> dict[str, float]:
    """Measure for about a minute.

    Returns:
        `loopback_ratio`, `loopback_tcp_ratio`, `shaped_ratio`: medians of the throughput through
        the relay over direct TCP, with MPTCP or TCP to the client. `cpu_s_per_gb`: processor time
        of the relay, with MPTCP. `added_ms`: what the relay adds to the median time to connect.
    """
    figures: dict[str, float] = {}
    with stale.registered() as instance, ExitStack() as stack:
        host = instance.namespace("host")
        host.ip("address", "add", f"{_LOOPBACK_SERVER}/32", "dev", "lo")
        stack.enter_context(_server(host, _LOOPBACK_SERVER, instance.directory))
        service = stack.enter_context(_relay(host, instance.directory))
        figures |= _loopback(host, service, progress)
        figures["added_ms"] = _added_ms(host)
        progress(f"added to a connection: {figures['added_ms']:.3f} ms")
    with stale.registered() as instance:
        client, between, server = map(instance.namespace, ("client", "relay", "server"))
        _wire(client, "client", between, "relay")
        _wire(between, "near", server, "server")
        client.ip("route", "add", "default", "via", _ADDRESSES["relay"])
        server.ip("route", "add", "default", "via", _ADDRESSES["near"])
        between.sysctl("net.ipv4.ip_forward", 1)
        folder = instance.directory
        with _server(server, _ADDRESSES["server"], folder), _relay(between, folder):
            figures["shaped_ratio"] = _shaped(client, progress)
    return figures


def _loopback(
    host: Namespace, service: Service, progress: Callable[[str], None]
) -> dict[str, float]:
    direct: list[float] = []
    ratios: dict[int, list[float]] = {_MPTCP: [], 0: []}
    cpu_s: list[float] = []
    for number in range(_ROUNDS):
        direct.append(_pull(host, (_LOOPBACK_SERVER, _PORT), None, 0, _BYTES))
        for protocol, found in ratios.items():
            before_s = _cpu_s(service.pid)
            to = ("127.0.0.1", PORT)
            rate = _pull(host, to, f"{_LOOPBACK_SERVER}:{_PORT}", protocol, _BYTES)
            if protocol:
                cpu_s.append((_cpu_s(service.pid) - before_s) / (_BYTES / 1e9))
            found.append(rate / direct[-1])
        progress(
            f"loopback {number + 1}/{_ROUNDS}: direct {8 * direct[-1] / 1e9:.1f} Gbit/s, through the "
            f"relay {ratios[_MPTCP][-1]:.2f} (MPTCP), {ratios[0][-1]:.2f} (TCP) of it"
        )
    return {
        "loopback_ratio": statistics.median(ratios[_MPTCP]),
        "loopback_tcp_ratio": statistics.median(ratios[0]),
        "direct_gbps": 8 * statistics.median(direct) / 1e9,
        "cpu_s_per_gb": statistics.median(cpu_s),
    }


def _shaped(client: Namespace, progress: Callable[[str], None]) -> float:
    ratios = []
    for _ in range(3):
        server = (_ADDRESSES["server"], _PORT)
        direct = _pull(client, server, None, 0, _SHAPED_BYTES)
        to = (_ADDRESSES["relay"], PORT)
        through = _pull(client, to, f"{server[0]}:{server[1]}", _MPTCP, _SHAPED_BYTES)
        ratios.append(through / direct)
        progress(
            f"shaped: direct {8 * direct / 1e6:.1f} Mbit/s, through the relay {ratios[-1]:.3f}"
        )
    return statistics.median(ratios)


def _added_ms(host: Namespace) -> float:
    """Return the time to the server's first byte over MPTCP to the relay, less that over direct TCP.

    Both are measured in turn, so that other load falls on both alike.
    """
    took: dict[bool, list[float]] = {True: [], False: []}
    with host.entered():
        for _ in range(_CONNECTS):
            for through, found in took.items():
                began_s = time.perf_counter()
                with _connect(
                    ("127.0.0.1", PORT) if through else (_LOOPBACK_SERVER, _PORT),
                    f"{_LOOPBACK_SERVER}:{_PORT}" if through else None,
                    _MPTCP if through else 0,
                ) as connection:
                    connection.sendall(b"%020d" % 1)
                    connection.recv(1)
                    found.append(time.perf_counter() - began_s)
    return 1e3 * (statistics.median(took[True]) - statistics.median(took[False]))


def _connect(to: tuple[str, int], wanted: str | None, protocol: int) -> socket.socket:
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, protocol)
    connection.settimeout(20)
    connection.connect(to)
    if wanted is not None:
        connection.sendall(f"CONNECT {wanted} HTTP/1.1\r\n\r\n".encode())
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            byte = connection.recv(1)
            if not byte:
                raise EmulationError("the relay closed the connection")
            head += byte
        if b" 200 " not in head:
            raise EmulationError(f"the relay says {head.decode(errors='replace').splitlines()[0]}")
    return connection


def _pull(
    where: Namespace, to: tuple[str, int], wanted: str | None, protocol: int, size_bytes: int
) -> float:
    buffer = bytearray(1 << 18)
    with where.entered():
        connection = _connect(to, wanted, protocol)
    with connection:
        began_s = time.perf_counter()
        connection.sendall(b"%020d" % size_bytes)
        left = size_bytes
        while left:
            count = connection.recv_into(buffer)
            if not count:
                raise EmulationError("the download ended too early")
            left -= count
        return size_bytes / (time.perf_counter() - began_s)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _wire(one: Namespace, name: str, other: Namespace, other_name: str) -> None:
    ends = (
        hosts.End(one, other_name, f"{_ADDRESSES[name]}/24"),
        hosts.End(other, name, f"{_ADDRESSES[other_name]}/24"),
    )
    hosts.connect(*ends, offloads=True)
    for end in ends:
        hosts.limit_rate(end, _RATE, burst="64kb")


@contextmanager
def _server(where: Namespace, address: str, folder: Path) -> Iterator[Service]:
    command = (sys.executable, "-m", "emu.bench.relay", address)
    with _running(where, command, (address, _PORT), folder / "server.out") as service:
        yield service


@contextmanager
def _relay(where: Namespace, folder: Path) -> Iterator[Service]:
    command = tuple(relay.command(folder, "shutdown_lifetime 1 second"))
    with _running(where, command, ("127.0.0.1", PORT), folder / "relay.out") as service:
        yield service


@contextmanager
def _running(
    where: Namespace, command: tuple[str, ...], listens: tuple[str, int], output: Path
) -> Iterator[Service]:
    service = Service(where, *command, output=output)
    try:
        service.wait_for(lambda: accepts(where, *listens))
        yield service
    finally:
        service.close()


def _serve(address: str) -> None:
    """Serve connections: send as many bytes as the 20 digits of the request say."""
    data = bytes(1 << 18)

    def one(connection: socket.socket) -> None:
        with connection, suppress(OSError, ValueError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            left = int(connection.recv(20, socket.MSG_WAITALL))
            while left > 0:
                left -= connection.send(data[: min(left, len(data))])

    with socket.create_server((address, _PORT), backlog=64) as listening:
        while True:
            connection, _ = listening.accept()
            threading.Thread(target=one, args=(connection,), daemon=True).start()


if __name__ == "__main__":
    _serve(sys.argv[1])
