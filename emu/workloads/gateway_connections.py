"""Connections that a gateway holds: what many live ones cost, and clients that are away.

Over loopback, to a gateway in a process of its own, which this module is. Flows: ten clients to origins
that send back what comes; each connection has carried something. Idle clients have no connections; the
gateway keeps their sessions in a file.
"""

import asyncio
import hashlib
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cedos import logs
from cedos.errors import EmulationError
from cedos.kernel import process_limits
from cedos.proxy.gateway.gateway import Gateway, GatewaySettings
from cedos.proxy.local.gateway_link import GatewayLink
from cedos.proxy.local.joined_gateway import JoinedGateway
from cedos.proxy.streams.stream import ProxiedStream
from cedos.session.protocol.crypto import KeyPair
from cedos.session.sockets.connection import Connection
from emu.testbed.counters import processor_s

_HOST, _GATEWAY_PORT, _ORIGIN_PORT = "127.0.0.1", 17_909, 17_910
# The origins of the other measurement may still hold their ports.
_IDLE_GATEWAY_PORT, _IDLE_ORIGIN_PORT = 17_911, 17_912
_EACH_ORIGIN: Final = 20_000  # as many ports as the gateway has for connections to one origin
_CLIENTS: Final = 10
_WANTED, _SPARE_FILES = 20_000, 500
_MOST: Final = 100_000
_AT_ONCE: Final = 50
_ANSWER_S, _REST_S = 30.0, 10.0
_ASKED: Final = 200
_KEYS: Final = 10
# Clients of a batch, which goes before the next comes, as laptops do; the first is not counted.
_COUNT, _BATCHES = 1_000, 3
_IDLE_AT_ONCE: Final = 20
# The time until idle clients are measured. They sleep after three seconds and then return memory
# to the kernel.
_AWAY_S: Final = 10.0
_IDLE_ASKED: Final = 50


def many_flows(progress: Callable[[str], None]) -> dict[str, float]:
    """Measure `flows` (as many as wanted, if the limit of open files allows) and `flows_rss_mb`.

    `flows_idle_cpu_share` is of a core. EmulationError: the gateway does not take the connections.
    """
    count = min(_WANTED, process_limits.allow(_WANTED + _SPARE_FILES) - _SPARE_FILES)
    count -= count % (_CLIENTS * _AT_ONCE)
    with gateway_process() as pid:
        return asyncio.run(_measure_flows(count, pid, progress))


async def _measure_flows(
    count: int, gateway: int, progress: Callable[[str], None]
) -> dict[str, float]:
    loop = asyncio.get_running_loop()
    # One port takes only so many connections from one address: use several ports.
    ports = [_ORIGIN_PORT + number for number in range(-(-count // _EACH_ORIGIN))]
    origins = [await loop.create_server(Echo, _HOST, port, backlog=4_096) for port in ports]
    links = [
        GatewayLink(
            JoinedGateway(_HOST, _GATEWAY_PORT, key("gateway").public, key(f"client {number}")),
            patience_s=_ANSWER_S,
        )
        for number in range(_CLIENTS)
    ]
    streams: list[ProxiedStream] = []

    # A connection counts once its origin has answered through it.
    async def one(link: GatewayLink, port: int) -> None:
        stream = await link.open(_HOST, port)
        await answered(stream)
        streams.append(stream)

    while len(streams) < count:
        port = ports[len(streams) // _EACH_ORIGIN]
        await asyncio.gather(*(one(link, port) for link in links for _ in range(_AT_ONCE)))
        if len(streams) % 5_000 == 0:
            progress(f"{len(streams)} connections: {rss_mb(gateway):.0f} MB")
    # All connections rest: what does the gateway still do?
    began_s = processor_s(gateway)
    await asyncio.sleep(_REST_S)
    rested_s = processor_s(gateway) - began_s
    assert all(each.is_serving() for each in origins)
    # Ask some of the connections, spread over all.
    for each in streams[:: max(1, count // _ASKED)]:
        await answered(each)
    return {
        "flows": count,
        "flows_rss_mb": rss_mb(gateway),
        "flows_idle_cpu_share": rested_s / _REST_S,
    }


async def answered(stream: ProxiedStream) -> None:
    came: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def changed() -> None:
        if stream.waiting and not came.done():
            came.set_result(None)

    stream.watch(changed)
    stream.write(bytes(100))
    await asyncio.wait_for(came, _ANSWER_S)
    stream.on_read(sum(map(len, stream.waiting)))


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


@contextmanager
def gateway_process(*idle: str) -> Iterator[int]:
    """Run this module, which prints a line once it serves; yield its process id.

    `idle`: the file of the sessions that sleep, where clients are to be away.
    """
    with subprocess.Popen(
        [sys.executable, "-m", __name__, *idle], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        try:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise EmulationError("the gateway to be measured has ended")
            yield process.pid
        finally:
            process.kill()


async def _serve_flows() -> None:
    clients = {key(f"client {number}").public: str(number) for number in range(_CLIENTS)}
    settings = GatewaySettings(
        (_HOST, _GATEWAY_PORT), local=True, most=_MOST, most_per_client=_MOST
    )
    gateway = Gateway(settings, key("gateway"), clients.get)
    await gateway.open()
    print("ready", flush=True)
    await gateway.run()


def key(name: str) -> KeyPair:
    return KeyPair(hashlib.sha256(name.encode()).digest())


def rss_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def idle_clients(progress: Callable[[str], None], count: int = _COUNT) -> dict[str, float]:
    """Measure `idle_client_kb` of the gateway's memory for each more, and `idle_clients_cpu_share`.

    The share is of a core. EmulationError: it fails, or a client does not get its session back.
    """
    process_limits.allow()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "idle-sessions"
        with gateway_process(str(file)) as pid:
            kb, share = asyncio.run(_measure_idle(count, pid))
    progress(f"{_BATCHES} times {count} clients: {kb:.1f} kB each")
    return {"idle_client_kb": kb, "idle_clients_cpu_share": share}


async def _measure_idle(count: int, gateway: int) -> tuple[float, float]:
    loop = asyncio.get_running_loop()
    gone: set[int] = set()
    origin = await loop.create_server(Echo, _HOST, _IDLE_ORIGIN_PORT, backlog=4_096)
    links = [
        GatewayLink(
            JoinedGateway(
                _HOST, _IDLE_GATEWAY_PORT, key("gateway").public, key(f"client {number % _KEYS}")
            ),
            networks=lambda _interface, _address, own=number: own not in gone,  # type: ignore[misc]
            patience_s=_ANSWER_S,
        )
        for number in range(_BATCHES * count)
    ]

    async def one(link: GatewayLink) -> None:
        stream = await link.open(_HOST, _IDLE_ORIGIN_PORT)
        await answered(stream)
        stream.finish()

    held_mb = []
    for batch in range(_BATCHES):
        there = range(batch * count, (batch + 1) * count)
        for first in there[::_IDLE_AT_ONCE]:
            await asyncio.gather(*map(one, links[first : min(first + _IDLE_AT_ONCE, there.stop)]))
        await asyncio.sleep(1.0)
        gone.update(there)
        for link in links[there.start : there.stop]:
            for path in list(_connection(link).flow.paths.values()):
                path.close("it goes away")
        await asyncio.sleep(_AWAY_S)
        held_mb.append(rss_mb(gateway))
    connections = list(map(_connection, links))
    before_s = processor_s(gateway)
    await asyncio.sleep(_AWAY_S)
    share = (processor_s(gateway) - before_s) / _AWAY_S
    gone.clear()
    for link in links[:: max(1, len(links) // _IDLE_ASKED)]:
        _connection(link).check_networks()
        await one(link)
    for link, connection in zip(links, connections, strict=True):
        if _connection(link) is not connection:
            raise EmulationError("a client had to begin another session")
    assert origin.is_serving()
    each_kb = 1e3 * (held_mb[-1] - held_mb[0]) / ((_BATCHES - 1) * count)
    return each_kb, share


def _connection(link: GatewayLink) -> Connection:
    assert link._streams is not None
    return link._streams.connection


async def _serve_idle(file: Path) -> None:
    clients = {key(f"client {number}").public: str(number) for number in range(_KEYS)}
    settings = GatewaySettings(
        (_HOST, _IDLE_GATEWAY_PORT), local=True, idle=file, sessions_per_client=10_000
    )
    gateway = Gateway(settings, key("gateway"), clients.get)
    await gateway.open()
    async with process_limits.giving_back(1.0):
        print("ready", flush=True)
        await gateway.run()


if __name__ == "__main__":
    logs.configure("warning", "json")  # the parent reads only the first line of the pipe
    process_limits.one_arena()
    asyncio.run(_serve_idle(Path(sys.argv[1])) if sys.argv[1:] else _serve_flows())
