"""Ends that move, servers that die, silent networks: what a flow survives and what not."""

import asyncio
import signal
import subprocess
import sys
import time

import pytest
from kit.waiting import until

from cedos import session
from cedos.errors import SessionError


async def echo(listener):
    connection = await listener.accept()
    while data := await connection.read():
        await connection.write(bytes(data))
    await connection.close()


async def round_trip(connection, data=b"hello"):
    async with asyncio.timeout(30):
        await connection.write(data)
        assert await connection.read_exactly(len(data)) == data


def networks(connection):
    return {path.network for path in connection.paths() if not path.stalled}


def test_every_network_is_used_and_bound(world):
    listener = world.listen()
    serving = world.server.start(echo(listener))

    async def scenario():
        connection = await world.connect()
        await round_trip(connection)
        await until(lambda: networks(connection) == {"wlan0", "lte0"})
        own = {path.own_endpoint()[0] for path in connection.flow.paths.values()}
        assert own == {"10.9.1.2", "10.9.2.2"}
        await connection.close()

    world.client.do(scenario())
    serving.result(20)


def test_a_new_address_a_dead_network_a_new_one(world):
    """Only wlan0; its address changes; it dies and lte0 comes; wlan0 comes back."""
    world.near.ip("link", "set", "lte0", "down")
    listener = world.listen()
    serving = world.server.start(echo(listener))
    connection = world.client.do(world.connect())

    async def scenario(step):
        await round_trip(connection, b"step %d" % step)

    world.client.do(scenario(1))
    world.near.ip("address", "add", "10.9.1.77/24", "dev", "wlan0")
    world.near.ip("address", "del", "10.9.1.2/24", "dev", "wlan0")
    world.near.ip("address", "replace", "10.9.1.77/24", "dev", "wlan0")
    world.route("wlan0")
    world.client.do(scenario(2))
    world.near.ip("link", "set", "wlan0", "down")
    world.near.ip("link", "set", "lte0", "up")
    world.route("lte0")
    world.client.do(scenario(3))
    assert networks(connection) == {"lte0"}
    world.near.ip("link", "set", "wlan0", "up")
    world.route("wlan0")
    world.client.do(until(lambda: networks(connection) == {"wlan0", "lte0"}))
    world.client.do(scenario(4))
    world.client.do(connection.close())
    serving.result(20)


@pytest.mark.parametrize(
    ("ends", "by"), [("far", "queue"), ("near", "filter"), ("both", "queue")], ids=str
)
def test_a_silent_network_is_left_and_taken_again(world, ends, by):
    """Its link stays up but nothing passes: what was sent there goes over the other one."""
    listener = world.listen()
    serving = world.server.start(echo(listener))
    connection = world.client.do(world.connect())
    world.client.do(round_trip(connection))
    world.client.do(until(lambda: len(connection.paths()) == 2))
    for name in ("wlan0", "lte0"):
        undo = world.swallow(name, ends, by=by)
        began_s = time.monotonic()
        world.client.do(round_trip(connection, bytes(20_000)))
        # About half a second; the kernel gives up after 8 s at the earliest.
        assert time.monotonic() - began_s < 4
        undo()
        world.client.do(until(lambda: {"wlan0", "lte0"} == networks(connection), 30), timeout_s=40)
    world.client.do(connection.close())
    serving.result(20)


def test_both_ends_move_at_once(world):
    """The server has another address, the client another network; the name leads there."""
    world.near.ip("link", "set", "lte0", "down")
    world.far.ip("address", "add", "10.99.0.2/32", "dev", "lo")
    listener = world.server.do(session.listen(("", 7100), key=world.server_key))
    serving = world.server.start(echo(listener))

    async def call():
        return await session.connect(
            [("10.99.0.1", 7100), ("10.99.0.2", 7100)],
            server_key=world.server_key.public,
            key=world.key,
            timeout_s=20,
        )

    connection = world.client.do(call())
    world.client.do(round_trip(connection, b"before"))
    world.far.ip("address", "del", "10.99.0.1/32", "dev", "lo")
    world.near.ip("link", "set", "wlan0", "down")
    world.near.ip("link", "set", "lte0", "up")
    world.route("lte0")
    world.client.do(round_trip(connection, b"after"))
    assert networks(connection) == {"lte0"}
    world.client.do(connection.close())
    serving.result(20)


def test_refusals_and_resets_end_nothing(world):
    """The port is closed for a while: refused connections do not end the flow."""
    listener = world.listen()
    serving = world.server.start(echo(listener))
    connection = world.client.do(world.connect())
    world.client.do(round_trip(connection))
    reject = ["INPUT", "-p", "tcp", "--dport", "7100", "-j", "REJECT", "--reject-with", "tcp-reset"]
    world.far.run("iptables", "-I", *reject)
    world.far.run("ss", "-K", "sport", "=", ":7100")
    world.client.do(until(lambda: not connection.paths()))
    time.sleep(1)
    assert not connection.ended
    world.far.run("iptables", "-D", *reject)
    world.client.do(round_trip(connection, b"again"))
    world.client.do(connection.close())
    serving.result(20)


def test_the_deadline_ends_a_flow(world):
    listener = world.listen()

    async def accepted():
        return await listener.accept()

    connection = world.client.do(world.connect(deadline=2))
    there = world.server.do(accepted())
    world.client.do(asyncio.sleep(0.1))
    for name in ("wlan0", "lte0"):
        world.near.ip("link", "set", name, "down")

    async def ends(which):
        with pytest.raises(SessionError) as caught:
            await which.read()
        return str(caught.value)

    began_s = time.monotonic()
    assert "no path for the agreed 2 s" in world.client.do(ends(connection))
    assert 1.0 < time.monotonic() - began_s < 10
    # The server's kernel still believes in its connections: reset, they are gone as the client's are.
    world.far.run("ss", "-K", "sport", "=", ":7100")
    assert "no path for the agreed 2 s" in world.server.do(ends(there))


def test_a_deadline_counts_while_packets_vanish(world):
    """The links stay up, but nothing passes: both ends have sent, and wait for each other's word."""
    listener = world.listen()

    async def accepted():
        return await listener.accept()

    connection = world.client.do(world.connect(deadline=4))
    there = world.server.do(accepted())
    world.client.do(until(lambda: len(connection.paths()) == 2))
    for name in ("wlan0", "lte0"):
        world.swallow(name, "both")

    async def ends(which):
        await which.write(b"is anybody there?")
        with pytest.raises(SessionError) as caught:
            await which.read()
        return str(caught.value)

    began_s = time.monotonic()
    far = world.server.start(ends(there))
    assert "no path for the agreed 4 s" in world.client.do(ends(connection))
    assert "no path for the agreed 4 s" in far.result(25)
    # Not before; and not half a minute later, when the kernel gives up its connections.
    assert 3.9 < time.monotonic() - began_s < 25


def test_packets_that_vanish_for_less_than_the_deadline_end_nothing(world):
    listener = world.listen()
    serving = world.server.start(echo(listener))
    connection = world.client.do(world.connect(deadline=60))
    world.client.do(round_trip(connection))
    undo = [world.swallow(name) for name in ("wlan0", "lte0")]
    turn = world.client.start(round_trip(connection, bytes(20_000)))
    time.sleep(5)
    for each in undo:
        each()
    turn.result(40)
    world.client.do(connection.close())
    serving.result(20)


def test_a_server_that_lost_its_state(world):
    """Killed and started again without what it knew: a clear error with the last acknowledged byte."""
    listener = world.listen()

    async def take():
        connection = await listener.accept()
        await connection.read_exactly(12_345)
        await asyncio.sleep(0.3)  # acknowledged by now
        connection.flow.end("killed")  # without a word

    taking = world.server.start(take())
    connection = world.client.do(world.connect())

    async def send():
        await connection.write(bytes(12_345))
        await until(lambda: connection.acknowledged_bytes == 12_345)

    world.client.do(send())
    taking.result(20)
    world.server.do(listener.close())
    again = world.listen()

    async def ends():
        with pytest.raises(SessionError) as caught:
            await connection.read()
        return str(caught.value)

    ends_found = world.client.do(ends())
    assert "does not know this session" in ends_found
    assert "12345" in ends_found
    world.server.do(again.close())


_KEEPER = """
import asyncio, os, pathlib, sys
from cedos import session
from cedos.session.protocol.crypto import KeyPair
from cedos.session.keys import from_text

async def main():
    where = pathlib.Path(sys.argv[1])
    listener = await session.listen(("10.99.0.1", 7100), key=KeyPair(from_text(sys.argv[2])), idle=where)
    print("ready", flush=True)
    async def one(connection):
        while data := await connection.first_byte():
            while data:
                await connection.write(bytes(data))
                data = connection.read_now()
        await connection.close()
    tasks = set()
    while True:
        task = asyncio.ensure_future(one(await listener.accept()))
        tasks.add(task)

asyncio.run(main())
"""


def _start_keeper(where, idle, key):
    process = where.popen(
        sys.executable, "-c", _KEEPER, str(idle), key, stdout=subprocess.PIPE, text=True
    )
    with process.stdout:
        assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_an_idle_flow_survives_its_servers_death(world, tmp_path, number):
    from cedos.session.keys import to_text

    idle = tmp_path / "idle"
    key = to_text(world.server_key.private)
    process = _start_keeper(world.far, idle, key)
    try:
        connection = world.client.do(world.connect())
        world.client.do(round_trip(connection, b"before"))
        time.sleep(0.5)  # written down as soon as it is quiet; machines may be busy
        process.send_signal(number)
        process.wait(20)
        process = _start_keeper(world.far, idle, key)
        world.client.do(round_trip(connection, b"after"))
        world.client.do(connection.close())
    finally:
        process.kill()
        process.wait()
