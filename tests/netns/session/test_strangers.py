"""Strangers prove nothing: thousands of half-open handshakes, and a network that forges an answer."""

import asyncio
import contextlib
import resource
import socket
import time

import pytest
from kit.waiting import until

from cedos.session.protocol.handshake.messages import MessageKind, Notice, frame, pack_notice

ADDRESSES = 50
STRANGERS = 10_000
SERVER = ("10.99.0.1", 7100)
FORGED = "-t nat -A PREROUTING -i wlan0 -p tcp --dport 7100 -j REDIRECT --to-ports 7101"


@pytest.fixture
def descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < STRANGERS + 3000:
        pytest.skip(f"{hard} descriptors are too few")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def echo(listener):
    while True:
        connection = await listener.accept()
        data = await connection.read()
        await connection.write(bytes(data))
        await connection.close()


async def honest(world):
    began_s = time.monotonic()
    connection = await world.connect()
    await connection.write(b"hello")
    assert await connection.read_exactly(5) == b"hello"
    await connection.close()
    return time.monotonic() - began_s


@pytest.mark.usefixtures("descriptors")
def test_ten_thousand_half_open_handshakes(world):
    for number in range(ADDRESSES):
        world.near.ip("address", "add", f"10.9.1.{100 + number}/24", "dev", "wlan0")
    listener = world.listen()
    world.server.start(echo(listener))
    world.client.do(honest(world))
    strangers = []
    most = 0
    try:
        with world.near.entered():
            for number in range(STRANGERS):
                stranger = socket.socket()
                stranger.setblocking(False)
                stranger.bind((f"10.9.1.{100 + number % ADDRESSES}", 0))
                stranger.connect_ex(SERVER)
                strangers.append(stranger)
                if number % 100 == 99:
                    time.sleep(0.01)
                    # Each says the beginning of a hello and no more.
                    for one in strangers[-100:]:
                        with contextlib.suppress(OSError):
                            one.send(b"\x00\x00\xaa\x01ceds")
                    most = max(most, listener.half_open)
                if number % 2500 == 2499:
                    world.client.do(honest(world), 60)
        assert most > 500  # they were there
        assert most <= 1024 + 64  # those of one turn of the listener are pushed out after it
        # The first ones were pushed out by the later ones.
        closed = 0
        for one in strangers[:5000]:
            try:
                closed += one.recv(1) == b""
            except BlockingIOError:
                pass
            except OSError:
                closed += 1
        assert closed > 4500
        ends_s = time.monotonic() + 30
        while listener.half_open and time.monotonic() < ends_s:
            time.sleep(0.2)
        assert listener.half_open == 0  # and the last ones had their ten seconds
        world.client.do(honest(world), 60)
    finally:
        for one in strangers:
            one.close()
        world.server.do(listener.close())


async def forge(told):
    async def on_connection(reader, writer):
        told.append(await reader.read(1))
        writer.write(frame(MessageKind.NOTICE, pack_notice(Notice.BUSY, 65.0)))
        await writer.drain()
        writer.close()

    return await asyncio.start_server(on_connection, "0.0.0.0", 7101)


def test_a_network_that_says_busy_holds_up_no_other_one(world):
    """The honest network's path is back long before the forged minute is over."""
    told = []
    listener = world.listen()
    near = world.client.do(world.connect())
    world.client.do(until(lambda: len(near.paths()) == 2, 20))
    forger = world.server.do(forge(told))
    world.far.run("iptables", *FORGED.split())
    try:
        world.far.run("ss", "-K", "sport", "=", ":7100")
        world.client.do(until(lambda: told, 20))
        world.client.do(until(lambda: [each.network for each in near.paths()] == ["lte0"], 15))
        assert len(told) < 3  # the network itself is left alone for the minute
    finally:
        world.client.loop.call_soon_threadsafe(near.abort)
        world.server.loop.call_soon_threadsafe(forger.close)
        world.server.do(listener.close())
