"""Clients without manners: a server does nothing for them, and nothing twice."""

import asyncio
import socket
import time
from dataclasses import replace

import pytest

from cedos.host.monitor.probing import wire

KEY = b"k" * 32


@pytest.fixture
async def talk():
    talkers = []

    def make(port, bound="127.0.0.1"):
        talkers.append(Talker(port, bound))
        return talkers[-1]

    yield make
    for talker in talkers:
        talker.socket.close()


class Talker:
    """A client without manners: says what it is told, and keeps what it hears."""

    def __init__(self, port, bound="127.0.0.1"):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        self.socket.bind((bound, 0))
        self.socket.connect(("127.0.0.1", port))

    async def say(self, data, wait_s=0.15):
        """Everything that comes within some time; the port stays its own."""
        self.socket.send(data)
        await asyncio.sleep(wait_s)
        heard = []
        while True:
            try:
                heard.append(self.socket.recv(2048))
            except BlockingIOError:
                return heard


async def test_nothing_begins_without_the_round_trip_and_nothing_begins_twice(talk, serving):
    async with serving() as (running, server):
        session = b"s" * 16
        talker = talk(server.port)
        forged = wire.TrainRequest(session, b"c" * 16, 40, 1200)
        assert await talker.say(wire.encode(forged, KEY)) == []
        (answer,) = await talker.say(wire.encode(wire.ProbeHello(session), KEY))
        cookie = wire.decode(answer, KEY)
        assert isinstance(cookie, wire.Cookie)
        ask = wire.encode(replace(forged, cookie=cookie.cookie), KEY)
        # From another port or host it is worth nothing.
        assert await talk(server.port).say(ask) == []
        assert await talk(server.port, "127.0.0.2").say(ask) == []
        assert len(await talker.say(ask)) == 40
        assert await talker.say(ask) == []
        assert running.counts["trains"] == 1
        assert running.counts["stale or foreign cookies"] == 3


async def test_what_a_server_says_cannot_be_thrown_back_at_it(talk, serving):
    async with serving() as (_, server):
        talker = talk(server.port)
        (cookie,) = await talker.say(wire.encode(wire.ProbeHello(b"s" * 16), KEY))
        assert await talker.say(cookie) == []
        train = wire.encode(wire.TrainPacket(b"s" * 16, 0, 40), KEY, 1200)
        assert await talker.say(train) == []


async def test_one_source_leaves_places_to_others(talk, serving):
    """A client with the key asked for 33 kB of smallest trains each 12 s: no other one was served."""
    smallest = wire.TrainRequest(b"", b"", wire.MIN_PACKETS, wire.MIN_PACKET_BYTES)

    async def ask(talker, session):
        """Return whether the train is refused."""
        talker.socket.send(wire.encode(wire.ProbeHello(session), KEY))
        while True:
            heard = await asyncio.get_running_loop().sock_recv(talker.socket, 2048)
            match wire.decode(heard, KEY):
                case wire.Cookie(of, cookie) if of == session:
                    train = replace(smallest, session=session, cookie=cookie)
                    talker.socket.send(wire.encode(train, KEY))
                case wire.Refused(of) if of == session:
                    return True
                case wire.TrainPacket(of) if of == session:
                    return False

    async with serving() as (running, server):
        many = talk(server.port)
        refused = [await ask(many, number.to_bytes(16)) for number in range(2100)]
        assert refused[-1]
        assert not await ask(talk(server.port, "127.0.0.2"), b"s" * 16)
        running._forget(time.monotonic() + 60)
        assert not running._of_source
        assert not await ask(many, b"t" * 16)
