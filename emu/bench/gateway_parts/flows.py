"""Many live connections on one gateway: its memory, its processor while they rest, and an answer then.

Over loopback, ten clients to a gateway in a process of its own, which connects to origins that send back
what comes. Each connection has carried something. The module itself is the gateway.
"""

import asyncio
import hashlib
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cedos.errors import EmulationError
from cedos.kernel import process_limits
from cedos.proxy.gateway.gateway import Gateway, GatewaySettings
from cedos.proxy.local.gateway_link import GatewayLink
from cedos.proxy.local.joined_gateway import JoinedGateway
from cedos.proxy.streams.stream import ProxiedStream
from cedos.session.protocol.crypto import KeyPair
from emu.bench import processor_s

_HOST, _GATEWAY_PORT, _ORIGIN_PORT = "127.0.0.1", 17_909, 17_910
_EACH_ORIGIN: Final = 20_000  # as many ports as the gateway has for connections to one origin
_CLIENTS: Final = 10
_WANTED, _SPARE_FILES = 20_000, 500
_MOST: Final = 100_000
_AT_ONCE: Final = 50
_ANSWER_S, _REST_S = 30.0, 10.0
_ASKED: Final = 200


def measure(progress: Callable[[str], None]) -> dict[str, float]:
    """Measure `flows` (as many as wanted, if the limit of open files allows) and `flows_rss_mb`.

    `flows_idle_cpu_share` is of a core. EmulationError: the gateway does not take the connections.
    """
    count = min(_WANTED, process_limits.allow(_WANTED + _SPARE_FILES) - _SPARE_FILES)
    count -= count % (_CLIENTS * _AT_ONCE)
    with gateway_process("emu.bench.gateway_parts.flows") as pid:
        return asyncio.run(_measure(count, pid, progress))


async def _measure(count: int, gateway: int, progress: Callable[[str], None]) -> dict[str, float]:
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
        await answered_s(stream)
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
    answers_s = [await answered_s(each) for each in streams[:: max(1, count // _ASKED)]]
    return {
        "flows": count,
        "flows_rss_mb": rss_mb(gateway),
        "flows_idle_cpu_share": rested_s / _REST_S,
        "flows_answer_median_ms": 1e3 * statistics.median(answers_s),
        "flows_answer_p95_ms": 1e3 * statistics.quantiles(answers_s, n=20)[-1],
    }


async def answered_s(stream: ProxiedStream) -> float:
    answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def changed() -> None:
        if stream.waiting and not answered.done():
            answered.set_result(None)

    began_s = time.monotonic()
    stream.watch(changed)
    stream.write(bytes(100))
    await asyncio.wait_for(answered, _ANSWER_S)
    stream.on_read(sum(map(len, stream.waiting)))
    return time.monotonic() - began_s


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


@contextmanager
def gateway_process(module: str, *words: str) -> Iterator[int]:
    """Run a module that serves as a gateway and prints a line once it does; yield its process id."""
    with subprocess.Popen(
        [sys.executable, "-m", module, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        try:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise EmulationError("the gateway to be measured has ended")
            yield process.pid
        finally:
            process.kill()


async def _serve() -> None:
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


if __name__ == "__main__":
    process_limits.one_arena()
    asyncio.run(_serve())
