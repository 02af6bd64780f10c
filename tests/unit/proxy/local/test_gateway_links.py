"""A laptop that joined two gateways uses the first that answers."""

import asyncio
import os
from contextlib import suppress

import pytest
from kit.waiting import until

from cedos.proxy.gateway.gateway import Gateway, GatewaySettings
from cedos.proxy.local import gateway_link
from cedos.proxy.local.gateway_link import GatewayLink, GatewayUnreachableError
from cedos.proxy.local.gateway_links import GatewayLinks
from cedos.proxy.local.joined_gateway import JoinedGateway
from cedos.proxy.local.local_proxy import Listening
from cedos.session.protocol.crypto import KeyPair


class TwoGateways:
    """Two independent gateways, with a key each, on loopback; the laptop knows both."""

    def __init__(self):
        self.client = KeyPair(os.urandom(32))
        self.keys = [KeyPair(os.urandom(32)) for _ in range(2)]
        self.ports = [0, 0]
        self.gateways = [None, None]
        self.running = {}

    async def start(self, number):
        settings = GatewaySettings(("127.0.0.1", self.ports[number]), local=True)
        clients = {self.client.public: "laptop"}
        made = self.gateways[number] = Gateway(settings, self.keys[number], clients.get)
        await made.open()
        self.ports[number] = made.address[1]
        self.running[number] = asyncio.create_task(made.run())

    async def stop(self, number):
        gateway = self.gateways[number]
        if gateway is None:
            return
        self.gateways[number] = None
        self.running[number].cancel()
        await asyncio.gather(self.running[number], return_exceptions=True)
        await gateway.close()

    def join(self):
        self.each = [
            GatewayLink(JoinedGateway("127.0.0.1", port, key.public, self.client))
            for port, key in zip(self.ports, self.keys, strict=True)
        ]
        self.links = GatewayLinks(self.each)

    def streams(self):
        return [0 if each is None else each._open.total() for each in self.gateways]


@pytest.fixture
async def two(monkeypatch):
    monkeypatch.setattr(gateway_link, "AGAIN_S", 0.3)
    made = TwoGateways()
    for number in range(2):
        await made.start(number)
    made.join()
    yield made
    await made.links.close()
    for number in range(2):
        await made.stop(number)


@pytest.fixture
async def origin():
    async def wait(reader, writer):
        with suppress(ConnectionResetError):  # its gateway stopped
            await reader.read()
        writer.close()

    server = await asyncio.start_server(wait, "127.0.0.1", 0)
    yield int(server.sockets[0].getsockname()[1])
    server.close()


async def test_the_first_that_answers_carries_a_connection(two, origin):
    await two.links.open("127.0.0.1", origin)
    assert two.streams() == [1, 0]
    assert two.links.leads_to("127.0.0.1")
    # The first gateway stops: the next connection goes through the second one.
    await two.stop(0)
    async with asyncio.timeout(2 * gateway_link.PATIENCE_S):
        await two.links.open("127.0.0.1", origin)
    assert two.streams() == [0, 1]
    # The first gateway is back: it is dialled beside a connection, and carries the ones after that.
    await two.start(0)
    await asyncio.sleep(gateway_link.AGAIN_S)
    await two.links.open("127.0.0.1", origin)
    assert two.streams() == [0, 2]
    await until(lambda: two.each[0].answers)
    await two.links.open("127.0.0.1", origin)
    assert two.streams() == [1, 2]


async def test_none_that_answers_is_unreachable(two, origin):
    for number in range(2):
        await two.stop(number)
    with pytest.raises(GatewayUnreachableError):
        await two.links.open("127.0.0.1", origin)
    with pytest.raises(GatewayUnreachableError):
        await two.links.ask(b"question")


async def test_what_was_sent_is_not_repeated_at_another_gateway(two, origin, monkeypatch):
    """The caller alone knows whether the words of a program may be sent twice."""
    begun = []

    async def silent(*_more):
        raise GatewayUnreachableError("nothing is heard of it")

    monkeypatch.setattr(two.each[0], "_wait_accepted", silent)
    with pytest.raises(GatewayUnreachableError):
        await two.links.open("127.0.0.1", origin, begun.append)
    assert len(begun) == 1


async def test_gateways_that_are_joined_or_left_meanwhile(two, origin):
    """A running `cedos forward` kept the gateway that it began with."""
    first, second = (each.joined for each in two.each)
    made = []

    def make(joined):
        made.append(GatewayLink(joined))
        return made[-1]

    links = GatewayLinks([make(first)])
    stream = await links.open("127.0.0.1", origin)
    assert two.streams() == [1, 0]
    links.follow([second], make)
    await links.open("127.0.0.1", origin)
    assert two.streams() == [1, 1]
    assert stream.broken is None
    # The first is joined again: its session is still there.
    links.follow([first, second], make)
    await links.open("127.0.0.1", origin)
    assert two.streams() == [2, 1]
    assert len(made) == 2
    await links.close()


UNUSED_S = 0.5


async def echo(reader, writer):
    writer.write(await reader.read())
    await writer.drain()


async def test_short_connections_keep_their_session(ends, monkeypatch):
    """A session in constant use ended every ten minutes, if no connection was open at that instant."""
    monkeypatch.setattr(gateway_link, "UNUSED_S", UNUSED_S)
    await ends.start()
    ends.proxy.open([Listening("127.0.0.1", 0, ("127.0.0.1", await ends.origin(echo)))])

    async def one():
        reader, writer = await asyncio.open_connection("127.0.0.1", ends.proxy.addresses[-1].port)
        writer.write(b"a")
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), 5) == b"a"
        writer.close()
        return ends.link._streams

    first = await one()
    for _ in range(8):
        await asyncio.sleep(UNUSED_S / 3)
        assert await one() is first
    await asyncio.sleep(2 * UNUSED_S + 0.2)
    assert ends.link._streams is None
    assert await one() is not first
