"""A gateway, the proxy of a host that joined it, and origins, in one event loop over loopback."""

import asyncio
import os
import socket
from dataclasses import replace

import pytest

from cedos.kernel.socket_owners import SocketOwners
from cedos.proxy.gateway.gateway import Gateway, GatewaySettings
from cedos.proxy.local.carried import CarriedConnections
from cedos.proxy.local.gateway_link import GatewayLink
from cedos.proxy.local.gateway_links import GatewayLinks
from cedos.proxy.local.joined_gateway import JoinedGateway
from cedos.proxy.local.local_proxy import Fail, Listening, LocalProxy
from cedos.session.protocol.crypto import KeyPair


class Ends:
    """`gateway`, `link` and `proxy`; `clients` are those that the gateway knows, by key."""

    def __init__(self):
        self.me, self.client = KeyPair(os.urandom(32)), KeyPair(os.urandom(32))
        self.clients = {self.client.public: "laptop"}
        self.servers = []

    async def start(
        self, *, fail=Fail.CLOSED, local=True, patience_s=3.0, direct=None, rules=None, **settings
    ):
        self.settings = GatewaySettings(("127.0.0.1", 0), local=local, **settings)
        await self._start_gateway()
        joined = JoinedGateway(*self.gateway.address, self.me.public, self.client)
        self.carried = CarriedConnections(asyncio.get_running_loop().time)
        self.link = GatewayLink(joined, patience_s=patience_s, carried=self.carried.watch)
        links = GatewayLinks([self.link])
        self.proxy = (
            LocalProxy(links, fail, rules=rules)
            if direct is None
            else LocalProxy(links, fail, direct=direct)
        )
        self.proxy.open([Listening("127.0.0.1", 0)])

    async def _start_gateway(self):
        self.gateway = Gateway(self.settings, self.me, self.clients.get)
        await self.gateway.open()
        self.running = asyncio.create_task(self.gateway.run())

    async def origin(self, handler):
        """Serves on a port of loopback."""

        async def serve(reader, writer):
            try:
                await handler(reader, writer)
            finally:
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        self.servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def forward(self, port):
        """A program's connection to a port of the gateway's host."""
        self.proxy.open([Listening("127.0.0.1", 0, ("127.0.0.1", port))])
        return await asyncio.open_connection("127.0.0.1", self.proxy.addresses[-1].port)

    async def ask(self, data, user=1):
        """Return the connection of a user's program that speaks to the proxy itself."""
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.proxy.addresses[0].port, local_addr=(f"127.0.0.{user}", 0)
        )
        writer.write(data)
        return reader, writer

    async def answer(self, data, user=1):
        """Ask the proxy, and return all that it says until it ends the connection."""
        reader, writer = await self.ask(data, user)
        try:
            return await asyncio.wait_for(reader.read(), 5)
        finally:
            writer.close()

    async def why(self, data):
        """Ask for a connection that is refused twice: first it is reset, then the proxy says why."""
        with pytest.raises(ConnectionResetError):
            await self.answer(data)
        return await self.answer(data)

    async def restart_gateway(self):
        """End the gateway and start it again at the same port, as `systemctl restart` does."""
        self.settings = replace(self.settings, listen=self.gateway.address)
        await self.stop_gateway()
        await self._start_gateway()

    async def stop_gateway(self):
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)
        await self.gateway.close()

    async def close(self):
        await self.proxy.close()
        await self.link.close()
        await self.stop_gateway()
        for server in self.servers:
            server.close()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


@pytest.fixture
async def ends():
    made = Ends()
    yield made
    await made.close()


@pytest.fixture
def users(monkeypatch):
    """Tell users by the last number of the addresses from which their programs connect (`Ends.ask`)."""

    def user_of(_owners, _protocol, program, _near):
        return int(program[0].rpartition(".")[2])

    monkeypatch.setattr(SocketOwners, "user_of", user_of)


@pytest.fixture
def closed_port():
    return free_port()


@pytest.fixture
def nothing_is_near(monkeypatch):
    monkeypatch.setattr(LocalProxy, "goes_direct", lambda *_: False)
