"""Thousands of connections that never prove themselves, and an honest host among them."""

import contextlib
import resource
import socket
import time

import pytest

ADDRESSES = 50
STRANGERS = 10_000
SERVER = ("10.99.0.1", 7100)


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
