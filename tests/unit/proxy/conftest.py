"""A gateway, the proxy of a host that joined it, and origins, in one event loop over loopback."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from cedos.proxy.gateway.gateway import Gateway, GatewaySettings
from cedos.proxy.gateway.gateway_session import RequestFetcher
from cedos.proxy.local.carried import CarriedConnections
from cedos.proxy.local.direct import RuleBook
from cedos.proxy.local.gateway_link import GatewayLink
from cedos.proxy.local.gateway_links import GatewayLinks
from cedos.proxy.local.joined_gateway import JoinedGateway
from cedos.proxy.local.local_proxy import Fail, Listening, LocalProxy
from cedos.session.protocol.crypto import KeyPair

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Ends:
    """`gateway`, `link` and `proxy`; `clients` are those that the gateway knows, by key."""

    def __init__(self) -> None:
        self.requests: RequestFetcher | None = None
        self.me, self.client = KeyPair(os.urandom(32)), KeyPair(os.urandom(32))
        self.clients: dict[bytes, str] = {self.client.public: "laptop"}
        self.servers: list[asyncio.Server] = []

    async def start(
        self,
        *,
        fail: Fail = Fail.CLOSED,
        local: bool = True,
        patience_s: float = 3.0,
        direct: Callable[[int, float | None], bool] | None = None,
        rules: RuleBook | None = None,
        **settings: Any,
    ) -> None:
        self.settings = GatewaySettings(("127.0.0.1", 0), local=local, **settings)
        await self._start_gateway()
        joined = JoinedGateway(*self.gateway.address, self.me.public, self.client)
        self.carried = CarriedConnections(asyncio.get_running_loop().time)
        self.link = GatewayLink(joined, patience_s=patience_s, carried=self.carried)
        links = GatewayLinks([self.link])
        self.proxy = (
            LocalProxy(links, fail, rules=rules)
            if direct is None
            else LocalProxy(links, fail, direct=direct)
        )
        self.proxy.open([Listening("127.0.0.1", 0)])

    async def _start_gateway(self) -> None:
        self.gateway = Gateway(self.settings, self.me, self.clients.get, requests=self.requests)
        await self.gateway.open()
        self.running = asyncio.create_task(self.gateway.run())

    async def origin(self, handler: Handler) -> int:
        """Serves on a port of loopback."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await handler(reader, writer)
            finally:
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        self.servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def forward(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A program's connection to a port of the gateway's host."""
        self.proxy.open([Listening("127.0.0.1", 0, ("127.0.0.1", port))])
        return await asyncio.open_connection("127.0.0.1", self.proxy.addresses[-1].port)

    async def ask(self, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A program that speaks to the proxy itself."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.proxy.addresses[0].port)
        writer.write(data)
        return reader, writer

    async def answer(self, data: bytes) -> bytes:
        """Ask the proxy, and return all that it says until it ends the connection."""
        reader, writer = await self.ask(data)
        try:
            return await asyncio.wait_for(reader.read(), 5)
        finally:
            writer.close()

    async def restart_gateway(self) -> None:
        """End the gateway and start it again at the same port, as `systemctl restart` does."""
        self.settings = replace(self.settings, listen=self.gateway.address)
        await self.stop_gateway()
        await self._start_gateway()

    async def stop_gateway(self) -> None:
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)
        await self.gateway.close()

    async def close(self) -> None:
        await self.proxy.close()
        await self.link.close()
        await self.stop_gateway()
        for server in self.servers:
            server.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    made = Ends()
    yield made
    await made.close()


@pytest.fixture
def closed_port() -> int:
    return free_port()
