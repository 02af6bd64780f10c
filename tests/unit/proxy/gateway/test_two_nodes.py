"""Two gateways with one key and one Redis: a client of the one is the other's client, too."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kit.redis_server import RedisServer

from cedos.proxy.gateway.gateway import Gateway, GatewaySettings
from cedos.proxy.gateway.nodes import node_flows
from cedos.proxy.gateway.nodes.node_flows import NodeFlows
from cedos.proxy.gateway.nodes.redis_target import RedisTarget
from cedos.proxy.local.gateway_link import GatewayLink
from cedos.proxy.local.joined_gateway import JoinedGateway
from cedos.proxy.local.local_proxy import Fail, Listening, LocalProxy
from cedos.session.protocol.crypto import KeyPair
from cedos.session.sockets import flow_table

pytestmark = pytest.mark.anyio


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    made = RedisServer(tmp_path)
    made.start()
    yield made
    made.close()


class Nodes:
    """`gateways`, of which the client knows all; the first one is its own at the beginning.

    `here`: where each of them is reached by the other.
    """

    def __init__(
        self, redis: RedisServer, folder: Path, here: tuple[str, int] | None = None
    ) -> None:
        self._redis, self._folder, self._here = redis, folder, here
        self.me, self.client = KeyPair(os.urandom(32)), KeyPair(os.urandom(32))
        self.gateways: list[Gateway] = []
        self._dead: list[Gateway] = []
        self.stores: list[NodeFlows] = []
        self._running: list[asyncio.Task[None]] = []
        self._servers: list[asyncio.Server] = []

    async def start(self) -> None:
        for number in range(2):
            await self.begin(number, 0)
        first, *others = (each.address for each in self.gateways)
        joined = JoinedGateway(*first, self.me.public, self.client, tuple(others))
        self.link = GatewayLink(joined)
        self.proxy = LocalProxy(self.link, Fail.CLOSED)
        self.proxy.open([Listening("127.0.0.1", 0)])

    async def begin(self, number: int, port: int) -> None:
        store = NodeFlows(RedisTarget.parse(self._redis.target), self.me, self._here)
        settings = GatewaySettings(
            ("127.0.0.1", port), local=True, idle=self._folder / f"idle-{number}"
        )
        gateway = Gateway(settings, self.me, {self.client.public: "laptop"}.get, nodes=store)
        await gateway.open()
        self._dead += self.gateways[number : number + 1]
        self.gateways[number : number + 1] = [gateway]
        self.stores[number : number + 1] = [store]
        self._running.append(asyncio.create_task(gateway.run()))

    async def echoed(self, words: bytes = b"hello") -> tuple[Any, Any]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.proxy.addresses[-1].port)
        writer.write(words)
        assert await asyncio.wait_for(reader.readexactly(len(words)), 10) == words
        return reader, writer

    async def said(self) -> None:
        reader, writer = await self.echoed()
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()

    async def origin(self) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(ConnectionError):
                while data := await reader.read(65_536):
                    writer.write(data)
                    await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        self._servers.append(server)
        to = "127.0.0.1", int(server.sockets[0].getsockname()[1])
        self.proxy.open([Listening("127.0.0.1", 0, to)])

    def dies(self, number: int) -> None:
        """As its host does with a process that was killed; it does not know, and stays as it was."""
        listener = self.gateways[number]._listener
        listener.stop().close()
        listener._socket = socket.socket()  # for its own end
        for connection in list(listener._flows._living.values()):
            for path in list(connection.flow.paths.values()):
                path.close("it was killed", reset=True)

    async def quiet(self) -> None:
        """What was said last is written down, and in Redis."""
        await asyncio.sleep(0.6)

    async def close(self) -> None:
        await self.proxy.close()
        await self.link.close()
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        for gateway in (*self.gateways, *self._dead):
            await gateway.close()
        for server in self._servers:
            server.close()


async def broken(reader: Any, writer: Any) -> None:
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(reader.read(), 5)
    writer.transport.abort()


async def until(true: Any) -> None:
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.02)


def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes note, forget and look within half a second."""
    monkeypatch.setattr(flow_table, "_NOTE_S", 0.1)
    monkeypatch.setattr(flow_table, "_ASLEEP_S", 0.3)
    monkeypatch.setattr(node_flows, "_LOOKS_S", 0.5)


@pytest.fixture
async def nodes(
    redis: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Nodes]:
    hurried(monkeypatch)
    made = Nodes(redis, tmp_path)
    await made.start()
    await made.origin()
    yield made
    await made.close()


async def test_an_idle_client_goes_on_at_the_other_node(nodes: Nodes) -> None:
    await nodes.said()
    session = nodes.link._streams
    await nodes.quiet()
    nodes.dies(0)
    await nodes.said()
    assert nodes.link._streams is session, "the laptop began another one"
    assert nodes.stores[1].figures.taken == 1
    assert session.connection.place == nodes.gateways[1].address


async def test_a_node_that_ends_leaves_idle_clients_to_the_other(nodes: Nodes) -> None:
    await nodes.said()
    session = nodes.link._streams
    await nodes.quiet()
    await nodes.gateways[0].close()
    await nodes.said()
    assert nodes.link._streams is session
    assert nodes.stores[1].figures.taken == 1


async def test_one_with_a_connection_is_told_that_its_node_ends(nodes: Nodes) -> None:
    reader, writer = await nodes.echoed()
    session = nodes.link._streams
    await nodes.gateways[0].close()
    await broken(reader, writer)
    await nodes.said()
    assert nodes.link._streams is not session


async def test_the_first_node_lets_go_when_it_notices(nodes: Nodes) -> None:
    reader, writer = await nodes.echoed()
    nodes.dies(0)  # with a connection, so that it does not sleep there
    await until(lambda: nodes.gateways[0].sessions)
    await broken(reader, writer)
    await nodes.said()
    assert nodes.gateways[1].sessions == 1
    # (Its client never goes on with that one: it was told that it was lost.)
    assert nodes.gateways[0].sessions == 1


async def test_a_node_lets_go_of_a_client_that_went_on_elsewhere(nodes: Nodes) -> None:
    await nodes.said()
    await nodes.quiet()
    nodes.dies(0)
    await nodes.said()
    assert nodes.stores[1].figures.taken == 1
    await until(lambda: not nodes.gateways[0].sessions)
    await asyncio.sleep(1.2)
    assert nodes.gateways[1].sessions == 1
    assert nodes.stores[1].figures.given == 0


async def test_redis_may_go_and_come_back_empty(nodes: Nodes, redis: RedisServer) -> None:
    await nodes.said()
    redis.kill()
    began_s = asyncio.get_running_loop().time()
    await nodes.said()
    await until(lambda: nodes.stores[0].away)
    assert nodes.gateways[0].figures().nodes_away == 1
    await nodes.said()
    assert asyncio.get_running_loop().time() - began_s < 3.0
    redis.start()
    await until(lambda: not any(each.away for each in nodes.stores))
    session = nodes.link._streams
    await nodes.quiet()
    nodes.dies(0)
    await nodes.said()
    assert nodes.link._streams is session


async def test_without_redis_a_client_begins_anew_at_the_other_node(
    nodes: Nodes, redis: RedisServer
) -> None:
    await nodes.said()
    session = nodes.link._streams
    redis.kill()
    await nodes.quiet()
    nodes.dies(0)
    await nodes.said()
    assert nodes.link._streams is not session
    assert nodes.link._streams.connection.place == nodes.gateways[1].address


async def test_a_redis_that_says_nothing_delays_nobody(nodes: Nodes, redis: RedisServer) -> None:
    await nodes.said()
    await nodes.quiet()
    redis.stop_for_a_while()
    nodes.dies(0)
    began_s = asyncio.get_running_loop().time()
    await nodes.said()
    assert asyncio.get_running_loop().time() - began_s < 2.0


async def test_one_that_was_not_quiet_is_told_so_and_begins_anew(nodes: Nodes) -> None:
    reader, writer = await nodes.echoed()
    nodes.dies(0)
    await broken(reader, writer)
    await nodes.said()


@pytest.mark.parametrize("alone", [False, True])
async def test_a_get_whose_node_is_killed_goes_on(nodes: Nodes, *, alone: bool) -> None:
    """Over the other one, or over the same gateway once it is there again."""
    if alone:
        nodes.link.joined = replace(nodes.link.joined, others=())
    data, asked = os.urandom(3_000_000), []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        asked.append(request)
        first = request.partition(b"Range: bytes=")[2].partition(b"-")[0]
        start = int(first or 0)
        part = f"\r\nContent-Range: bytes {start}-{len(data) - 1}/{len(data)}" if first else ""
        status = "206 Partial Content" if first else "200 OK"
        length = len(data) - start
        writer.write(
            f'HTTP/1.1 {status}\r\nETag: "a"\r\nContent-Length: {length}{part}\r\n\r\n'.encode()
        )
        with suppress(ConnectionError):
            for at in range(start, len(data), 100_000):
                writer.write(data[at : at + 100_000])
                await writer.drain()
                await asyncio.sleep(0.01)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    nodes._servers.append(server)
    port = server.sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", nodes.proxy.addresses[0].port)
    name = f"127.0.0.1:{port}"
    nodes.proxy.goes_direct = lambda _host: False
    writer.write(f"GET http://{name}/file HTTP/1.1\r\nHost: {name}\r\n\r\n".encode())
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
    assert head.startswith(b"HTTP/1.1 200")
    got = await asyncio.wait_for(reader.readexactly(1_000_000), 10)
    port = nodes.gateways[0].address[1]
    nodes.dies(0)
    if alone:
        await nodes.begin(0, port)
    got += await asyncio.wait_for(reader.read(), 20)
    assert got == data
    assert len(asked) == 2
    assert b'If-Range: "a"' in asked[1]
    assert nodes.gateways[0 if alone else 1].sessions == 1
    writer.close()
