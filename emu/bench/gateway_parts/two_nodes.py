"""Two gateways with one key and one Redis: one is killed, or its client does not reach it any more.

`python -m emu.bench.gateway_parts.two_nodes`, over loopback; with a port and
a Redis, it is one of the two.
"""

import asyncio
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import redis

from cedos import logs
from cedos.errors import CedosError, EmulationError
from cedos.kernel.process import memory
from cedos.proxy.gateway.gateway import Gateway, GatewaySettings
from cedos.proxy.gateway.nodes.node_flows import NodeFlows
from cedos.proxy.gateway.nodes.redis_target import RedisTarget
from cedos.proxy.local.gateway_link import GatewayLink
from cedos.proxy.local.joined_gateway import JoinedGateway
from cedos.session.io.idle_sessions import STATE_BYTES
from cedos.session.protocol.crypto import Suite
from cedos.session.protocol.handshake.credentials import Credentials
from cedos.session.protocol.packed import IdleRecord
from emu.bench.gateway_parts.flows import Echo, answered_s, gateway_process, key

_HOST, _PORTS, _ORIGIN_PORT = "127.0.0.1", (17_921, 17_922), 17_923
_WAY_PORT, _NODE_PORTS = 17_924, 10  # so many above a node's own
_ANSWERS: Final = 500
_ROUNDS: Final = 20
_DOWNLOADS: Final = 7
_QUIET_S: Final = 1.0
_MOST_S: Final = 20.0
_RECORDS: Final = 20_000
_DOWNLOAD_BYTES: Final = 48 << 20


def measure() -> dict[str, float]:
    """Milliseconds from SIGKILL, medians and the 95th of a hundred; bytes in Redis for each session.

    `taken_over`: an idle session is the other node's; `lost`: one that had a connection; both to the
    answer of a new connection. `passed_on`: from the cut of the way to a node to the answer on a
    connection that goes on through the other; `answer`, `passed_on_answer`: 100 bytes and back, at
    the node itself and through the other; `passed_on_rate_ratio`: how fast a download is through the
    other, as a part of what it is at the node itself. EmulationError: it fails.
    """
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder, _redis(Path(folder)) as target:
        for name, idle in (("taken_over", True), ("lost", False)):
            took_ms = [1e3 * _killed_s(Path(folder), target, idle=idle) for _ in range(_ROUNDS)]
            figures[f"{name}_median_ms"] = statistics.median(took_ms)
            figures[f"{name}_p95_ms"] = statistics.quantiles(took_ms, n=20)[-1]
        figures |= _passed_on(Path(folder), target)
        figures |= asyncio.run(_stored(target))
    return figures


@contextmanager
def _redis(folder: Path) -> Iterator[str]:
    path = folder / "redis.sock"
    words = ("--port", "0", "--unixsocket", str(path), "--save", "", "--loglevel", "warning")
    with subprocess.Popen(
        ["redis-server", *words], cwd=folder, stdout=subprocess.DEVNULL
    ) as server:
        try:
            deadline_s = time.monotonic() + _MOST_S
            with socket.socket(socket.AF_UNIX) as one:
                while True:
                    with suppress(OSError):
                        one.connect(str(path))
                        break
                    if time.monotonic() > deadline_s:
                        raise EmulationError("redis-server does not begin")
                    time.sleep(0.02)
            yield f"unix://{path}"
        finally:
            server.kill()


def _killed_s(folder: Path, target: str, *, idle: bool) -> float:
    module = "emu.bench.gateway_parts.two_nodes"
    for each in folder.glob("idle-*"):
        each.unlink()
    first, second = ((str(port), target, str(folder)) for port in _PORTS)
    with gateway_process(module, *first) as pid, gateway_process(module, *second):
        return asyncio.run(_from_kill(pid, idle=idle))


async def _from_kill(pid: int, *, idle: bool) -> float:
    loop = asyncio.get_running_loop()
    origin = await loop.create_server(Echo, _HOST, _ORIGIN_PORT)
    joined = JoinedGateway(
        _HOST, _PORTS[0], key("gateway").public, key("client"), ((_HOST, _PORTS[1]),)
    )
    link = GatewayLink(joined)
    stream = await link.open(_HOST, _ORIGIN_PORT)
    await answered_s(stream)
    if idle:
        stream.finish()
    assert link._streams is not None
    session = link._streams
    await asyncio.sleep(_QUIET_S)
    os.kill(pid, signal.SIGKILL)
    began_s = time.monotonic()
    while True:
        try:
            again = await link.open(_HOST, _ORIGIN_PORT)
            break
        except CedosError:
            if time.monotonic() - began_s > _MOST_S:
                raise
            await asyncio.sleep(0.01)
    await answered_s(again)
    took_s = time.monotonic() - began_s
    if (link._streams is session) is not idle:
        raise EmulationError("the session went on, or not, against what was expected")
    await link.close()
    origin.close()
    return took_s


def _passed_on(folder: Path, target: str) -> dict[str, float]:
    module = "emu.bench.gateway_parts.two_nodes"
    first, second = ((str(port), target, str(folder)) for port in _PORTS)
    with gateway_process(module, *first), gateway_process(module, *second):
        measured = [asyncio.run(_from_cut()) for _ in range(_ROUNDS)]
        rates = [asyncio.run(_downloads_s()) for _ in range(_DOWNLOADS)]
    took_ms = [1e3 * took_s for took_s, _, _ in measured]
    return {
        "passed_on_median_ms": statistics.median(took_ms),
        "passed_on_p95_ms": statistics.quantiles(took_ms, n=20)[-1],
        "answer_median_ms": 1e3 * statistics.median(here_s for _, here_s, _ in measured),
        "passed_on_answer_median_ms": 1e3
        * statistics.median(there_s for _, _, there_s in measured),
        "download_mbps": statistics.median(8e-6 * _DOWNLOAD_BYTES / here_s for here_s, _ in rates),
        "passed_on_rate_ratio": statistics.median(here_s / there_s for here_s, there_s in rates),
    }


class _Way:
    """The way to a node, which can be cut."""

    def __init__(self) -> None:
        self._all: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._carry, _HOST, _WAY_PORT)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to = await asyncio.open_connection(_HOST, _PORTS[0])
        self._all += [writer, to]
        await asyncio.gather(self._copy(reader, to), self._copy(there, writer))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    def cut(self) -> None:
        assert self._server is not None
        self._server.close()
        for each in self._all:
            each.transport.abort()


async def _from_cut() -> tuple[float, float, float]:
    """Until an answer on a connection that lives on; an answer at its node, and through the other."""
    loop = asyncio.get_running_loop()
    origin = await loop.create_server(Echo, _HOST, _ORIGIN_PORT)
    key_, client = key("gateway").public, key("client")
    direct = GatewayLink(JoinedGateway(_HOST, _PORTS[0], key_, client))
    stream = await direct.open(_HOST, _ORIGIN_PORT)
    here_s = statistics.median([await answered_s(stream) for _ in range(_ANSWERS)])
    await direct.close()
    way = _Way()
    await way.open()
    link = GatewayLink(JoinedGateway(_HOST, _WAY_PORT, key_, client, ((_HOST, _PORTS[1]),)))
    stream = await link.open(_HOST, _ORIGIN_PORT)
    await answered_s(stream)
    session = link._streams
    await asyncio.sleep(_QUIET_S)
    way.cut()
    began_s = time.monotonic()
    await answered_s(stream)
    took_s = time.monotonic() - began_s
    there_s = statistics.median([await answered_s(stream) for _ in range(_ANSWERS)])
    if link._streams is not session:
        raise EmulationError("the session did not go on")
    await link.close()
    origin.close()
    return took_s, here_s, there_s


class _Source(asyncio.Protocol):
    """Sends so much as soon as it is asked."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, _data: bytes) -> None:
        self._transport.write(bytes(_DOWNLOAD_BYTES))


async def _download_s(link: GatewayLink) -> float:
    stream = await link.open(_HOST, _ORIGIN_PORT)
    came, began_s, got = asyncio.Event(), time.monotonic(), 0
    stream.watch(came.set)
    stream.write(b"x")
    while got < _DOWNLOAD_BYTES:
        await asyncio.wait_for(came.wait(), _MOST_S)
        came.clear()
        count = sum(map(len, stream.waiting))
        stream.taken(count)
        got += count
    stream.reset()
    return time.monotonic() - began_s


async def _downloads_s() -> tuple[float, float]:
    """One at the node that has the session, then one of the same session through the other."""
    origin = await asyncio.get_running_loop().create_server(_Source, _HOST, _ORIGIN_PORT)
    way = _Way()
    await way.open()
    key_, client = key("gateway").public, key("client")
    direct = GatewayLink(JoinedGateway(_HOST, _PORTS[0], key_, client))
    here_s = await _download_s(direct)
    await direct.close()
    link = GatewayLink(JoinedGateway(_HOST, _WAY_PORT, key_, client, ((_HOST, _PORTS[1]),)))
    stream = await link.open(_HOST, _ORIGIN_PORT)
    session = link._streams
    await asyncio.sleep(_QUIET_S)
    way.cut()
    there_s = await _download_s(link)
    if link._streams is not session:
        raise EmulationError("the session did not go on")
    stream.reset()
    await link.close()
    origin.close()
    return here_s, there_s


async def _stored(target: str) -> dict[str, float]:
    """What each session takes in Redis, and of this end's processor to be written."""
    flows = NodeFlows(RedisTarget.parse(target), key("gateway"))
    await flows.open()
    with redis.Redis(unix_socket_path=target.removeprefix("unix://")) as server:
        before = server.info("memory")["used_memory"]
        idle = IdleRecord.at_the_beginning(3600, time.time()).to_bytes() + bytes(STATE_BYTES)
        began_s = time.process_time()
        for number in range(_RECORDS):
            peer = (number // 100).to_bytes(32, "big")
            flow_id, secret = os.urandom(16), os.urandom(32)
            proves = Credentials(flow_id, secret, peer, Suite.AES_128_GCM)
            flows.write(proves.to_bytes() + idle)
        await flows._flush()
        await flows.close()
        took_s = time.process_time() - began_s
        used = server.info("memory")["used_memory"] - before
    if flows.figures.written != _RECORDS:
        raise EmulationError("not all was written")
    return {"redis_bytes": used / _RECORDS, "write_us": 1e6 * took_s / _RECORDS}


async def _serve(port: int, target: str, folder: Path) -> None:
    me = key("gateway")
    settings = GatewaySettings((_HOST, port), local=True, idle=folder / f"idle-{port}")
    clients = {key("client").public: "client"}
    nodes = NodeFlows(RedisTarget.parse(target), me, (_HOST, port + _NODE_PORTS))
    gateway = Gateway(settings, me, clients.get, nodes=nodes)
    await gateway.open()
    print("ready", flush=True)
    await gateway.run()


if __name__ == "__main__":
    logs.configure("warning", "json")
    memory.one_arena()
    if len(sys.argv) > 1:
        asyncio.run(_serve(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])))
    else:
        print(json.dumps(measure(), indent=1))
