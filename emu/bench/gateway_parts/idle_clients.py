"""Clients that are away and have no connections: what each costs the gateway.

Over loopback, to a gateway in a process of its own (`python -m emu.bench.gateway_parts.idle_clients
FILE` is that), which keeps their sessions in the file.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cedos import logs
from cedos.errors import EmulationError
from cedos.kernel import process_limits
from cedos.proxy.gateway.gateway import Gateway, GatewaySettings
from cedos.proxy.local.gateway_link import GatewayLink
from cedos.proxy.local.joined_gateway import JoinedGateway
from cedos.session.sockets.connection import Connection
from emu.bench import processor_s
from emu.bench.gateway_parts.flows import Echo, answered_s, gateway_process, key, rss_mb

_HOST, _GATEWAY_PORT, _ORIGIN_PORT = "127.0.0.1", 17_911, 17_912
_KEYS: Final = 10
# Clients of a batch, which goes before the next comes, as laptops do; the first is not counted.
_COUNT, _BATCHES = 1_000, 3

_AT_ONCE: Final = 20
_ANSWER_S: Final = 30.0
# The time until idle clients are measured. They sleep after three seconds and then return memory
# to the kernel.
_AWAY_S: Final = 10.0

_ASKED: Final = 50


def measure(progress: Callable[[str], None], count: int = _COUNT) -> dict[str, float]:
    """Measure `idle_client_kb` of the gateway's memory for each more, and `idle_clients_cpu_share`.

    The share is of a core; `idle_client_back_ms` is from the client's network to the answer of a new
    connection, median. EmulationError: it fails.
    """
    process_limits.allow()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "idle-sessions"
        with gateway_process("emu.bench.gateway_parts.idle_clients", str(file)) as pid:
            kb, share, back_s = asyncio.run(_measure(count, pid))
    progress(f"{_BATCHES} times {count} clients: {kb:.1f} kB each, back in {1e3 * back_s:.1f} ms")
    return {
        "idle_client_kb": kb,
        "idle_client_back_ms": 1e3 * back_s,
        "idle_clients_cpu_share": share,
    }


async def _measure(count: int, gateway: int) -> tuple[float, float, float]:
    loop = asyncio.get_running_loop()
    gone: set[int] = set()
    origin = await loop.create_server(Echo, _HOST, _ORIGIN_PORT, backlog=4_096)
    links = [
        GatewayLink(
            JoinedGateway(
                _HOST, _GATEWAY_PORT, key("gateway").public, key(f"client {number % _KEYS}")
            ),
            networks=lambda _interface, own=number: own not in gone,  # type: ignore[misc]
            patience_s=_ANSWER_S,
        )
        for number in range(_BATCHES * count)
    ]

    async def one(link: GatewayLink) -> float:
        began_s = time.monotonic()
        stream = await link.open(_HOST, _ORIGIN_PORT)
        await answered_s(stream)
        took_s = time.monotonic() - began_s
        stream.finish()
        return took_s

    held_mb = []
    for batch in range(_BATCHES):
        there = range(batch * count, (batch + 1) * count)
        for first in there[::_AT_ONCE]:
            await asyncio.gather(*map(one, links[first : min(first + _AT_ONCE, there.stop)]))
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
    back_s = []
    for link in links[:: max(1, len(links) // _ASKED)]:
        _connection(link).check_networks()
        back_s.append(await one(link))
    for link, connection in zip(links, connections, strict=True):
        if _connection(link) is not connection:
            raise EmulationError("a client had to begin another session")
    assert origin.is_serving()
    each_kb = 1e3 * (held_mb[-1] - held_mb[0]) / ((_BATCHES - 1) * count)
    return each_kb, share, statistics.median(back_s)


def _connection(link: GatewayLink) -> Connection:
    assert link._streams is not None
    return link._streams.connection


async def _serve(file: Path) -> None:
    clients = {key(f"client {number}").public: str(number) for number in range(_KEYS)}
    settings = GatewaySettings(
        (_HOST, _GATEWAY_PORT), local=True, idle=file, sessions_per_client=10_000
    )
    gateway = Gateway(settings, key("gateway"), clients.get)
    await gateway.open()
    async with process_limits.giving_back(1.0):
        print("ready", flush=True)
        await gateway.run()


if __name__ == "__main__":
    logs.configure("warning", "json")  # the parent reads only the first line of the pipe
    process_limits.one_arena()
    asyncio.run(_serve(Path(sys.argv[1])))
